"""A report: one self-contained HTML file about a dataset, for people who do not have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.analysis.episodes import episode_quality
from offline_data.analysis.info import entry_info, schema_table
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.errors import UsageError
from offline_data.base.files import human_bytes
from offline_data.base.ids import unknown
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.document.html import Html, as_html, element, render
from offline_data.document.page import ReportPart
from offline_data.reports.pages import sections
from offline_data.reports.pages.distributions import chart_of, leaf_parts, of_episodes
from offline_data.reports.pages.episodes import example_episodes, read_episode
from offline_data.reports.pages.page import page, section
from offline_data.reports.pages.table import document_table, episode_table, quality_table
from offline_data.reports.pages.texts import Decode, ShownDocuments, is_text
from offline_data.reports.pages.viewer import (
    dataset_data,
    episode_data,
    findings_data,
    marks_data,
    viewer_page,
)
from offline_data.store.library import Entry
from offline_data.store.marks import read_marks
from offline_data.store.reader import DatasetReader, open_reader

if TYPE_CHECKING:
    from offline_data.analysis.checks.finding import CheckReport
    from offline_data.analysis.info import DatasetInfo

# Bytes of the episodes in a report. Its table and charts are bounded, too: a report of a dataset with
# fewer than a few hundred leaves takes at most about 8 MiB.
EPISODES_BYTES, LARGEST_BYTES = 4 << 20, 64 << 20  # by default, and where they are chosen
_LEAST_EPISODES = 12  # among which the bytes of pictures are divided

MOST_LISTED = 10_000  # episodes in the table of a report

PARTS: tuple[ReportPart, ...] = get_args(ReportPart)

# Bytes of the pictures of a page of one episode, their number for each camera, and their longer
# side: so that the page can be mailed.
EPISODE_BYTES, EPISODE_FRAMES, EPISODE_SIDE = 12 << 20, 600, 320


def report_page(
    entry: Entry,
    *,
    only: Collection[str] = PARTS,
    episodes: Sequence[int] | None = None,
    workers: int = 1,
    progress: Progress = SILENT,
    decode: Decode | None = None,
    budget: int = EPISODES_BYTES,
) -> bytes:
    """Return a page about a dataset; reads it three times, in bounded memory.

    The page loads nothing, and names no folder of this machine. It plays `episodes`, with fewer
    frames if they are many; None: outliers, the best and worst by return and others at random, as
    many as fit `budget` bytes; of chosen ones as many as fit `LARGEST_BYTES`. `decode` turns tokens
    of a text dataset into text; None: their numbers are shown. `only` are the `PARTS` to compute;
    episodes bring metadata with them. Raises `ManifestError` or `FormatError` if a file is missing
    or damaged, `NotFoundError` without such an episode, `UsageError` without such a part.
    """
    for part in only:
        if part not in PARTS:
            raise unknown(UsageError, "A report has no part", part, PARTS)
    reader, info, found = open_reader(entry.path), entry_info(entry), None
    if "findings" in only:
        found = run_checks([entry.path], select_rules(), workers=workers, progress=progress)
    if "episodes" not in only:
        return _sections(reader, info, found, only, decode, progress)
    data = {
        **dataset_data(reader, info),
        **({"findings": findings_data(found)} if found is not None else {}),
        "marks": marks_data(read_marks(entry.path, entry.manifest)),
    }
    most = budget if episodes is None else LARGEST_BYTES
    if is_text(reader):
        documents = ShownDocuments.of(reader)
        count = len(documents.lengths)
        numbers = episodes or np.random.default_rng(0).permutation(count).tolist()
        shown = _embed(numbers, lambda n: documents.show(n, decode), most)
        listed = np.arange(min(count, MOST_LISTED))
        table = document_table(documents, len(listed), decode)
        data["unmarked"] = not documents.are_episodes
        charts = documents.summary(decoded=decode is not None) if "features" in only else None
    else:
        stats = dataset_stats(reader, progress) if "features" in only else None
        quality, count = episode_quality(reader, progress), reader.episode_count
        numbers = episodes or example_episodes(reader, quality)
        each = budget // max(_LEAST_EPISODES, len(episodes or ()))

        def read(number: int) -> dict[str, Any]:
            return episode_data(read_episode(reader, number, budget=each))

        shown = _embed(numbers, read, most)
        listed = _listed(reader, shown, quality.order("outliers"))
        table = [*episode_table(reader, listed), *quality_table(quality, listed)]
        charts = None if stats is None else leaf_parts(reader, stats, next(iter(shown)))
    return viewer_page(
        info,
        {**data, "listed": listed.tolist(), "columns": table, "shown": shown},
        leaves=as_html((charts, _schema(info))),
        note=_said(len(shown), len(listed), count, chosen=episodes is None),
    )


def episode_page(entry: Entry, number: int, *, budget: int | None = None) -> bytes:
    """Return a page that plays one episode, its pictures of at most `budget` bytes (`EPISODE_BYTES`).

    Raises `NotFoundError` without such an episode, `UsageError` if the dataset is text, and as
    `report_page`.
    """
    reader = open_reader(entry.path)
    if is_text(reader):
        raise UsageError(f"{entry.id} is text, which has no steps to play", hint="`report ID`")
    shown = read_episode(
        reader, number, pictures=EPISODE_FRAMES, side=EPISODE_SIDE, budget=budget or EPISODE_BYTES
    )
    media = sum(len(content) for one in shown.frames for _, content in one.files)
    size = f"Images in this file: {human_bytes(media)}." if media else "No images."
    info, listed = entry_info(entry), np.array([number])
    data = {
        **dataset_data(reader, info),
        "listed": [number],
        "columns": episode_table(reader, listed),
        "shown": {number: episode_data(shown)},
    }
    return viewer_page(info, data, leaves=_schema(info), note=size)


def _sections(
    reader: DatasetReader,
    info: DatasetInfo,
    found: CheckReport | None,
    only: Collection[str],
    decode: Decode | None,
    progress: Progress,
) -> bytes:
    """Return a page of `PARTS` other than the episodes."""
    parts: dict[str, Html] = {}
    if "features" in only and is_text(reader):
        documents = ShownDocuments.of(reader)
        parts["Features"] = as_html((documents.summary(decoded=decode is not None), _schema(info)))
    elif "features" in only:
        stats = dataset_stats(reader, progress)
        episodes = element("div", map(chart_of, of_episodes(reader, stats)), class_="grid")
        leaves = leaf_parts(reader, stats, next(example_episodes(reader)))
        parts["Features"] = as_html((episodes, leaves, _schema(info)))
    if found is not None:
        parts["Findings"] = sections.findings(found)
    if "metadata" in only:
        parts["Metadata"] = as_html((sections.description(info), sections.metadata(info)))
    return page(
        str(info.id),
        (section(name.lower(), name, content) for name, content in parts.items()),
        links=[(f"#{name.lower()}", name) for name in parts],
    )


def _embed(numbers: Iterable[int], read: Callable[[int], Any], most: int) -> dict[int, Any]:
    """Return what is read of each number, until it takes more than `most` bytes."""
    shown: dict[int, Any] = {}
    for number in numbers:
        one = read(number)
        most -= len(json.dumps(one))
        if most < 0 and shown:
            break
        shown[number] = one
    return shown


def _listed(reader: DatasetReader, shown: Iterable[int], unusual: Any) -> Any:
    """Return the episodes of the table, ascending: all, or those that play and outliers."""
    if reader.episode_count <= MOST_LISTED:
        return np.arange(reader.episode_count)
    first = dict.fromkeys([*shown, *unusual[:MOST_LISTED].tolist()])
    return np.sort([*first][:MOST_LISTED])


def _schema(info: Any) -> Html:
    return as_html((element("h3", "Schema"), render(schema_table(info))))


def _said(shown: int, listed: int, count: int, *, chosen: bool) -> str:
    """Return what a report leaves out, in sentences."""
    said = []
    if shown < count:
        why = ": outliers, the best and the worst by return, and some at random" if chosen else ""
        said.append(f"This file plays {shown:,} of {plural(count, 'episode')}{why}.")
        said.append("offline-data browse plays all of them.")
    if listed < count:
        said.append(f"{listed:,} are in the list, those with the most outliers among them.")
    return " ".join(said)
