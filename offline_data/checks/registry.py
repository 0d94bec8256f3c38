"""All rules by code, and which of them a run uses."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from offline_data.checks.rule import Rule
from offline_data.errors import UsageError
from offline_data.ids import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MODULES = ("actions", "duplicates", "ends", "files", "images", "published", "rewards", "values")
"""Modules of `offline_data.checks.rules`."""

ENTRY_POINTS = "offline_data.rules"
"""Group of entry points by which other packages offer rules; each names a subclass of `Rule`."""


@cache
def all_rules() -> dict[str, type[Rule]]:
    """Return the classes of all rules, ordered by code.

    Raises:
        UsageError: A rule of another package cannot be imported, is no `Rule`, or has a code that
            is taken.
    """
    found: dict[str, type[Rule]] = {}
    for module in _MODULES:
        for value in vars(import_module(f"offline_data.checks.rules.{module}")).values():
            if isinstance(value, type) and issubclass(value, Rule) and "code" in vars(value):
                found[value.code] = value
    for point in entry_points(group=ENTRY_POINTS):
        try:
            rule = point.load()
        except Exception as error:
            raise UsageError(
                f"Rule {point.name} of {point.value} cannot be imported: "
                f"{type(error).__name__}: {error}",
                hint="update or uninstall the package that offers it",
            ) from error
        if not (isinstance(rule, type) and issubclass(rule, Rule)):
            raise UsageError(f"Entry point {point.name} names {point.value}, which is no Rule")
        if rule.code in found:
            raise UsageError(f"Rule {rule.code} of {point.value} is already taken")
        found[rule.code] = rule
    return dict(sorted(found.items()))


def select_rules(
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Rule]:
    """Return the rules of a run, by code, with their thresholds.

    Args:
        select: Codes, their beginnings (`RL03` for all rules of actions), or names; empty: all.
        ignore: The same, to leave out; wins over `select` unless `select` is longer.
        thresholds: By code.

    Raises:
        UsageError: A selector matches no rule, or a rule has no such threshold.
    """
    known, given = all_rules(), dict(thresholds or {})
    for selector in (*select, *ignore, *given):
        if not any(_matches(selector, rule) for rule in known.values()):
            names = [*known, *(rule.name for rule in known.values())]
            near = nearest(selector, names)
            raise UsageError(
                f"No rule matches {selector!r}",
                hint=f"did you mean {near[0]}?" if near else "`offline-data rule` lists them",
            )

    def longest(selectors: Iterable[str], rule: type[Rule]) -> int:
        lengths = [
            len(rule.code) if one == rule.name else len(one)
            for one in selectors
            if _matches(one, rule)
        ]
        return max(lengths, default=-1)

    chosen = list(select) or [""]
    return [
        rule(given.get(code))
        for code, rule in known.items()
        if longest(chosen, rule) > longest(list(ignore), rule)
    ]


def _matches(selector: str, rule: type[Rule]) -> bool:
    return rule.code.startswith(selector.upper()) or selector == rule.name
