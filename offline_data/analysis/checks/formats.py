"""Reports of a run for people and programs: text, JSON, JUnit, SARIF, GitHub and Markdown.

Ids and messages may have any characters: they come from files of others. Except in JSON, which
escapes them, control characters and line ends are replaced, and what is markup in a format is
escaped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from offline_data.analysis.checks.baseline import Comparison
from offline_data.analysis.checks.config import FailOn, Format
from offline_data.analysis.checks.finding import SEVERITIES, CheckReport, Finding, Severity
from offline_data.analysis.checks.reference import RuleText, rule_texts
from offline_data.analysis.checks.registry import all_rules
from offline_data.analysis.checks.run import DAMAGED, RULE_FAILED
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.base.version import __version__
from offline_data.document.blocks import Block, Lines, table
from offline_data.document.html import Document
from offline_data.document.text import render as render_text
from offline_data.store.layout import MANIFEST

JSON_VERSION = 1  # version of the JSON report

_SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_GITHUB = {"error": "error", "warning": "warning", "info": "notice"}
_SARIF = {"error": "error", "warning": "warning", "info": "note"}
_NOT_PRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


@dataclass(frozen=True)
class CheckOutcome:
    """A run, and what of it counts."""

    report: CheckReport
    fail_on: FailOn = "error"
    baseline: Comparison | None = None
    folder: Path | None = None  # paths in reports are relative to it, where they are in it

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that the baseline does not have."""
        return self.report.findings if self.baseline is None else self.baseline.new

    @property
    def failed(self) -> bool:
        """Whether there is a finding at or above `fail_on`."""
        return any(map(self.fails, self.findings))

    def fails(self, finding: Finding) -> bool:
        """Return True if a finding is at or above `fail_on`."""
        if self.fail_on == "never":
            return False
        return SEVERITIES.index(finding.severity) >= SEVERITIES.index(self.fail_on)

    @property
    def summary(self) -> str:
        """Numbers of findings and datasets, in one line."""
        total = len(self.report.datasets)
        having = len({one.dataset for one in self.findings})
        some = f"{having} of " if 0 < having < total else ""
        text = f"{count_findings(self.findings)} in {some}{plural(total, 'dataset')}"
        if not self.findings:
            ran, known = len(self.report.rules), len(all_rules())
            text += f", by {f'{ran} of ' if ran < known else ''}{plural(known, 'rule')}"
        if self.baseline is not None and self.baseline.known:
            text += f"; {self.baseline.known} in the baseline"
        return text

    def statistics(self) -> list[tuple[str, str, Severity, int, int]]:
        """Return code, name, severity, findings and datasets of each rule that found something."""
        groups: dict[tuple[str, str, Severity], list[str]] = {}
        for one in self.findings:
            groups.setdefault((one.code, one.rule, one.severity), []).append(one.dataset)
        rows = [(*group, len(ids), len(set(ids))) for group, ids in groups.items()]
        return sorted(rows, key=lambda row: (-row[3], row[0]))


def render(outcome: CheckOutcome, form: Format) -> str:
    """Return the report of a run in a format, ending in a line end."""
    return _FORMATS[form](outcome)


def one_line(text: str) -> str:
    """Return text on one line, with what could control a terminal, or is not XML, replaced."""
    return _NOT_PRINTABLE.sub("\ufffd", " ".join(text.split()))


def count_findings(findings: Sequence[Finding]) -> str:
    """Return the number of findings, and that of each severity: `2 findings (2 errors)`."""
    if not findings:
        return "no findings"
    severities = Counter(one.severity for one in findings)
    parts = [
        plural(severities[one], one, one if one == "info" else None)
        for one in reversed(SEVERITIES)
        if severities[one]
    ]
    return f"{plural(len(findings), 'finding')} ({', '.join(parts)})"


def finding_blocks(findings: Sequence[Finding], summary: str) -> list[Block]:
    """Return a report for people: the findings of each dataset, hints, and a sentence about all."""
    by_dataset: dict[str, list[Finding]] = {}
    for one in findings:
        by_dataset.setdefault(one.dataset, []).append(one)
    tables = [
        table(
            "code severity finding",
            [(one_line(one.code), one.severity, _with_place(one)) for one in found],
            one_line(dataset),
        )._replace(listed=True)
        for dataset, found in by_dataset.items()
    ]
    hints = {
        one.code: f" {one.code} {one.rule}: {one.hint}"
        for one in findings
        if one.hint and one.severity != "info"
    }
    lines = [[("hint:", "hint"), (f" {one_line(hint)}", "")] for _, hint in sorted(hints.items())]
    return [*tables, Lines([*lines, [(summary, "")]])]


@pickled_by_name
class Findings(Document, list[Finding]):
    """Findings as a list, which shows itself as the report for people."""

    def __init__(self, findings: Iterable[Finding], summary: str) -> None:
        super().__init__(findings)
        self.summary = summary

    def blocks(self) -> list[Block]:
        """Return the report."""
        return finding_blocks(self, self.summary)


def _human(outcome: CheckOutcome) -> str:
    return render_text(finding_blocks(outcome.findings, outcome.summary)) + "\n"


def as_data(outcome: CheckOutcome) -> dict[str, Any]:
    """Return the report as plain values; the JSON format.

    `datasets`, `rules` (codes) and `findings` are as in `CheckReport`; `baseline` is null without
    one, else has the numbers of findings that it has (`known`) and that are `gone`.
    """
    severities = Counter(one.severity for one in outcome.findings)
    names = ("code", "rule", "severity", "findings", "datasets")
    compared = outcome.baseline
    return {
        "version": JSON_VERSION,
        "failed": outcome.failed,
        "fail_on": outcome.fail_on,
        "counts": {severity: severities[severity] for severity in reversed(SEVERITIES)},
        "baseline": compared and {"known": compared.known, "gone": compared.gone},
        "datasets": [{**asdict(one), "path": str(one.path)} for one in outcome.report.datasets],
        "rules": list(outcome.report.rules),
        "statistics": [dict(zip(names, row, strict=True)) for row in outcome.statistics()],
        "findings": [asdict(one) for one in outcome.findings],
    }


def _json(outcome: CheckOutcome) -> str:
    return json.dumps(as_data(outcome), indent=1) + "\n"


def _github(outcome: CheckOutcome) -> str:
    """Return workflow commands, one a finding."""
    lines = []
    for one in outcome.findings:
        title = f"{one.code} {one.rule}"
        file = _relative(outcome, one)
        place = f"file={_escape_github(file)}," if file else ""
        text = f"{one_line(one.dataset)}: {_with_place(one)}".replace("%", "%25")
        lines.append(f"::{_GITHUB[one.severity]} {place}title={_escape_github(title)}::{text}")
    return "\n".join([*lines, outcome.summary]) + "\n"


def _escape_github(text: str) -> str:
    # a command is a line that begins with `::`: a message must not end it or begin another
    escaped = one_line(text).replace("%", "%25")
    return escaped.replace(":", "%3A").replace(",", "%2C")


def _markdown(outcome: CheckOutcome) -> str:
    lines = [f"**{outcome.summary}**"]
    if outcome.findings:
        lines += ["", "| severity | rule | dataset | where | finding |", "|---|---|---|---|---|"]
    for one in outcome.findings:
        rule = f"{_code(one.code)} {_escape_markdown(one.rule)}"
        cells = (one.severity, rule, _code(one.dataset), _code(one.where))
        lines.append(f"| {' | '.join(cells)} | {_escape_markdown(one.message)} |")
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    marked = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", escape(one_line(text), quote=False))
    return marked.replace("@", "@\u200b")  # else a message could mention a person


def _code(text: str) -> str:
    shown = one_line(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def _junit(outcome: CheckOutcome) -> str:
    """Return a suite a dataset, a test a rule that ran; findings that do not fail are output."""
    root = ElementTree.Element("testsuites", name="offline-data check")
    for dataset in outcome.report.datasets:
        found = [one for one in outcome.findings if one.dataset == dataset.id]
        of_rule: dict[str, list[Finding]] = {code: [] for code in outcome.report.rules}
        for one in found:
            of_rule.setdefault(one.code, []).append(one)
        suite = ElementTree.SubElement(root, "testsuite", name=one_line(dataset.id))
        texts, counts = rule_texts(), Counter[str]()
        for code, findings in sorted(of_rule.items()):
            name = texts[code].name if code in texts else findings[0].rule if findings else ""
            case = ElementTree.SubElement(suite, "testcase")
            case.set("classname", one_line(dataset.id))
            case.set("name", one_line(f"{code} {name}"))
            counts[_add_results(case, outcome, findings)] += 1
        suite.set("tests", str(len(of_rule)))
        for attribute, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(attribute, str(counts[tag]))
        suite.set("skipped", "0")
    ElementTree.indent(root, " ")
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add_results(case: ElementTree.Element, outcome: CheckOutcome, findings: list[Finding]) -> str:
    """Add the findings of a rule to its test; returns `error`, `failure` or nothing."""
    failing = [one for one in findings if outcome.fails(one)]
    others = [one for one in findings if not outcome.fails(one)]
    tag = ""
    if failing:
        first = failing[0]
        tag = "error" if first.code == RULE_FAILED else "failure"
        more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        result = ElementTree.SubElement(case, tag, type=first.severity)
        result.set("message", one_line(first.message) + more)
        hint = [f"hint: {one_line(first.hint)}"] if first.hint else []
        result.text = "\n".join([*map(_with_place, failing), *hint])
    if others:
        out = ElementTree.SubElement(case, "system-out")
        out.text = "\n".join(f"{one.severity}: {_with_place(one)}" for one in others)
    return tag


def _with_place(one: Finding) -> str:
    return one_line(f"{one.where}: {one.message}" if one.where else one.message)


def _sarif(outcome: CheckOutcome) -> str:
    """Return a log of one run; `partialFingerprints` stay when the data change."""
    texts, found = rule_texts(), outcome.findings
    names = {one.code: one.rule for one in found}
    codes = sorted({*outcome.report.rules, *names})
    driver = {
        "name": "offline-data",
        "version": __version__,
        "rules": [_sarif_rule(code, texts.get(code), names.get(code)) for code in codes],
    }
    results = [
        {
            "ruleId": one_line(one.code),
            "ruleIndex": codes.index(one.code),
            "level": _SARIF[one.severity],
            "message": {"text": _escape_sarif(_with_place(one))},
            "locations": [_sarif_location(outcome, one)],
            "partialFingerprints": {"offlineData/v1": _fingerprint(one)},
            "properties": {"count": one.count, "episode": one.episode, "row": one.row},
        }
        for one in found
    ]
    complete = not {RULE_FAILED, DAMAGED} & names.keys()
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": complete}],
        "results": results,
    }
    whole = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(whole, indent=1) + "\n"


def _sarif_rule(code: str, text: RuleText | None, name: str | None) -> dict[str, Any]:
    if text is None:  # of a package that is not installed here
        return {"id": one_line(code), "name": one_line(name or code)}
    texts = {
        "shortDescription": text.summary,
        "fullDescription": " ".join((text.summary, *text.details)),
        "help": text.hint or text.summary,
    }
    return {
        "id": one_line(code),
        "name": one_line(text.name),
        **{key: {"text": _escape_sarif(one_line(value))} for key, value in texts.items()},
        "defaultConfiguration": {"level": _SARIF[text.severity]},
    }


def _sarif_location(outcome: CheckOutcome, one: Finding) -> dict[str, Any]:
    name = one_line(f"{one.dataset}/{one.leaf}" if one.leaf else one.dataset)
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": name}]}
    manifest = _manifest(outcome, one)
    if manifest is not None:
        relative = _relative(outcome, one)
        uri = quote(os.fsencode(relative)) if relative else manifest.as_uri()
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}}
    return location


def _escape_sarif(text: str) -> str:
    """Escape what is a link or a placeholder in a message of SARIF (3.11.5 and 3.11.6)."""
    if "](" in text:
        text = re.sub(r"([\\\[\]])", r"\\\1", text)
    return re.sub(r"\{(\d+)\}", r"{{\1}}", text)


def _fingerprint(one: Finding) -> str:
    identity = json.dumps(one.identity)
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _manifest(outcome: CheckOutcome, one: Finding) -> Path | None:
    """Return the manifest of a finding's dataset: the file that reports can point to."""
    paths = (each.path for each in outcome.report.datasets if each.id == one.dataset)
    return next((path.absolute() / MANIFEST for path in paths), None)


def _relative(outcome: CheckOutcome, one: Finding) -> str | None:
    """Return the manifest of a finding's dataset if it is in the folder, relative to that."""
    manifest, folder = _manifest(outcome, one), outcome.folder
    if manifest is None or folder is None or not manifest.is_relative_to(folder):
        return None
    return manifest.relative_to(folder).as_posix()


_FORMATS: dict[Format, Callable[[CheckOutcome], str]] = {
    "human": _human,
    "json": _json,
    "junit": _junit,
    "sarif": _sarif,
    "github": _github,
    "markdown": _markdown,
}
