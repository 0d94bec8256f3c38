"""The first page of `browse`: datasets on this disk, and those of all catalogues that a search finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import numpy as np

from offline_data.analysis.frames import image_leaves
from offline_data.base.errors import MissingDependencyError, OfflineDataError
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.html import Html, as_html, element, table_of
from offline_data.episode.fields import REWARD, join_key
from offline_data.reports.pages import sections
from offline_data.reports.pages.episodes import curve_leaves, encode_picture, read_pictures
from offline_data.reports.pages.page import page, section
from offline_data.reports.pages.texts import is_text
from offline_data.reports.pictures import leaf_curves, space_evenly, timeline
from offline_data.store.library import Entry
from offline_data.store.reader import DatasetReader, open_reader

if TYPE_CHECKING:
    from offline_data.formats.search import CatalogDataset

_CHECKED = 64 << 20  # bytes of a dataset that is checked for the list
_WIDE, _HIGH, _POINTS = 72, 48, 40  # size of a picture in pixels, points of a curve
_MOST_FOUND = 50  # datasets of catalogues that are shown

_COMMANDS = {
    "See it at work, offline": (
        "offline-data demo",
        "Records a small dataset with a camera, checks it and trains on it.",
    ),
    "Get a published one": (
        "offline-data download minari:D4RL/door/human-v2",
        "25 human demonstrations of a hand that opens a door, 6,729 steps.",
    ),
    "Bring your own": (
        "offline-data convert FOLDER NAME",
        "LeRobot, RLDS, Minari, robomimic, HDF5, Zarr, Parquet, CSV, folders of npz or images.",
    ),
}


class Kind(NamedTuple):
    """Kind of a dataset, by which its page begins with a film, charts or documents."""

    name: str  # `images`, `vectors` or `text`
    content: str  # its cameras, or sizes of its actions and observations


def kind_of(reader: DatasetReader) -> Kind:
    """Return the kind of a dataset; reads no rows."""
    if is_text(reader):
        return Kind("text", plural(reader.episode_count, "document"))
    cameras = image_leaves(reader)
    words = [leaf for leaf in reader.leaves.values() if leaf.text]
    if cameras:
        sizes = {" × ".join(map(str, leaf.shape)) for leaf in cameras.values()}
        content = f"{plural(len(cameras), 'camera')}, {', '.join(sorted(sizes))}"
        return Kind("images", content + ", text" * bool(words))
    leaves = reader.leaves
    sizes_of = [
        f"{join_key(key).removeprefix('observation/')} {prod(leaves[key].shape)}"
        for key in curve_leaves(reader)
        if key[0] in {"action", "observation"}
    ]
    return Kind("vectors", ", ".join(sizes_of[:4]))


def datasets_page(root: Path, entries: Sequence[Entry], notes: Iterable[str]) -> bytes:
    """Return the page; a server has the pictures, findings and search that it asks for."""
    rows = []
    notes = list(notes)
    for entry in entries:
        try:
            kind = kind_of(open_reader(entry.path))
        except OfflineDataError as error:
            notes.append(f"damaged: {error.message}")
            continue
        rows.append(_row(entry, kind))
    search = element(
        "input",
        id="search",
        type="search",
        placeholder="Search this disk and the catalogues of all sources",
        aria_label="Search this disk and the catalogues of all sources",
        autocomplete="off",
        data_search="/part/search?q=",
    )
    picture = element("span", "Picture", class_="hidden")
    titles = (picture, "Dataset", "Kind", "Findings", "Licence", "Made")
    found = table_of((*titles, "Steps", "Episodes", "Size"), rows, numbers=3)
    size = human_bytes(sum(entry.bytes for entry in entries))
    return page(
        "Datasets",
        search,
        section("datasets", f"{plural(len(rows), 'dataset')} on this disk, {size}", found)
        if rows
        else _empty(),
        element("section", id="elsewhere", hidden=True, aria_live="polite"),
        (element("p", note, class_="soft") for note in notes),
        element("p", "Under ", element("code", root), class_="soft"),
        served=True,
    )


def search_part(found: Sequence[CatalogDataset], notes: Iterable[str]) -> Html:
    """Return the datasets of a search that are not on this disk, each with the command that gets it."""
    away = [one for one in found if not one.here]
    rows = (
        (
            as_html((element("b", one.id), element("p", one.summary, class_="soft"))),
            as_html((element("code", one.command), _copy(one.command))),
            one.licence or "",
            "" if one.episodes is None else f"{one.episodes:,}",
            "" if one.bytes is None else human_bytes(one.bytes),
        )
        for one in away[:_MOST_FOUND]
    )
    titles = ("Dataset", "Command", "Licence", "Episodes", "Size")
    more = f", the first {_MOST_FOUND}" if len(away) > _MOST_FOUND else ""
    return as_html(
        (
            element("h2", f"Not on this disk: {len(away):,}{more}"),
            table_of(titles, rows, numbers=2) if away else None,
            (element("p", note, class_="soft") for note in notes),
        )
    )


def thumbnail(reader: DatasetReader) -> tuple[str, bytes]:
    """Return media type and content of a picture of a dataset: a frame, or the curve of a return."""
    middle = reader.episode_count // 2
    begin, length = int(reader.starts[middle]), int(reader.lengths[middle])
    cameras = [*image_leaves(reader).values()]
    if cameras:
        try:
            rows = np.array([begin + length // 2])
            pixels, _ = read_pictures(reader, cameras[0].key, rows, 2 * _WIDE)
            return encode_picture(pixels[0])
        except MissingDependencyError:
            pass
    curves = [] if is_text(reader) else curve_leaves(reader)
    if not curves:
        path = "".join(f"M8,{y}H{x}" for y, x in ((10, 62), (17, 56), (24, 64), (31, 48), (38, 60)))
    else:
        steps = space_evenly(0, length, _POINTS)
        rewarded = curves[0] == REWARD
        values = (
            timeline(reader, middle, _POINTS).cumulated
            if rewarded
            else leaf_curves(reader, curves[0], middle, (), steps).values[0]
        )
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        with np.errstate(over="ignore"):
            span = float(np.ptp(values)) or 1.0
        share = np.clip((values - values.min()) / span, 0, 1)
        x = np.linspace(4, _WIDE - 4, len(share))
        points = (
            f"{a:.1f},{b:.1f}" for a, b in zip(x, _HIGH - 6 - share * (_HIGH - 12), strict=True)
        )
        path = f"M{'L'.join(points)}"
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDE} {_HIGH}'>"
        f"<path fill='none' stroke='#2f6fd0' stroke-width='2' d='{path}'/></svg>"
    )
    return "image/svg+xml", svg.encode()


def address(path: str, dataset: str) -> str:
    """Return the address of a page or part of a dataset."""
    return f"/{path}?id={quote(dataset, safe='')}"


def _row(entry: Entry, kind: Kind) -> tuple[object, ...]:
    name, manifest = str(entry.id), entry.manifest
    picture = element(
        "img",
        src=address("part/picture", name),
        alt="",
        width=_WIDE,
        height=_HIGH,
        loading="lazy",
        class_="picture",
    )
    link = element("a", sections.dataset_name(name), href=address("dataset", name))
    small = entry.bytes <= _CHECKED
    findings = element("span", data_load=address("part/count", name)) if small else "not checked"
    counts = manifest.counts
    return (
        picture,
        as_html((link, element("p", kind.content, class_="soft"))),
        kind.name,
        findings,
        manifest.licence or "not stated",
        manifest.created[:10],
        f"{int(counts['transitions']):,}",
        f"{int(counts['episodes']):,}",
        human_bytes(entry.bytes),
    )


def _empty() -> Html:
    cards = (
        element(
            "li",
            element("b", title),
            element("p", element("code", command), _copy(command)),
            element("p", said, class_="soft"),
        )
        for title, (command, said) in _COMMANDS.items()
    )
    return element(
        "section",
        element("h2", "No dataset on this disk yet. Three commands to try:"),
        element("ul", cards, class_="cards"),
        id="datasets",
    )


def _copy(command: str) -> Html:
    return element("button", "Copy", type="button", data_copy=command, aria_label=f"Copy {command}")
