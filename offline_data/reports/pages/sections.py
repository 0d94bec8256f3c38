"""Sections about one dataset that reports and served pages share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.analysis.info import provenance_fields, source_fields
from offline_data.base.plurals import plural
from offline_data.document.blocks import fields_of
from offline_data.document.html import Html, as_html, element
from offline_data.document.html import render as render_blocks
from offline_data.reports.pages.markdown import render

if TYPE_CHECKING:
    from offline_data.analysis.checks.finding import CheckReport, Finding
    from offline_data.analysis.info import DatasetInfo

_MOST_FINDINGS, _OPEN_FINDINGS = 100, 5


def description(info: DatasetInfo) -> Html | None:
    """Return what the source says of the dataset."""
    said = info.about.get("description")
    return element("div", render(said)) if isinstance(said, str) else None


def dataset_name(dataset: str) -> Html:
    """Return an id with its name in bold and its revision small."""
    name, at, revision = dataset.partition("@")
    return as_html((element("b", name), element("small", at + revision, class_="revision")))


def metadata(info: DatasetInfo) -> Html:
    """Return licence, citation, what the source states, and how the dataset was made."""
    identity = fields_of(info, "id:code source layout")
    blocks = (identity, source_fields(info), provenance_fields(info))
    return render_blocks(*blocks)


def findings(report: CheckReport) -> Html:
    """Return the findings of a check, those of the highest severity first; after a few, folded."""
    found = report.findings[:_MOST_FINDINGS]
    ran = plural(len(report.rules), "rule")
    if not found:
        return element("p", f"No findings from {ran}.")
    several = len(report.datasets) > 1
    each = [_finding(one, several) for one in found]
    hidden = len(report.findings) - len(found)
    more = element("p", f"… and {hidden:,} more: offline-data check") if hidden > 0 else None
    folded = (element("summary", f"{len(each) - _OPEN_FINDINGS} more"), each[_OPEN_FINDINGS:], more)
    count = f"{plural(len(report.findings), 'finding')} from {ran}."
    rest = element("details", folded) if each[_OPEN_FINDINGS:] else None
    return as_html((each[:_OPEN_FINDINGS], rest, element("p", count, class_="soft")))


def _finding(one: Finding, several: bool) -> Html:
    where = one.where + (f" ({one.count:,} places)" if one.count > 1 else "")
    return element(
        "div",
        element("p", element("b", one.severity, class_=one.severity), f" {one.code} {one.rule}"),
        element("p", _with_code(one.message), "" if one.message.endswith("…") else "."),
        element("p", one.dataset, class_="soft") if several else None,
        element("p", f"Where: {where}", class_="soft") if where else None,
        element("p", "Hint: ", _with_code(one.hint), class_="soft") if one.hint else None,
        class_=f"finding {one.severity}",
    )


def _with_code(message: str) -> Html:
    """Return a sentence whose parts in backticks are code."""
    parts = message.split("`")
    return as_html(element("code", one) if n % 2 else one for n, one in enumerate(parts))
