"""All rules by code, and which of them a run uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any, TypeAlias, TypeGuard, get_origin

from offline_data.analysis.checks import rules
from offline_data.analysis.checks.finding import SEVERITIES, Finding
from offline_data.analysis.checks.rule import Measured, Rule
from offline_data.base.errors import OfflineDataError, UnknownNameError, UsageError
from offline_data.base.ids import unknown
from offline_data.base.plurals import plural

# `reward(observation, action, next_observation)` returns the rewards of some transitions
RewardFunction: TypeAlias = Callable[[Any, Any, Any], Any]

_ATTRIBUTES = ("code", "name", "severity")
_MODULES = (  # modules of the rules of this package; each is imported when rules are listed
    *(one.name for one in iter_modules(rules.__path__, f"{rules.__name__}.")),
    "offline_data.pipeline.preprocess.rules",
    "offline_data.text.rules",
)

ENTRY_POINTS = "offline_data.rules"  # group in which other packages name subclasses of `Rule`


@cache
def all_rules() -> dict[str, type[Rule]]:
    """Return the classes of all rules, ordered by code.

    A rule of another package that cannot be used is replaced by one of that name that always fails,
    so that a run names it (`RL000`), and exits 1, but runs the other rules.
    """
    found: dict[str, type[Rule]] = {}
    for module in _MODULES:
        for value in vars(import_module(module)).values():
            if _is_rule(value) and "code" in vars(value):
                found[value.code] = value
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: (one.name, one.value)):
        rule = _load_rule(point, found)
        found[rule.code] = rule
    return dict(sorted(found.items()))


def _is_rule(value: Any) -> TypeGuard[type[Rule]]:
    # On Python 3.10, tuple[str] is an instance of type.
    return isinstance(value, type) and get_origin(value) is None and issubclass(value, Rule)


def _load_rule(point: EntryPoint, known: Mapping[str, type[Rule]]) -> type[Rule]:
    """Return the rule that an entry point names, or one that fails with the reason."""
    where = point.value + (f" of the package {point.dist.name}" if point.dist else "")
    try:
        rule = point.load()
        if not _is_rule(rule):
            problem = "is not a subclass of offline_data.plugins.Rule"
        elif missing := [n for n in _ATTRIBUTES if not isinstance(getattr(rule, n, None), str)]:
            problem = f"has no {' and no '.join(missing)}"
        elif rule.severity not in SEVERITIES:
            problem = f"has the severity {rule.severity!r}; expected one of {', '.join(SEVERITIES)}"
        elif rule.code in known:
            problem = f"has the code {rule.code}, which another rule has"
        else:
            return rule
    except Exception as error:  # noqa: BLE001 -- a package may be anybody's
        problem = f"cannot be imported: {type(error).__name__}: {error}"
    return _failing(point.name if point.name not in known else point.value, f"{where} {problem}")


def _failing(named: str, problem: str) -> type[Rule]:
    class Unusable(Rule):
        __doc__ = f"{problem}."
        code = name = named
        severity = "error"
        hint = "update or uninstall the package that offers it"

        def findings(self, measured: Measured) -> Iterable[Finding]:
            del measured
            raise ImportError(problem)

    return Unusable


def select_rules(
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    reward: RewardFunction | None = None,
) -> list[Rule]:
    """Return the rules of a run, by code, with their thresholds, which are by code or name.

    `select` and `ignore` are codes, their beginnings (`RL03` for all rules of actions, `RL` for
    all), or names; an empty `select` is the default set. `ignore` wins over `select` unless that is
    longer. Rules whose constructor has an argument `reward` are passed that. Raises `UsageError` if
    a selector matches no rule, or a rule has no such threshold.
    """
    known, given = all_rules(), dict[str, Mapping[str, float]]()
    for selector in (*select, *ignore):
        rules_matching(selector)
    for one, values in (thresholds or {}).items():
        (rule, *more) = rules_matching(one)
        if more:
            raise UsageError(
                f"Thresholds of {one!r}: {plural(len(more) + 1, 'rule matches', 'rules match')}; "
                "name one"
            )
        given[rule.code] = values

    def longest(selectors: Iterable[str], rule: type[Rule]) -> int:
        lengths = [
            len(rule.code) if one == rule.name else len(one)
            for one in selectors
            if _matches(one, rule)
        ]
        return max(lengths, default=-1)

    selected = list(select)
    return [
        _create_rule(rule, given.get(code), reward)
        for code, rule in known.items()
        if longest(selected or [""] * rule.by_default, rule) > longest(list(ignore), rule)
    ]


def _create_rule(
    rule: type[Rule], thresholds: Mapping[str, float] | None, reward: RewardFunction | None
) -> Rule:
    try:
        if reward is not None and "reward" in inspect.signature(rule).parameters:
            return rule(thresholds, reward=reward)  # type: ignore[call-arg]
        return rule(thresholds)
    except OfflineDataError:
        raise
    except Exception as error:  # noqa: BLE001 -- a rule may be anybody's
        return _failing(rule.code, f"it cannot be made: {type(error).__name__}: {error}")()


def rules_matching(selector: str) -> list[type[Rule]]:
    """Return the rules of a code, its beginning, or a name; raises `UnknownNameError`."""
    known = all_rules()
    found = [rule for rule in known.values() if selector and _matches(selector, rule)]
    if not found:
        names = [*known, *(rule.name for rule in known.values())]
        hint, wanted = "`offline-data explain` lists them", selector[:80]
        raise unknown(UnknownNameError, "No rule matches", wanted, names, hint=hint, listed=False)
    return found


def matches(selector: str, finding: Finding) -> bool:
    """Return True if a selector is the code of a finding, its beginning, or the rule's name."""
    return finding.code.startswith(selector.upper()) or selector == finding.rule


def _matches(selector: str, rule: type[Rule]) -> bool:
    return rule.code.startswith(selector.upper()) or selector == rule.name
