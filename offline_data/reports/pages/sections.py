"""Sections about one dataset that reports and served pages share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from offline_data.analysis.checks.finding import SEVERITIES
from offline_data.analysis.info import provenance_fields, source_fields
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.blocks import fields_of
from offline_data.document.html import Html, as_html, element, facts
from offline_data.document.html import render as render_blocks
from offline_data.reports.pages.curves import curves_parts
from offline_data.reports.pages.markdown import render
from offline_data.reports.pages.page import data_uri
from offline_data.reports.pictures import space_evenly

if TYPE_CHECKING:
    from offline_data.analysis.checks.finding import CheckReport, Finding
    from offline_data.analysis.info import DatasetInfo
    from offline_data.reports.pages.episodes import ExampleEpisode, Frames

_MOST_FINDINGS, _OPEN_FINDINGS = 100, 5
_STRIP = 8  # pictures of a film strip


def state(info: DatasetInfo, report: CheckReport | None = None) -> Html:
    """Return a line with rows, episodes, size and findings by severity, and the description."""
    counts = [
        plural(info.transitions, "row"),
        plural(info.episodes, "episode"),
        human_bytes(info.bytes),
    ]
    marks: list[Html] = []
    if report is not None:
        marks = [
            element("b", plural(count, one, one if one == "info" else None), class_=one)
            for one in reversed(SEVERITIES)
            if (count := sum(each.severity == one for each in report.findings))
        ] or [element("b", "no findings")]
    line = (element("span", part) for part in (*counts, *marks))
    description = info.about.get("description")
    prose = element("div", render(description)) if isinstance(description, str) else None
    return as_html((element("p", line, class_="state"), prose))


def dataset_name(dataset: str) -> Html:
    """Return an id with its name in bold and its revision small."""
    name, at, revision = dataset.partition("@")
    return as_html((element("b", name), element("small", at + revision, class_="revision")))


def strips(episode: ExampleEpisode) -> Html:
    """Return a film strip of each camera; nothing without images."""
    return as_html(map(_strip, episode.frames))


def metadata(info: DatasetInfo) -> Html:
    """Return licence, citation, what the source states, and how the dataset was made, folded."""
    summary = element("summary", "Licence, citation, source, environment and files")
    identity = fields_of(info, "id:code source layout")
    blocks = (identity, source_fields(info), provenance_fields(info))
    return element("details", summary, render_blocks(*blocks))


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


def episode_parts(episode: ExampleEpisode) -> Html:
    """Return the curves and texts of some steps of an episode."""
    ends = {"terminated": episode.terminated, "truncated": episode.truncated}
    marks = [(episode.length - 1, name) for name, ends_so in ends.items() if ends_so]
    curves = (curves_parts(one, marks) for one in episode.curves)
    texts = {
        name: _bullets(f"from step {step}: {shown if shown is not None else '(missing)'}"
                       for step, shown in changes)
        for name, changes in episode.texts
    }  # fmt: skip
    return as_html(
        (
            element("div", curves, class_="grid pair"),
            facts(texts),
            (element("p", _with_code(note), class_="soft") for note in episode.notes),
        )
    )


def episode_summary(episode: ExampleEpisode) -> str:
    """Return length, return and end of an episode as a sentence."""
    ends = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    unknown = "" if episode.final_observation else "; the last observation is unknown"
    return (
        f"{plural(episode.length, 'step')}, return {episode.returned:.6g}, "
        f"ends {' and '.join(ends) or 'without a flag'}{unknown}"
    )


def _bullets(items: Iterable[object]) -> Html | None:
    found = [element("li", item) for item in items]
    return element("ul", found) if found else None


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


def _strip(frames: Frames) -> Html:
    places = space_evenly(0, len(frames.files), _STRIP).tolist()
    each = []
    for place in places:
        caption = f"step {frames.steps[place]}"
        image = element("img", src=data_uri(*frames.files[place]), alt=f"{frames.key}, {caption}")
        each.append(element("figure", image, element("figcaption", caption)))
    note = element("p", frames.note, class_="soft") if frames.note else None
    return as_html((element("h3", frames.key), note, element("div", each, class_="strip")))
