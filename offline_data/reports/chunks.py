"""Walk over the leaves of a dataset directory in chunks of bounded size, each file once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from offline_data.store.layout import EPISODE, EPISODES, OBSERVATIONS, TED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from offline_data.episodes.fields import Key
    from offline_data.store.layout import LeafSpec
    from offline_data.store.reader import DatasetReader

CHUNK_ITEMS = 1 << 20
"""Items of one chunk, so that a few float64 copies of it take tens of MiB at most."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of one leaf."""

    key: Key
    """TED key: `("action",)`, `("next", "reward")`, `("observation", …)`."""
    values: NDArray[np.generic]
    """`[n, …]` rows; text as codes."""


def step_chunks(reader: DatasetReader, items: int = CHUNK_ITEMS) -> Iterator[Chunk]:
    """Yield every row of every step leaf but `episode`; a leaf's rows come in order."""
    leaves = {key: leaf for key, leaf in reader.step_leaves.items() if key != EPISODE}
    for group in _by_file(leaves):
        for begin, end in _spans(reader.transitions, _width(group), items):
            for key in group:
                yield Chunk(key, reader.step(key)[begin:end])


def observation_chunks(reader: DatasetReader, items: int = CHUNK_ITEMS) -> Iterator[Chunk]:
    """Yield every observation the source has, once: before each action and after the last one.

    The repeated row of an episode without a final observation is left out.
    """
    walk = _ted_observations if TED in reader.manifest.tables else _compact_observations
    return walk(reader, items)


def _compact_observations(reader: DatasetReader, items: int) -> Iterator[Chunk]:
    rows = reader.manifest.tables[OBSERVATIONS].rows
    repeats = _final_rows(reader, known=False) + np.flatnonzero(~_final(reader)) + 1
    for group in _by_file(reader.observation_leaves):
        for begin, end in _spans(rows, _width(group), items):
            first, stop = np.searchsorted(repeats, [begin, end])
            drop = repeats[first:stop] - begin
            for key in group:
                values = reader.leaf(OBSERVATIONS, key)[begin:end]
                yield Chunk(key, np.delete(values, drop, axis=0) if len(drop) else values)


def _ted_observations(reader: DatasetReader, items: int) -> Iterator[Chunk]:
    last = _final_rows(reader, known=True)
    for key, leaf in reader.observation_leaves.items():
        width = _width({key: leaf})
        for begin, end in _spans(reader.transitions, width, items):
            yield Chunk(key, reader.leaf(TED, key)[begin:end])
        for begin, end in _spans(len(last), width, items):
            yield Chunk(key, reader.leaf(TED, ("next", *key))[last[begin:end]])


def _final(reader: DatasetReader) -> NDArray[np.bool_]:
    return np.asarray(reader.leaf(EPISODES, ("final_observation",)), dtype=bool)


def _final_rows(reader: DatasetReader, *, known: bool) -> NDArray[np.int64]:
    """Return the last step row of the episodes whose final observation is (not) the source's."""
    last: NDArray[np.int64] = reader.starts + reader.lengths - 1
    return np.compress(_final(reader) == known, last)


def _by_file(leaves: dict[Key, LeafSpec]) -> Iterator[dict[Key, LeafSpec]]:
    """Group leaves that share a file, so that its rows are read once for all of them."""
    ordered = sorted(leaves.items(), key=lambda item: item[1].file)
    for _, group in groupby(ordered, key=lambda item: item[1].file):
        yield dict(group)


def _width(leaves: dict[Key, LeafSpec]) -> int:
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves.values())


def _spans(rows: int, width: int, items: int) -> Iterator[tuple[int, int]]:
    step = max(1, items // max(1, width))
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)
