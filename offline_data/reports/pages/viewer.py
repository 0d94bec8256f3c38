"""The viewer of a dataset's episodes: the page of `report` and `view`, and that of `browse`.

A page is this frame and JSON, from which its script draws the list of episodes, the film and the
timeline. A report has episodes in it; a server sends them one by one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.analysis.checks.finding import SEVERITIES
from offline_data.analysis.checks.tokens import is_packed
from offline_data.analysis.episodes import sample_rows
from offline_data.analysis.frames import image_layout, image_leaves
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.html import Html, as_html, element
from offline_data.episode.fields import join_key
from offline_data.reports.pages import sections
from offline_data.reports.pages.charts import byte_levels, numbers
from offline_data.reports.pages.episodes import MOST_LEAVES, RETURN_SO_FAR, curve_leaves
from offline_data.reports.pages.page import data_block, document
from offline_data.reports.pages.texts import is_text
from offline_data.reports.video import FASTEST
from offline_data.store.manifest import identity_of
from offline_data.store.names import feature_labels, feature_names

if TYPE_CHECKING:
    from offline_data.analysis.checks.finding import CheckReport
    from offline_data.analysis.info import DatasetInfo
    from offline_data.reports.pages.episodes import Frames, ShownEpisode
    from offline_data.reports.pictures import Curves
    from offline_data.store.marks import Marks
    from offline_data.store.reader import DatasetReader

LINES = 8
"""Features of a leaf up to which its values are lines; those of more are a heat map."""

_SIGNS = {"good": "✓", "bad": "✕", "unsure": "?"}


def dataset_data(reader: DatasetReader, info: DatasetInfo) -> dict[str, Any]:
    """Return what the script needs to know of a dataset, but for its table of episodes.

    Scales of curves are the least and greatest value of up to 4,096 rows, spread evenly.
    """
    stated = reader.manifest.about.get("fps")
    cameras = [*image_leaves(reader).values()][:MOST_LEAVES]
    kind = "text" if is_text(reader) else "film" if cameras else "vectors"
    names = feature_names(reader)
    tracks = []
    for key in curve_leaves(reader)[:MOST_LEAVES] if kind != "text" else ():
        with np.errstate(all="ignore"):
            values = sample_rows(reader, key)
            known = np.where(np.isfinite(values), values, np.nan)
            low, high = np.fmin.reduce(known, axis=0), np.fmax.reduce(known, axis=0)
        labels = feature_labels(reader.leaves[key].shape, names.get(join_key(key), ()))
        tracks.append(
            {"key": join_key(key), "labels": labels, "low": numbers(low), "high": numbers(high)}
        )
    returns = np.asarray(reader.episodes[("return",)], np.float64)
    ends = np.append(returns[np.isfinite(returns)], 0.0)
    so_far = {"low": numbers(ends.min()), "high": numbers(ends.max())}
    tracks.append({"key": RETURN_SO_FAR, "labels": ("",), **so_far})
    several = plural(len(cameras), "camera") if cameras else None
    if kind == "text":  # a row of a padded dataset is a document
        rows = plural(info.transitions, "token") if is_packed(reader) else None
    else:
        rows = plural(info.transitions, "step")
    facts = (
        plural(info.episodes, "document" if kind == "text" else "episode"),
        rows,
        several,
        human_bytes(info.bytes),
    )
    return {
        "id": info.id,
        "name": str(info.id).partition("@")[0],
        "identity": identity_of(reader.manifest),
        "kind": kind,
        "rate": stated if isinstance(stated, (int, float)) and 0 < stated <= FASTEST else None,
        "facts": [fact for fact in facts if fact],
        "cameras": [_camera(leaf) for leaf in cameras],
        "tracks": tracks,
        "episodes": reader.episode_count,
    }


def episode_data(shown: ShownEpisode) -> dict[str, Any]:
    """Return an episode as the script plays it."""
    return {
        "number": shown.number,
        "length": shown.length,
        "final": shown.final_observation,
        "steps": numbers(shown.steps),
        "tracks": {one.key: _values(one) for one in shown.curves},
        "cameras": {one.key: frames_data(one) for one in shown.frames},
        "texts": shown.texts,
        "notes": shown.notes,
    }


def _values(curves: Curves) -> Any:
    """Return the values of each feature; of many, codes of a byte from the least to the greatest."""
    if len(curves.values) <= LINES:
        return [numbers(row) for row in curves.values]
    low, high, codes = byte_levels(curves.values)
    return {"low": numbers(low), "high": numbers(high), "codes": codes}


def frames_data(frames: Frames) -> dict[str, Any]:
    """Return the pictures of a camera as the script shows them."""
    return {
        "steps": frames.steps,
        "kind": frames.files[0][0],
        "files": [base64.b64encode(content).decode() for _, content in frames.files],
        "note": frames.note,
    }


def findings_data(report: CheckReport) -> dict[str, Any]:
    """Return the findings of a check: a line, a panel as markup, and cameras that are always black."""
    named = {"info": "note"}
    counts = [
        element("b", plural(count, named.get(one, one)), class_=one)
        for one in reversed(SEVERITIES)
        if (count := sum(each.severity == one for each in report.findings))
    ]
    line = as_html((one, ", ") for one in counts[:-1]) + as_html(counts[-1:])
    black = {
        one.leaf: f"{one.message} ({one.code})"
        for one in report.findings
        if one.leaf and (one.code, one.severity) == ("RL050", "error")
    }
    return {
        "line": line or "No findings",
        "panel": sections.findings(report),
        "black": black,
    }


def marks_data(marks: Marks) -> dict[int, Any]:
    """Return the marks of a dataset as the script keeps them."""
    return {n: {"mark": one.mark or "", "note": one.note} for n, one in marks.episodes.items()}


def viewer_page(
    info: DatasetInfo,
    data: Mapping[str, Any],
    *,
    leaves: Html | None = None,
    note: str = "",
    served: bool = False,
) -> bytes:
    """Return the page of a dataset; `data` is that of `dataset_data` and more, see `viewer.js`.

    `leaves` are the charts and tables of its leaves, `note` says what a report leaves out.
    """
    return document(
        str(info.id),
        element("a", "Skip to the episode", href="#film", class_="skip"),
        _header(info, served),
        _list(served),
        _film(data["kind"], leaves, note),
        _keys(),
        element("p", id="toast", role="status"),
        element("div", id="live", class_="hidden", aria_live="polite"),
        element("div", data_block(data), id="data", hidden=True),
        class_="viewer",
        served=served,
    )


def _camera(leaf: Any) -> dict[str, Any]:
    layout = image_layout(leaf.dtype, leaf.shape)
    height, width = leaf.shape[1:3] if layout in {"first", "stack"} else leaf.shape[:2]
    label = join_key(leaf.key).removeprefix("observation/")
    return {"key": join_key(leaf.key), "label": label, "height": height, "width": width}


def _header(info: DatasetInfo, served: bool) -> Html:
    name, at, revision = str(info.id).partition("@")
    back = element("nav", element("a", "Datasets", href="/"), aria_label="Datasets")
    return element(
        "header",
        back if served else None,
        element("h1", name, element("small", at + revision, class_="revision")),
        element("p", class_="facts"),
        _panel("findings", "Findings", None),
        _panel("about", "Metadata", as_html((sections.description(info), sections.metadata(info)))),
        _button("keys", "Keys ", "?", aria_haspopup="dialog"),
        element("button", "Theme", id="theme", type="button", title="Light or dark"),
    )


def _panel(name: str, title: str, content: Html | None) -> Html:
    drop = element("div", content, class_="drop", tabindex=0, role="region", aria_label=title)
    return element("details", element("summary", title), drop, id=name)


def _list(served: bool) -> Html:
    where = "in a file next to the dataset, never in its data" if served else "in this browser"
    head = element("thead", element("tr"))
    table = element("table", head, element("tbody"))
    return element(
        "aside",
        element(
            "div",
            element("label", "Filter episodes", for_="where", class_="hidden"),
            element(
                "input",
                id="where",
                type="search",
                autocomplete="off",
                spellcheck="false",
                aria_describedby="count",
            ),
            element("div", id="chips"),
            element("p", id="same", class_="soft"),
            class_="filter",
        ),
        element("div", table, class_="rows", tabindex=0, role="region", aria_label="Episodes"),
        element(
            "div",
            element("div", (element("i") for _ in _SIGNS), class_="meter", aria_hidden="true"),
            element("p", element("span", id="tally"), element("span", id="count", role="status")),
            element("code", id="expression"),
            element(
                "div",
                _button("copy", "Copy"),
                _button("command", "Copy command"),
                _button("download", "Download marks"),
                class_="line",
            ),
            element("p", f"Marks are kept {where}.", class_="soft", id="kept"),
            class_="keep",
        ),
        aria_label="Episodes",
    )


def _film(kind: str, leaves: Html | None, note: str) -> Html:
    spread = element(
        "details",
        element("summary", "Distributions"),
        element("div", class_="histograms"),
        id="spread",
        open=kind != "film",
    )
    marks = (
        element(
            "button",
            f"{sign} {mark.capitalize()} ",
            element("kbd", mark[0]),
            type="button",
            class_=mark,
            data_mark=mark,
            aria_pressed="false",
        )
        for mark, sign in _SIGNS.items()
    )
    title = element(
        "div",
        element("div", element("h2", id="title"), element("p", id="facts", class_="soft")),
        element(
            "div",
            marks,
            element("label", "Note on this episode", for_="note", class_="hidden"),
            element("input", id="note", placeholder="Note (n)", autocomplete="off", maxlength=2000),
            class_="marks",
            role="group",
            aria_label="Mark this episode",
        ),
        class_="title",
    )
    speeds = {0.25: "¼×", 0.5: "½×", 1: "1×", 2: "2×", 4: "4×", 8: "8×"}
    ends = {"stop": "Stop at end", "loop": "Loop", "next": "Then next"}
    transport = element(
        "div",
        _button("play", "▶ Play ", "Space"),
        _button("previous", _arrow("↑ ", "Previous episode "), "k", title="Previous episode"),
        _button("next", _arrow("↓ ", "Next episode "), "j", title="Next episode"),
        element("output", id="step"),
        _select("speed", "Speed", speeds),
        _select("end", "At the end of the episode", ends),
        element("span", class_="right"),
        _button("pin", "Compare ", "c", aria_pressed="false"),
        _button("full", "Full screen ", "f"),
        class_="transport",
    )
    timeline = element(
        "div",
        element("div", id="tracks"),
        element("label", "Step", for_="seek", class_="hidden"),
        element("input", id="seek", type="range", min=0, value=0),
        element("div", element("div", id="cursor"), id="over"),
        id="timeline",
    )
    rest = element(
        "details",
        element("summary", "Features, statistics and schema"),
        element("div", leaves, class_="sheet"),
        id="leaves",
    )
    played = (
        element("div", id="cameras"),
        element("p", id="said", class_="soft"),
        transport,
        timeline,
        element("p", id="constant", class_="soft"),
        element("div", id="notes", class_="soft"),
    )
    missing = element("p", id="missing", hidden=True)
    document_of = element("article", id="document", class_="sheet")
    return element(
        "main",
        spread if kind != "film" else None,
        title,
        missing,
        played if kind != "text" else document_of,
        element("p", note, class_="soft", id="embedded") if note else None,
        spread if kind == "film" else None,
        rest,
        id="film",
        tabindex=-1,
    )


def _keys() -> Html:
    letters = element("input", id="letters", type="checkbox", checked=True)
    return element(
        "dialog",
        element("h2", "Keys", id="keys-title"),
        element("ul"),
        element(
            "p",
            element("label", letters, " Single letters work as keys"),
            _button("close", "Close"),
            class_="line",
        ),
        id="help",
        aria_labelledby="keys-title",
    )


def _arrow(sign: str, said: str) -> Html:
    spoken = element("span", said, class_="hidden")
    return as_html((element("span", sign, aria_hidden="true"), spoken))


def _button(name: str, label: str, key: str | None = None, **attributes: object) -> Html:
    shown = element("kbd", key) if key else None
    return element("button", label, shown, id=name, type="button", **attributes)


def _select(name: str, label: str, options: Mapping[Any, str]) -> Html:
    each = (element("option", text, value=value) for value, text in options.items())
    return element("select", each, id=name, aria_label=label)
