"""Pages of the rules of `check`, made of their classes, rules.yml and the list of published defects."""

from __future__ import annotations

from pathlib import Path

import yaml

from docs.generate.text import bullets, code, links, page, plain, table
from offline_data.analysis.checks.reference import RuleText, rule_texts
from offline_data.analysis.checks.rules.files import advisories

EXAMPLES: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("rules.yml").read_text("utf-8")
)
"""Bad and good data of each rule, by its code."""


def pages() -> dict[str, str]:
    """Return the pages by their path in docs/."""
    return {f"rules/{code_}.md": _rule(text) for code_, text in rule_texts().items()}


def _rule(text: RuleText) -> str:
    example = EXAMPLES.get(text.code)
    thresholds = [[code(one.name), f"{one.default:g}", plain(one.means)] for one in text.thresholds]
    name = text.code
    return page(
        f"# {text.code} {text.name}",
        f"**{text.severity}** · {text.summary}",
        *text.details,
        f"## Bad\n\n```text\n{example['bad']}```" if example else "",
        f"## Good\n\n```text\n{example['good']}```" if example else "",
        f"## What to do\n\n{text.hint[:1].upper()}{text.hint[1:]}." if text.hint else "",
        _defects() if name == "RL004" else "",
        "## Thresholds" if thresholds else "",
        table(["name", "default", "meaning"], thresholds) if thresholds else "",
        f"## On the command line\n\n```console\n$ offline-data check ID --select {name}\n"
        f"$ offline-data check ID --ignore {name}\n```"
        if name != "RL000"
        else "",
        "[All rules](../rules.md)",
    )


def _defects() -> str:
    found = (
        f"{', '.join(map(code, one.datasets))} ({one.severity}): {plain(one.summary)} ({links(one.links)})."
        for one in advisories()
    )
    return page("## Published defects", bullets(found)).rstrip()
