"""Sections about one dataset that reports and served pages share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from offline_data.analysis.checks.finding import SEVERITIES
from offline_data.analysis.info import DatasetInfo, compared_with_source, replay_line
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.reports.pages.curves import curves_parts
from offline_data.reports.pages.markdown import render
from offline_data.reports.pages.page import Html, as_html, data_uri, element, facts, table
from offline_data.reports.pictures import space_evenly
from offline_data.store.manifest import dropped_lines

if TYPE_CHECKING:
    from offline_data.analysis.checks.finding import CheckReport, Finding
    from offline_data.reports.pages.episodes import ExampleEpisode, Frames

_MOST_FILES = 20
_MOST_FINDINGS, _OPEN_FINDINGS = 100, 5
_STRIP = 8  # pictures of a film strip
_LABELS = {  # labels of what sources state; others are their keys in words
    "author": "authors", "author_email": "contact", "authors": "authors",
    "code_permalink": "code", "codebase_version": "LeRobot version", "dataset_id": "id at the source",
    "dataset_size": "size at the source", "fps": "rate", "max_episode_steps": "steps of an episode",
    "minari_version": "Minari version", "robot_type": "robot",
}  # fmt: skip
_UNITS = {"fps": "frames/s", "max_episode_steps": "at most", "dataset_size": "MB"}
_STRUCTURE = {"description", "features", "splits"}  # keys shown elsewhere, or about files


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


def leaves(info: DatasetInfo, names: Mapping[str, tuple[str, ...]]) -> Html:
    """Return the table of leaves."""
    rows = []
    for key, leaf in info.schema.items():
        encoding = f" ({leaf['encoding']})" if "encoding" in leaf else ""
        kind = "text" if leaf["text"] else leaf["dtype"] + encoding
        per_episode = "one per step" if leaf["rows"] == "steps" else "one more than steps"
        declared = info.values.get(key, "")
        declared = "" if declared.endswith("not declared") else declared
        named = ", ".join(names.get(key, ()))
        rows.append(
            (element("code", key), kind, str(list(leaf["shape"])), per_episode, declared, named)
        )
    titles = ("Leaf", "Type", "Shape of a row", "Rows of an episode", "Declared", "Features")
    used = [place for place in range(6) if place < 4 or any(row[place] for row in rows)]
    return as_html(
        (
            table([titles[n] for n in used], [[row[n] for n in used] for row in rows]),
            facts({"dropped": _bullets(dropped_lines(info.dropped))}),
        )
    )


def metadata(info: DatasetInfo) -> Html:
    """Return licence, citation, what the source states, and how the dataset was made, folded."""
    files = [
        f"{one.get('path')}, {human_bytes(one.get('size') or 0)}, "
        f"from {one.get('url') or 'the machine where it was converted'}"
        + (f", SHA-256 {one['sha256']}" if one.get("sha256") else "")
        for one in info.files[:_MOST_FILES]
    ]
    if len(info.files) > _MOST_FILES:
        files.append(f"… and {len(info.files) - _MOST_FILES} more")
    skipped = [f"{one['where']}: {one['reason']}" for one in info.skipped]
    stated = {
        label_of(key): text_of_value(value, _UNITS.get(key, ""))
        for key, value in info.about.items()
        if key not in _STRUCTURE
    }
    environment = {
        label_of(key): text_of_value(value, _UNITS.get(key, ""))
        for key, value in info.environment.items()
    }
    folded = (
        element("summary", "Licence, citation, source, environment and files"),
        facts(
            {
                "id": element("code", info.id),
                "licence": info.licence or "not stated",
                "citation": element("pre", info.citation, tabindex=0)
                if info.citation
                else "none stated",
                "source": info.source,
                **stated,
                "notes": _bullets(info.notes),
                "environment": facts(environment) if environment else None,
                "revision": element("code", info.revision, class_="revision"),
                "created": info.created,
                "layout": info.layout,
                "made from": _bullets(info.parents),
                "converter": _converter(info.converter),
                "compared with source": compared_with_source(info.audit),
                "replayed": replay_line(info.replay, info.episodes),
                "files": _bullets(files),
                "not finite": _bullets(
                    f"{k}: {text_of_value(n)}" for k, n in info.non_finite.items()
                ),
                "skipped": _bullets(skipped),
            }
        ),
    )
    return element("details", folded)


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


def label_of(key: object) -> str:
    """Return the label of what a source states.

    Example:
        >>> label_of("fps"), label_of("action_repeat")
        ('rate', 'action repeat')
    """
    return _LABELS.get(str(key)) or re.sub(r"[_\s]+", " ", str(key)).strip()


def text_of_value(value: Any, unit: str = "") -> str | None:
    """Return a value of a manifest as text with its unit; None if it is empty."""
    if value is None or value in ({}, [], (), ""):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{label_of(key)}: {_inline(item)}" for key, item in value.items())
    return f"{_inline(value)} {unit}".strip()


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and len(value) > 3 and all(item == value[0] for item in value):
        return f"{len(value)} × {_inline(value[0])}"
    if isinstance(value, Mapping):
        return "; ".join(f"{label_of(key)}: {_inline(item)}" for key, item in value.items())
    return json.dumps(value, ensure_ascii=False)


def _converter(converter: Mapping[str, Any]) -> str:
    """Return the program that made a dataset, and the options that were given."""
    options = converter.get("options")
    given = {
        key: value
        for key, value in (options if isinstance(options, Mapping) else {}).items()
        if value not in (None, False, "", [], {})
    }
    program = f"{converter.get('name', 'offline-data')} {converter.get('version', '')}".strip()
    adapter = f", source {converter['adapter']}" if converter.get("adapter") else ""
    return f"{program}{adapter}" + (f"\n{text_of_value(given)}" if given else "")


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
