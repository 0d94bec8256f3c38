"""Statistics of a dataset: per feature and per episode, in one pass with bounded memory.

```
an episode    s0 a0   s1 a1   s2 a2   s3
counted       x  x    x  x    x  x           the T rows that a policy sees
minimum, maximum                      x      the observation after the last action, if it is known
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.figures import (
    MOST_FEATURES,
    DatasetStats,
    EpisodeStats,
    FeatureStats,
    LeafStats,
    Spread,
    TextStats,
)
from offline_data.analysis.histograms import Histograms
from offline_data.base.errors import ManifestError, NotFoundError, UsageError
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.episode.fields import Key, join_key, next_of, split_key
from offline_data.store.layout import EPISODE, OBSERVATIONS, TED, LeafSpec, leaves_by_file
from offline_data.store.quantiles import QUANTILES, QuantileSketch
from offline_data.store.reader import DatasetReader
from offline_data.store.statistics import BLOCK_ITEMS, Moments, item_moments, moments_of

if TYPE_CHECKING:
    Chunk: TypeAlias = tuple[Key, NDArray[np.generic]]  # leaf, rows `[n, …]`; text: codes
    Rows: TypeAlias = slice | NDArray[np.int64]

CHUNK_ITEMS = 1 << 20  # items of a chunk, so that a few float64 copies take tens of MiB at most

MOST_COMMON = 5  # number of most common words listed for a text leaf

_NARROW = 64  # numbers in a row up to which it is faster to make each column contiguous first


def dataset_stats(
    reader: DatasetReader,
    progress: Progress = SILENT,
    *,
    pieces: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    chunk: int | None = None,
    relative_to: str | None = None,
    absolute: Sequence[int] = (),
    chunk_items: int = CHUNK_ITEMS,
) -> DatasetStats:
    """Compute the statistics of every feature; reads each file once, `chunk_items` items at a time.

    `pieces` are first rows and lengths, int64 `[P]`, of the runs of rows to look at, each inside an
    episode, by default all episodes; the observation after a last row counts in minima and maxima.
    `chunk` (None: 1 with `relative_to`), `relative_to` and `absolute`: see `offline_data.stats`.

    Raises:
        ManifestError: A file is missing or damaged.
        NotFoundError: No feature `relative_to`.
        UsageError: There is no row in `pieces`, no action, no whole chunk, or a state of another
            shape.
    """
    chosen = _Selection.of(reader, pieces)
    actions = None
    if chunk is not None or relative_to is not None:
        actions = _action_stats(reader, chosen, chunk or 1, relative_to, absolute, chunk_items)
    elif absolute:
        raise UsageError("absolute names dimensions of relative actions", hint="add relative_to")
    transitions, count = chosen.steps.rows, len(chosen.numbers)
    if not transitions:
        raise UsageError(f"There is nothing to describe: no row of {reader.manifest.id}")
    leaves = reader.leaves
    keys = sorted(leaves.keys() - {EPISODE})
    measured = {key: _Figures(leaves[key]) for key in keys if not leaves[key].text}
    counts = {key: np.zeros(1, np.int64) for key in keys if leaves[key].text}
    of_steps = sum(leaf.nbytes for key, leaf in reader.step_leaves.items() if key != EPISODE)
    seen = reader.observation_leaves.values()
    size = (of_steps + sum(leaf.nbytes for leaf in seen)) * transitions
    size += sum(leaf.nbytes for leaf in seen if not leaf.text) * chosen.ends.rows
    with progress.task("stats", size, "B") as task:
        for walk in (_step_chunks, _observation_chunks):
            for key, values in walk(reader, chosen, chunk_items):
                if key in counts:
                    counts[key] = counts[key] + _count_codes(reader, key, values)
                else:
                    measured[key].add(np.asarray(values))
                task.advance(values.nbytes)
        for key, values in _final_chunks(reader, chosen, chunk_items):
            measured[key].add_final(np.asarray(values))
            task.advance(values.nbytes)

    def of_episodes(name: str) -> NDArray[np.generic]:
        return np.asarray(reader.episodes[(name,)])[chosen.numbers]

    per_episode = EpisodeStats(
        _spread(chosen.lengths),
        _spread(of_episodes("return")),
        float(of_episodes("terminated").astype(float).mean()),
        float(of_episodes("truncated").astype(float).mean()),
        len(chosen.steps.first) - chosen.ends.rows,
    )
    return DatasetStats(
        reader.manifest.id,
        transitions,
        count,
        tuple(found.stats(transitions) for found in measured.values()),
        tuple(_text_stats(reader, key, transitions, found) for key, found in counts.items()),
        per_episode,
        actions=actions,
    )


def _action_stats(
    reader: DatasetReader,
    chosen: _Selection,
    chunk: int,
    relative_to: str | None,
    absolute: Sequence[int],
    items: int,
) -> LeafStats:
    """Compute the statistics of all actions of all chunks of `chunk` rows inside of an episode.

    An action counts once for each chunk it is in. Relative actions are `action[t + i] - state[t]`,
    as in LeRobot's `compute_relative_action_stats` and openpi's `DeltaActions`.
    """
    leaf = reader.step_leaves.get(("action",))
    if leaf is None or leaf.text or len(leaf.shape) > 1 or np.dtype(leaf.dtype).kind not in "fiub":
        raise UsageError(
            f"Statistics of action chunks need a feature 'action' of vectors of numbers; "
            f"{reader.manifest.id} has {'none' if leaf is None else f'{leaf.dtype}{[*leaf.shape]}'}"
        )
    name, state = f"action, chunks of {chunk}" if chunk > 1 else "action", None
    dtype, size = np.dtype(leaf.dtype), prod(leaf.shape)
    if relative_to is not None:
        state = reader.observation_leaves.get(split_key(relative_to))
        if state is None:
            known = ", ".join(map(join_key, reader.observation_leaves))
            raise NotFoundError(f"There is no observation {relative_to!r}; there are {known}")
        if state.shape != leaf.shape or state.text or np.dtype(state.dtype).kind not in "fiub":
            raise UsageError(
                f"Relative actions need a state like the action, {[*leaf.shape]}; "
                f"{relative_to!r} is {state.dtype}{[*state.shape]}"
            )
        dtype = np.result_type(dtype, state.dtype, np.float32)
        name = f"action - {join_key(state.key)}" + (f", chunks of {chunk}" if chunk > 1 else "")
    kept = np.zeros(size, bool)
    if any(not 0 <= place < size for place in absolute):
        raise UsageError(f"absolute is {[*absolute]}; an action has dimensions 0 to {size - 1}")
    kept[list(absolute)] = True
    starts = _Pieces(chosen.steps.first, np.maximum(chosen.steps.lengths - chunk + 1, 0))
    if not starts.rows:
        raise UsageError(
            f"No episode has {chunk} rows; the longest has {chosen.steps.lengths.max()}",
            hint=f"a chunk of {plural(chosen.steps.lengths.max(), 'row')} at most",
        )
    figures, actions = _Figures(replace(leaf, dtype=str(dtype))), reader.step(leaf.key)
    for rows in starts.chunks([leaf], max(1, items // chunk)):
        first = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        values = np.asarray(actions[first[:, None] + np.arange(chunk)])
        if state is not None:
            origin = reader.observations_at(state.key, first, after=False)
            origin = np.where(kept.reshape(leaf.shape), 0, origin)
            values = np.subtract(values, origin[:, None], dtype=dtype)
        figures.add(values.reshape(-1, *leaf.shape))
    return replace(figures.stats(starts.rows * chunk), key=name)


class _Pieces:
    """Consecutive runs of rows of a table: `first` and `lengths`, int64 `[P]`."""

    def __init__(self, first: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.first, self.lengths = first, lengths
        self._stops = np.cumsum(lengths)
        self.rows = int(self._stops[-1]) if len(first) else 0
        self._in_a_row = bool((first[1:] == first[:-1] + lengths[:-1]).all())

    def chunks(self, leaves: Iterable[LeafSpec], items: int) -> Iterator[Rows]:
        """Cut the rows into chunks of about `items` items of all these leaves."""
        step = max(1, items // max(1, sum(prod(leaf.shape) for leaf in leaves)))
        for begin in range(0, self.rows, step):
            stop = min(begin + step, self.rows)
            if self._in_a_row:
                yield slice(int(self.first[0]) + begin, int(self.first[0]) + stop)
            else:
                numbers = np.arange(begin, stop)
                piece = np.searchsorted(self._stops, numbers, side="right")
                yield numbers - (self._stops - self.lengths)[piece] + self.first[piece]


@dataclass(frozen=True)
class _Selection:
    """Selected rows of both tables.

    ```
    steps           0  1  2 | 3  4         pieces inside of episodes
    observations    0  1  2  . | 4  5  .   those before the steps, in the table of observations
    ends                  2       4        step rows whose next observation is the last one of a piece
    finals                   3        6    these observations
    ```
    """

    steps: _Pieces
    observations: _Pieces
    ends: _Pieces
    finals: _Pieces
    numbers: NDArray[np.int64]  # episodes of the pieces, unique
    lengths: NDArray[np.int64]  # selected rows of each episode

    @classmethod
    def of(
        cls,
        reader: DatasetReader,
        pieces: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ) -> _Selection:
        """Return the rows of `pieces` in both tables; final observations are those that are known."""
        first, lengths = (reader.starts, reader.lengths) if pieces is None else pieces
        episode = reader.episode_of(first)
        inside = first + lengths < (reader.starts + reader.lengths)[episode]
        known = inside | reader.final[episode]
        ends, finals = (first + lengths - 1)[known], (first + episode + lengths)[known]
        numbers, place = np.unique(episode, return_inverse=True)
        return cls(
            _Pieces(first, lengths),
            _Pieces(first + episode, lengths),
            _Pieces(ends, np.ones_like(ends)),
            _Pieces(finals, np.ones_like(finals)),
            numbers,
            np.bincount(place, lengths, len(numbers)).astype(np.int64),
        )


class _Figures:
    """Statistics of one leaf, also per dimension unless there are too many."""

    def __init__(self, leaf: LeafSpec) -> None:
        self._leaf, self._seen, self._count = leaf, Moments(), prod(leaf.shape)
        # minima and maxima of final observations
        self._finals: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = []
        self._histograms: Histograms | None = None
        if self._count <= MOST_FEATURES and "complex" not in leaf.dtype:
            self._histograms = Histograms(self._count, leaf.dtype)
            self._sketch = QuantileSketch(self._count)

    def add(self, values: NDArray[np.generic]) -> None:
        """Add some rows, at least one."""
        if self._histograms is None:
            self._seen = self._seen.merge(moments_of(values))
            return
        step = max(self._histograms.bins, BLOCK_ITEMS // max(self._count, 1))
        for begin in range(0, len(values), step):
            block = values[begin : begin + step]
            rows = block.reshape(len(block), self._count).T
            if self._count <= _NARROW:
                # Each feature contiguous: its minimum is found several times faster.
                rows = np.ascontiguousarray(rows)
            self._sketch.add(rows)
            self._seen = self._seen.merge(item_moments(rows.T))
            self._histograms.add(rows, self._sketch.low, self._sketch.high)

    def add_final(self, values: NDArray[np.generic]) -> None:
        """Extend minima and maxima by some final observations, at least one."""
        if self._histograms is None:
            found = moments_of(values)
            limits = Moments(minimum=found.minimum, maximum=found.maximum)
            self._seen = self._seen.merge(limits)
            return
        rows = values.reshape(len(values), self._count)
        if rows.dtype.kind == "f":
            rows = np.where(np.isfinite(rows), rows, np.nan)
        elif rows.dtype.kind == "b":
            rows = rows.view(np.uint8)
        low, high = np.fmin.reduce(rows), np.fmax.reduce(rows)
        for before in self._finals:
            low, high = np.fmin(low, before[0]), np.fmax(high, before[1])
        self._finals = [(low, high)]

    def stats(self, rows: int) -> LeafStats:
        """Return the statistics over `rows` rows."""
        leaf, seen, features = self._leaf, self._seen, None
        least, greatest = seen.minimum, seen.maximum
        if self._histograms is not None and rows:
            low, high = self._sketch.low, self._sketch.high
            for first, last in self._finals:
                low, high = np.fmin(low, first), np.fmax(high, last)
            count = np.asarray(seen.count)
            quantiles = self._sketch.quantiles(QUANTILES)
            quantiles[:, 0], quantiles[:, -1] = low, high
            means, stds = (np.where(count == 0, np.nan, one) for one in (seen.mean, seen.std))
            features = FeatureStats(
                count.reshape(leaf.shape),
                low.astype(leaf.dtype).reshape(leaf.shape),
                high.astype(leaf.dtype).reshape(leaf.shape),
                means.reshape(leaf.shape),
                stds.reshape(leaf.shape),
                quantiles.reshape(*leaf.shape, len(QUANTILES)),
                self._sketch.rank_error,
                self._histograms.histogram(leaf.shape),
            )
            seen = seen.pool()
            if not np.isnan(low).all():
                kind = float if leaf.dtype.startswith("float") else int
                least = kind(np.fmin.reduce(low, None))
                greatest = kind(np.fmax.reduce(high, None))
        mean, std = (float(seen.mean), float(seen.std)) if seen.count else (None, None)
        return LeafStats(
            join_key(leaf.key),
            leaf.dtype,
            leaf.shape,
            rows,
            least,
            greatest,
            mean,
            std,
            seen.nan,
            seen.inf,
            features,
        )


def _spread(values: NDArray[np.generic]) -> Spread | None:
    """Summarise one number per episode; None if none is finite."""
    numbers = values.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    if len(finite) == 0:
        return None
    figures = finite.min(), np.median(finite), finite.mean(), finite.max()
    return Spread(*map(float, figures))


def _count_codes(reader: DatasetReader, key: Key, codes: NDArray[np.generic]) -> NDArray[np.int64]:
    """Count how often each code occurs, from -1 on; raises `ManifestError` if one has no word."""
    known = len(reader.words(key) or ())
    places = codes.astype(np.int64).ravel() + 1
    if places.size and not 0 <= places.min() <= places.max() <= known:
        raise ManifestError(
            f"Text feature {join_key(key)!r} has codes outside its {plural(known, 'word')}",
            hint="`offline-data check --files ID` names damaged files",
        )
    return np.bincount(places, minlength=known + 1)


def _text_stats(reader: DatasetReader, key: Key, rows: int, counts: NDArray[np.int64]) -> TextStats:
    """Return the statistics of a text leaf; equally frequent words are ordered by code."""
    words, missing, counts = reader.words(key) or [], int(counts[0]), counts[1:]
    order = np.argsort(-counts, kind="stable")[:MOST_COMMON]
    common = tuple((words[i], int(counts[i])) for i in order if counts[i])
    return TextStats(join_key(key), rows, int((counts > 0).sum()), missing, common)


def _step_chunks(reader: DatasetReader, chosen: _Selection, items: int) -> Iterator[Chunk]:
    """Yield every row of every step leaf except `episode`; the rows of a leaf are in order."""
    leaves = {key: leaf for key, leaf in reader.step_leaves.items() if key != EPISODE}
    for group in leaves_by_file(leaves):
        for rows in chosen.steps.chunks(group.values(), items):
            for key in group:
                yield key, reader.step(key)[rows]


def _observation_chunks(reader: DatasetReader, chosen: _Selection, items: int) -> Iterator[Chunk]:
    """Yield the observation before each action of every observation leaf."""
    in_ted = TED in reader.manifest.tables
    table, pieces = (TED, chosen.steps) if in_ted else (OBSERVATIONS, chosen.observations)
    for group in leaves_by_file(reader.observation_leaves):
        for rows in pieces.chunks(group.values(), items):
            for key in group:
                yield key, reader.leaf(table, key)[rows]


def _final_chunks(reader: DatasetReader, chosen: _Selection, items: int) -> Iterator[Chunk]:
    """Yield the observation after the last action of every numeric observation leaf, where it is known."""
    in_ted = TED in reader.manifest.tables
    table, pieces = (TED, chosen.ends) if in_ted else (OBSERVATIONS, chosen.finals)
    for key, leaf in reader.observation_leaves.items():
        for rows in () if leaf.text else pieces.chunks([leaf], items):
            yield key, reader.leaf(table, next_of(key) if in_ted else key)[rows]
