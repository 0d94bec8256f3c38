"""Texts about the rules, for `offline-data explain`, reports and the page docs/rules.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

from offline_data.analysis.checks.finding import Severity
from offline_data.analysis.checks.registry import all_rules, rules_matching
from offline_data.analysis.checks.rule import Rule
from offline_data.analysis.checks.run import RULE_FAILED

_SECTIONS = ("Args:", "Raises:", "Returns:", "Example:", "Examples:")

_TITLE = """# Rules of `offline-data check`

Written by `offline-data rule --all`. Severities: with an **error**, training on the data goes wrong; a
**warning** is probably unintended; **info** is worth knowing.
"""


@dataclass(frozen=True)
class RuleThreshold:
    """A number that can be configured."""

    name: str
    default: float
    means: str


@dataclass(frozen=True)
class RuleText:
    """A rule as its class describes it."""

    code: str
    name: str
    severity: Severity
    summary: str  # the defect, in one sentence
    details: tuple[str, ...]  # paragraphs: why it matters, when it is harmless
    hint: str  # next step after a finding
    thresholds: tuple[RuleThreshold, ...] = ()


_FAILED = RuleText(
    RULE_FAILED,
    "rule-failed",
    "error",
    "A rule raised an exception, or cannot be imported.",
    ("The other rules still run. A baseline or a dataset cannot ignore this finding.",),
    "skip the rule with `--ignore`, and report the error to its author",
)


def rule_texts() -> dict[str, RuleText]:
    """Return the texts of all rules by code, in order; `RL000` included."""
    texts = {rule.code: _text(rule) for rule in all_rules().values()}
    return dict(sorted({**texts, RULE_FAILED: _FAILED}.items()))


def rule_texts_of(selectors: Iterable[str]) -> list[RuleText]:
    """Return the texts of rules by code, beginning of a code, or name; raises `UsageError`."""
    texts = rule_texts()
    found: dict[str, RuleText] = {}
    for selector in selectors:
        failed = selector.upper() == RULE_FAILED or selector == _FAILED.name
        codes = [RULE_FAILED] if failed else [rule.code for rule in rules_matching(selector)]
        found |= {code: texts[code] for code in codes}
    return list(found.values())


def _text(rule: type[Rule]) -> RuleText:
    paragraphs = inspect.cleandoc(rule.__doc__ or "").split("\n\n")
    details: list[str] = []
    for paragraph in paragraphs[1:]:
        if paragraph.startswith(_SECTIONS):  # of its constructor
            break
        details.append(paragraph if paragraph[:1] in "-`" else " ".join(paragraph.split()))
    thresholds = tuple(
        RuleThreshold(name, default, rule.explained.get(name, ""))
        for name, default in rule.thresholds.items()
    )
    summary, severity = rule.summary(), rule.severity
    return RuleText(rule.code, rule.name, severity, summary, tuple(details), rule.hint, thresholds)


def reference_page() -> str:
    """Return the page of all rules, as Markdown."""
    texts = rule_texts().values()
    table = ["| code | rule | severity | looks for |", "|---|---|---|---|"]
    table += [
        f"| [{one.code}](#{one.code.lower()}-{one.name}) | `{one.name}` | {one.severity} | "
        f"{one.summary.replace('|', chr(92) + '|')} |"
        for one in texts
    ]
    return "\n".join([_TITLE, *table, *map(_section, texts)]) + "\n"


def _section(text: RuleText) -> str:
    parts = [f"\n## {text.code} {text.name}", f"Severity: **{text.severity}**. {text.summary}"]
    parts += text.details
    if text.thresholds:
        rows = [f"| `{one.name}` | {one.default:g} | {one.means} |" for one in text.thresholds]
        parts.append("\n".join(["| threshold | default | meaning |", "|---|---|---|", *rows]))
    if text.hint:
        parts.append(f"To do: {text.hint}.")
    return "\n\n".join(parts)
