"""Blocks of rows that all rules share, so that a dataset is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_data.episode.fields import Key, join_key, next_of
from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import EPISODE, OBSERVATIONS, TED, LeafSpec
from offline_data.store.reader import DatasetReader

BLOCK_ITEMS = 1 << 19  # numbers of all leaves of a file in a block: a leaf's part fits the cache

_REDUCED = 1024  # numbers of a row that numpy reduces fast

_SOME_FEATURES = 32  # features of a row that are examined before the others

_PIECE = 1 << 14  # numbers that are mixed at once, which fit the cache

_LEAST_SIDE = 8  # height and width of the smallest image; smaller rows of uint8 are grids


class RowPlace(NamedTuple):
    """Position of a value."""

    leaf: str
    """TED key; `next/observation` for the observation after the last action of an episode."""
    episode: int
    row: int
    """Transition, counted from 0 over the whole dataset."""


class RowBlock:
    """Some consecutive transitions of a dataset; arrays are made when first requested, and shared.

    The transitions are `[first, stop)`; the ends of a block need not be ends of episodes.
    """

    def __init__(self, reader: DatasetReader, first: int, stop: int) -> None:
        self.reader, self.first, self.stop = reader, first, stop
        self._values: dict[Key, NDArray[Any] | EncodedColumn] = {}
        self._extremes: dict[Key, tuple[NDArray[Any], NDArray[Any]]] = {}
        self.shared: dict[Key, Any] = {}  # values derived from a leaf that rules of one kind share

    def __len__(self) -> int:
        return self.stop - self.first

    @cached_property
    def first_episode(self) -> int:
        """Episode of the first transition."""
        return int(np.searchsorted(self.reader.starts, self.first, side="right")) - 1

    @cached_property
    def last_episode(self) -> int:
        """Episode of the last transition."""
        return int(np.searchsorted(self.reader.starts, self.stop - 1, side="right")) - 1

    @cached_property
    def episodes(self) -> NDArray[np.int64]:
        """Episode of each transition, `[n]`."""
        numbers = np.arange(self.first_episode, self.last_episode + 1)
        starts = self.reader.starts[numbers]
        stops = np.minimum(starts + self.reader.lengths[numbers], self.stop)
        return np.repeat(numbers, stops - np.maximum(starts, self.first))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Places in the block, ascending, of transitions that are the last of an episode."""
        numbers = slice(self.first_episode, self.last_episode + 1)
        last = self.reader.starts[numbers] + self.reader.lengths[numbers] - 1
        return np.asarray(last[last < self.stop] - self.first)

    @cached_property
    def known_ends(self) -> NDArray[np.int64]:
        """Those of `ends` after which the observation is known."""
        return self.ends[self.reader.final[self.first_episode :][: len(self.ends)]]

    def values(self, key: Key) -> NDArray[Any] | EncodedColumn:
        """Return each value of a feature once.

        A feature of steps (`next/reward`) has a row for each transition. A feature of observations has
        one for each transition, before the action, and one after each of `known_ends`:

        ```
        transition      0  1  2 | 3  4         an episode of three, and one of two that continues
        row             0  1  2  3 | 4  5
        ```

        Encoded features stay encoded; `numpy.asarray` of some rows of them decodes these.
        """
        if key not in self._values:
            self._values[key] = self._read(key)
        return self._values[key]

    def numbers(self, key: Key) -> NDArray[Any]:
        """Return `values` of a feature that is not encoded."""
        found = self.values(key)
        return found if isinstance(found, np.ndarray) else np.asarray(found)

    def extremes(self, key: Key) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return minimum and maximum of each dimension of `values`, `[*shape]`; NaN where one is."""
        if key not in self._extremes:
            values = self.numbers(key)
            self._extremes[key] = _reduce(np.minimum, values), _reduce(np.maximum, values)
        return self._extremes[key]

    def row_place(self, key: Key, row: int) -> RowPlace:
        """Return the place of transition `row` of the block."""
        return RowPlace(join_key(key), int(self.episodes[row]), self.first + row)

    def place(self, key: Key, index: int) -> RowPlace:
        """Return the place of row `index` of `values(key)`."""
        if key not in self.reader.observation_leaves:
            return self.row_place(key, index)
        finals = _final_rows(self.known_ends)
        at = index - int(np.searchsorted(finals, index, side="right"))
        leaf = join_key(next_of(key) if index in finals else key)
        return RowPlace(leaf, int(self.episodes[at]), self.first + at)

    def _read(self, key: Key) -> NDArray[Any] | EncodedColumn:
        reader, chosen = self.reader, slice(self.first, self.stop)
        if key not in reader.observation_leaves:
            found: NDArray[Any] = reader.step(key)[chosen]
        elif TED in reader.manifest.tables:
            root, after = reader.leaf(TED, key)[chosen], reader.leaf(TED, next_of(key))[chosen]
            found = np.insert(root, self.known_ends + 1, after[self.known_ends], axis=0)
        else:
            begin, count = self.first + self.first_episode, len(self) + len(self.ends)
            found = reader.leaf(OBSERVATIONS, key)[begin : begin + count]
            if len(self.known_ends) < len(self.ends):
                repeated = _final_rows(self.ends)[~np.isin(self.ends, self.known_ends)]
                found = found[np.delete(np.arange(count), repeated)]
        return found


def _final_rows(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of observations after the transitions `ends`, the only ones that have one."""
    return ends + np.arange(len(ends)) + 1


def blocks(reader: DatasetReader, leaves: Iterable[LeafSpec], items: int) -> Iterator[RowBlock]:
    """Cut a dataset into blocks of about `items` numbers of these features."""
    step = max(1, items // max(1, sum(prod(leaf.shape) for leaf in leaves)))
    for first in range(0, reader.transitions, step):
        yield RowBlock(reader, first, min(first + step, reader.transitions))


def all_leaves(reader: DatasetReader) -> dict[Key, LeafSpec]:
    """Return the features of steps and of observations, without `episode`, by root key."""
    return {key: leaf for key, leaf in reader.leaves.items() if key != EPISODE}


def is_image(leaf: LeafSpec) -> bool:
    """Return True if rows are encoded images, or uint8 and shaped as an image or a stack of some."""
    shaped = len(leaf.shape) in {2, 3} and min(sorted(leaf.shape)[-2:]) >= _LEAST_SIDE
    return leaf.encoding is not None or (leaf.dtype == "uint8" and shaped)


def is_numeric(leaf: LeafSpec) -> bool:
    """Return True for a feature of real numbers, one at least, that is not an image, text or flag."""
    other = leaf.text or is_image(leaf) or leaf.dtype == "bool" or "complex" in leaf.dtype
    return prod(leaf.shape) > 0 and not other


def numeric(leaves: Mapping[Key, LeafSpec], root: str = "") -> dict[Key, LeafSpec]:
    """Return those of some features that `is_numeric` accepts, below one root or all."""
    return {k: one for k, one in leaves.items() if is_numeric(one) and root in ("", k[0])}


def zero_rows(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the rows of `[n, features]` that are 0 throughout, ascending."""
    stride = max(1, values.shape[1] // _SOME_FEATURES)
    rows = np.arange(len(values))
    for feature in values.T[::stride]:  # most rows differ from 0 in one of these
        rows = (
            np.flatnonzero(feature == 0) if len(rows) == len(values) else rows[feature[rows] == 0]
        )
        if not len(rows):
            break
    return rows[~values[rows].any(axis=1)]


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit numbers, one to one (the finalizer of SplitMix64)."""
    found = values.copy()
    flat = found.reshape(-1)
    for first in range(0, flat.size, _PIECE):
        part = flat[first : first + _PIECE]
        part ^= part >> np.uint64(30)
        for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
            part *= np.uint64(factor)
            part ^= part >> np.uint64(shift)
    return np.asarray(found)


def _reduce(function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """Reduce rows `[n, *shape]` to `[*shape]`, some at once: numpy is slow where rows are short."""
    shape = values.shape[1:]
    together = min(len(values), max(1, _REDUCED // max(1, prod(shape))))
    times, rest = divmod(len(values), together)
    found = function.reduce(values[rest:].reshape(times, together, *shape))
    return np.asarray(function.reduce(np.concatenate([values[:rest], found])))
