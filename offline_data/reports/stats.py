"""Statistics of a dataset: per leaf and per episode, in one pass with bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from offline_data.episodes.fields import join_key, next_of
from offline_data.errors import ManifestError
from offline_data.progress import SILENT
from offline_data.store.layout import EPISODE, OBSERVATIONS, TED
from offline_data.store.statistics import Moments, moments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from offline_data.episodes.fields import Key
    from offline_data.progress import Progress
    from offline_data.store.layout import LeafSpec
    from offline_data.store.reader import DatasetReader
    from offline_data.store.statistics import Number

    Chunk: TypeAlias = tuple[Key, NDArray[np.generic]]
    """Some rows `[n, …]` of the leaf with this TED key; text as codes."""

CHUNK_ITEMS = 1 << 20
"""Items per chunk, so that a few float64 copies of it take tens of MiB at most."""

MOST_COMMON = 5
"""Number of most common words listed for a text leaf."""


@dataclass(frozen=True)
class LeafStats:
    """Statistics over the finite items of a numeric leaf."""

    key: str
    """TED key, parts joined by `/`."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of one row."""
    rows: int
    """Number of rows: `N`, or for observations one more per episode whose last one is known."""
    min: Number | None
    """None for complex leaves and if no item is finite, like the next three."""
    max: Number | None
    mean: float | None
    std: float | None
    """Population standard deviation."""
    nan: int
    inf: int


@dataclass(frozen=True)
class TextStats:
    """Statistics of a text leaf."""

    key: str
    rows: int
    distinct: int
    """Number of distinct words that occur."""
    missing: int
    """Number of items without text in the source."""
    most_common: tuple[tuple[str, int], ...]
    """Up to `MOST_COMMON` words with their counts, most frequent first."""


@dataclass(frozen=True)
class Spread:
    """Distribution of the finite values of one quantity over the episodes."""

    min: float
    median: float
    mean: float
    max: float


@dataclass(frozen=True)
class EpisodeStats:
    """Statistics of episodes."""

    length: Spread | None
    returns: Spread | None
    """Undiscounted returns; None if none is finite."""
    terminated: float
    """Fraction of episodes that end terminated, in [0, 1]."""
    truncated: float
    without_final_observation: int
    """Number of episodes whose observation after the last action is unknown."""


@dataclass(frozen=True)
class DatasetStats:
    """All statistics of one dataset, leaves ordered by key."""

    id: str
    transitions: int
    episodes: int
    leaves: tuple[LeafStats, ...]
    texts: tuple[TextStats, ...]
    per_episode: EpisodeStats


def dataset_stats(
    reader: DatasetReader, progress: Progress = SILENT, *, chunk_items: int = CHUNK_ITEMS
) -> DatasetStats:
    """Compute the statistics of every leaf; reads each file once, `chunk_items` items at a time.

    Raises `ManifestError` if a file is missing or damaged.
    """
    leaves = reader.step_leaves | reader.observation_leaves
    rows = dict.fromkeys(sorted(leaves.keys() - {EPISODE}), 0)
    moments = {key: Moments() for key in rows if not leaves[key].text}
    counts = {key: np.zeros(1, np.int64) for key in rows if leaves[key].text}
    # Slightly more than is read if final observations are missing.
    size = sum(leaves[key].nbytes for key in rows) * reader.transitions
    size += sum(leaf.nbytes for leaf in reader.observation_leaves.values()) * reader.episode_count
    with progress.task("stats", size, "B") as task:
        for walk in (_step_chunks, _observation_chunks):
            for key, values in walk(reader, chunk_items):
                rows[key] += len(values)
                if key in counts:
                    counts[key] = counts[key] + _count_codes(reader, key, values)
                else:
                    moments[key] = moments[key].merge(moments_of(np.asarray(values)))
                task.advance(values.nbytes)
    per_episode = EpisodeStats(
        _spread(reader.lengths),
        _spread(np.asarray(reader.episodes[("return",)])),
        float(np.asarray(reader.episodes[("terminated",)]).astype(float).mean()),
        float(np.asarray(reader.episodes[("truncated",)]).astype(float).mean()),
        len(_without_final(reader)),
    )
    return DatasetStats(
        reader.manifest.id,
        reader.transitions,
        reader.episode_count,
        tuple(_leaf_stats(leaves[key], rows[key], seen) for key, seen in moments.items()),
        tuple(_text_stats(reader, key, rows[key], found) for key, found in counts.items()),
        per_episode,
    )


def _without_final(reader: DatasetReader) -> NDArray[np.int64]:
    """Return the numbers of the episodes whose last observation is unknown."""
    return np.flatnonzero(~np.asarray(reader.episodes[("final_observation",)], dtype=bool))


def _spread(values: NDArray[np.generic]) -> Spread | None:
    """Summarise one number per episode; None if none is finite."""
    numbers = values.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    if len(finite) == 0:
        return None
    figures = finite.min(), np.median(finite), finite.mean(), finite.max()
    return Spread(*map(float, figures))


def _leaf_stats(leaf: LeafSpec, rows: int, seen: Moments) -> LeafStats:
    mean, std = (float(seen.mean), float(seen.std)) if seen.count else (None, None)
    figures = (seen.minimum, seen.maximum, mean, std, seen.nan, seen.inf)
    return LeafStats(join_key(leaf.key), leaf.dtype, leaf.shape, rows, *figures)


def _count_codes(reader: DatasetReader, key: Key, codes: NDArray[np.generic]) -> NDArray[np.int64]:
    """Count how often each code occurs, from -1 on; raises `ManifestError` if one has no word."""
    known = len(reader.words(key) or ())
    places = codes.astype(np.int64).ravel() + 1
    if places.size and not 0 <= places.min() <= places.max() <= known:
        raise ManifestError(
            f"Text leaf {join_key(key)!r} has codes outside its {known} words",
            hint="offline-data verify names damaged files",
        )
    return np.bincount(places, minlength=known + 1)


def _text_stats(reader: DatasetReader, key: Key, rows: int, counts: NDArray[np.int64]) -> TextStats:
    """Return the statistics of a text leaf; equally frequent words are ordered by code."""
    words, missing, counts = reader.words(key) or [], int(counts[0]), counts[1:]
    order = np.argsort(-counts, kind="stable")[:MOST_COMMON]
    common = tuple((words[i], int(counts[i])) for i in order if counts[i])
    return TextStats(join_key(key), rows, int((counts > 0).sum()), missing, common)


def _step_chunks(reader: DatasetReader, items: int) -> Iterator[Chunk]:
    """Yield every row of every step leaf except `episode`; the rows of a leaf are in order."""
    leaves = {key: leaf for key, leaf in reader.step_leaves.items() if key != EPISODE}
    for group in _by_file(leaves):
        for begin, end in _ranges(reader.transitions, group.values(), items):
            for key in group:
                yield key, reader.step(key)[begin:end]


def _observation_chunks(reader: DatasetReader, items: int) -> Iterator[Chunk]:
    """Yield each known observation once: before each action and after the last one.

    The repeated row of an episode without a final observation is left out.
    """
    without = _without_final(reader)
    last = reader.starts + reader.lengths - 1
    if TED in reader.manifest.tables:
        final = np.delete(last, without)
        for key, leaf in reader.observation_leaves.items():
            for begin, end in _ranges(reader.transitions, [leaf], items):
                yield key, reader.leaf(TED, key)[begin:end]
            for begin, end in _ranges(len(final), [leaf], items):
                yield key, reader.leaf(TED, next_of(key))[final[begin:end]]
        return
    repeats = last[without] + without + 1
    for group in _by_file(reader.observation_leaves):
        for begin, end in _ranges(reader.transitions + len(last), group.values(), items):
            first, stop = np.searchsorted(repeats, [begin, end])
            drop = repeats[first:stop] - begin
            for key in group:
                values = reader.leaf(OBSERVATIONS, key)[begin:end]
                yield key, np.delete(values, drop, axis=0) if len(drop) else values


def _by_file(leaves: dict[Key, LeafSpec]) -> Iterator[dict[Key, LeafSpec]]:
    """Group leaves that share a file, so that its rows are read once for all of them."""
    ordered = sorted(leaves.items(), key=lambda item: item[1].file)
    for _, group in groupby(ordered, key=lambda item: item[1].file):
        yield dict(group)


def _ranges(rows: int, leaves: Iterable[LeafSpec], items: int) -> Iterator[tuple[int, int]]:
    """Split rows into ranges of about `items` items over all these leaves."""
    step = max(1, items // max(1, sum(prod(leaf.shape) for leaf in leaves)))
    return ((begin, min(begin + step, rows)) for begin in range(0, rows, step))
