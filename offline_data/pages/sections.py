"""Sections about one dataset that reports and served pages share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from offline_data.files import human_bytes
from offline_data.pages import charts
from offline_data.pages.page import Html, as_html, data_uri, element, facts, section, table
from offline_data.plurals import plural
from offline_data.reports.info import DatasetInfo, compared_with_source
from offline_data.reports.stats import DatasetStats
from offline_data.store.manifest import dropped_lines

if TYPE_CHECKING:
    from offline_data.checks.finding import CheckReport, Finding
    from offline_data.pages.episodes import ExampleEpisode, Frames

_MOST_FILES = 20
_MOST_FINDINGS = 100


def card(info: DatasetInfo, stats: DatasetStats | None = None) -> Html:
    """Return what the dataset is: counts, description, licence, environment."""
    about = dict(info.about)
    description = about.pop("description", None)
    counts = {
        "transitions": f"{info.transitions:,}",
        "episodes": f"{info.episodes:,}",
        "on disk": human_bytes(info.bytes),
    }
    if stats is not None:
        spreads = {
            "mean return": stats.per_episode.returns,
            "mean length": stats.per_episode.length,
        }
        counts |= {name: f"{found.mean:.4g}" for name, found in spreads.items() if found}
        counts["end terminated"] = f"{100 * stats.per_episode.terminated:.3g} %"
    tiles = (element("div", element("b", value), element("span", n)) for n, value in counts.items())
    return section(
        "card",
        "Dataset",
        element("p", description) if description else None,
        element("div", tiles, class_="tiles"),
        facts(
            {
                "id": element("code", info.id),
                "source": info.source,
                "licence": info.licence or "not stated",
                **{name: text_of_value(value) for name, value in about.items()},
                "notes": _bullets(info.notes),
            }
        ),
    )


def schema(info: DatasetInfo) -> Html:
    """Return the table of leaves."""
    rows = []
    for key, leaf in info.schema.items():
        encoding = f" ({leaf['encoding']})" if "encoding" in leaf else ""
        kind = "text" if leaf["text"] else leaf["dtype"] + encoding
        per_episode = "one per step" if leaf["rows"] == "steps" else "one more than steps"
        rows.append((element("code", key), kind, str(list(leaf["shape"])), per_episode))
    return section(
        "schema",
        "Schema",
        table(("Leaf", "Type", "Shape of a row", "Rows of an episode"), rows),
        facts(
            {
                **{f"{name} space": text_of_value(space) for name, space in info.spaces.items()},
                "dropped": _bullets(dropped_lines(info.dropped)),
            }
        ),
    )


def provenance(info: DatasetInfo) -> Html:
    """Return where the dataset is from, and how it was made and compared with its source."""
    files = [
        f"{one.get('path')}, {human_bytes(one.get('size') or 0)}, "
        f"from {one.get('url') or 'the machine where it was converted'}"
        + (f", SHA-256 {one['sha256']}" if one.get("sha256") else "")
        for one in info.files[:_MOST_FILES]
    ]
    if len(info.files) > _MOST_FILES:
        files.append(f"… and {len(info.files) - _MOST_FILES} more")
    skipped = [f"{one['where']}: {one['reason']}" for one in info.skipped]
    return section(
        "provenance",
        "Provenance",
        facts(
            {
                "revision": element("code", info.revision),
                "created": info.created,
                "layout": info.layout,
                "environment": text_of_value(info.environment),
                "made from": _bullets(info.parents),
                "converter": text_of_value(info.converter),
                "compared with source": compared_with_source(info.audit),
                "files": _bullets(files),
                "not finite": _bullets(
                    f"{k}: {text_of_value(n)}" for k, n in info.non_finite.items()
                ),
                "skipped": _bullets(skipped),
            }
        ),
    )


def citation(info: DatasetInfo) -> Html:
    """Return how to cite it, as the source says."""
    if info.citation:
        return section("citation", "Citation", element("pre", info.citation))
    return section("citation", "Citation", element("p", "The source states none.", class_="soft"))


def findings(report: CheckReport) -> Html:
    """Return the findings of a check, those of the highest severity first within each dataset."""
    found = report.findings
    ran = plural(len(report.rules), "rule")
    if not found:
        return element("p", f"No findings by {ran}.")
    hidden = len(found) - _MOST_FINDINGS
    more = element("p", f"… and {hidden} more: offline-data check") if hidden > 0 else None
    count = f"{plural(len(found), 'finding')} by {ran}."
    several = len(report.datasets) > 1
    each = (_finding(one, several) for one in found[:_MOST_FINDINGS])
    return as_html((element("p", count, class_="soft"), each, more))


def episode_parts(episode: ExampleEpisode) -> Html:
    """Return pictures, curves and texts of some steps of an episode."""
    marks = []
    if episode.stop == episode.length:
        ends = {"terminated": episode.terminated, "truncated": episode.truncated}
        marks = [(episode.length - 1, name) for name, ends_so in ends.items() if ends_so]
    curves = (
        charts.lines(
            one.key,
            episode.steps,
            dict(zip(one.names, one.values, strict=True)),
            marks=marks,
            note=f"{one.left_out} more features not shown" if one.left_out else "",
        )
        for one in episode.curves
    )
    texts = {
        name: _bullets(f"from step {step}: {shown if shown is not None else '(missing)'}"
                       for step, shown in changes)
        for name, changes in episode.texts
    }  # fmt: skip
    return as_html(
        (
            (_frames(one) for one in episode.frames),
            element("div", curves, class_="grid pair"),
            facts(texts),
            (element("p", note, class_="soft") for note in episode.notes),
        )
    )


def episode_summary(episode: ExampleEpisode) -> str:
    """Return length, return and end of an episode as a sentence."""
    ends = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    unknown = "" if episode.final_observation else "; the observation after it is unknown"
    return (
        f"{plural(episode.length, 'step')}, return {episode.returned:.6g}, "
        f"ends {' and '.join(ends) or 'without a flag'}{unknown}"
    )


def text_of_value(value: Any) -> str | None:
    """Return a value of a manifest as text; None if there is none."""
    if value is None or value in ({}, [], (), ""):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_inline(item)}" for key, item in value.items())
    return _inline(value)


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > 3 and all(item == value[0] for item in value):
        return f"{len(value)} × {_inline(value[0])}"
    return json.dumps(value, ensure_ascii=False)


def _bullets(items: Iterable[object]) -> Html | None:
    found = [element("li", item) for item in items]
    return element("ul", found) if found else None


def _finding(one: Finding, several: bool) -> Html:
    where = one.where + (f" ({one.count:,} places)" if one.count > 1 else "")
    return element(
        "div",
        element("p", element("b", one.severity, class_=one.severity), f" {one.code} {one.rule}"),
        element("p", one.message + "."),
        element("p", one.dataset, class_="soft") if several else None,
        element("p", f"Where: {where}", class_="soft") if where else None,
        element("p", one.hint, class_="soft") if one.hint else None,
        class_=f"finding {one.severity}",
    )


def _frames(frames: Frames) -> Html:
    def picture(file: tuple[str, bytes], caption: str, of: str | None = None) -> Html:
        image = element("img", src=data_uri(*file), alt=f"{frames.key}, {caption}")
        return element("figure", image, element("figcaption", caption), class_=of)

    each = [
        picture(file, f"step {step}") for step, file in zip(frames.steps, frames.files, strict=True)
    ]
    moving = picture(frames.film, "all steps shown", "moving") if frames.film else None
    note = element("p", frames.note, class_="soft") if frames.note else None
    return as_html((element("h3", frames.key), note, element("div", moving, each, class_="strip")))
