"""Quality of episodes: idle steps, jerk, velocity, saturation and clock errors, in one pass over blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, is_image, is_numeric
from offline_data.analysis.figures import MOST_FEATURES
from offline_data.base.errors import UnknownLeafError
from offline_data.base.ids import unknown
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.document.blocks import Block, table
from offline_data.document.html import Document
from offline_data.episode.fields import Key, join_key, split_key
from offline_data.store.layout import LeafSpec
from offline_data.store.reader import DatasetReader
from offline_data.store.spaces import LeafSpace, declared_spaces, observed_leaves

IDLE = 1e-3  # part of a component's robust range that a step must exceed to be a movement

AT_BOUND = 1e-4  # part of the range of an action within which a value lies at its bound

SAMPLE = 1 << 12  # rows by which ranges are measured; all rows of a smaller dataset

LONGEST = 1 << 20  # steps of an episode whose jerk is kept; of a longer episode, every k-th step

BLOCK_ITEMS, _LEAST_ROWS = 1 << 18, 256  # numbers and least rows in a block, which fits the cache

_TOGETHER = 1 << 18  # values whose quantiles are computed together, unless an episode has more

_POSITIONS = ("pos", "state", "observation")  # in names of leaves of positions, the likeliest first

_SUCCESS, _TIMES = {"success", "is_success"}, {"timestamp", "timestamps"}

# Share of values at an extreme of the data from which this is a bound, if there are two, and share
# at both from which an action is a switch, such as a gripper.
_NOTABLE, _SWITCH = 0.01, 0.9


_SHOWN = 10  # episodes that a notebook shows
_SIMILAR = ("nearest", "distance", "duplicate_of")
_KINDS = {"length": "count", "idle": "share", "saturated": "share"}
_KINDS |= dict.fromkeys(("success", "outliers", "nearest", "duplicate_of"), "text")
_KINDS |= {"mark": "text", "marks/mark": "text", "note": "text:clip", "marks/note": "text:clip"}
"""Notations of columns; the others are numbers."""


# Filters, views and weights use the columns of a reader again.
_MEASURED: WeakKeyDictionary[DatasetReader, EpisodeQuality] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeQuality(Mapping[str, NDArray[Any]], Document):
    """Columns by name, `[E]` each, and the outliers of each column.

    - `length`, `return`: Transitions, and the sum of rewards.
    - `success`: The column of that name, or whether a feature `success` or `is_success` is ever true.
    - `idle`: Share of steps in which no component of the feature changes by more than 0.001 of its robust
      range, from the 1 % to the 99 % quantile. Steps without a known successor are not counted.
    - `jerk`, `jerk_p95`: Median and 95 % quantile of `|x[t+3] - 3 x[t+2] + 3 x[t+1] - x[t]|`, the
      Euclidean norm of the third difference; NaN for episodes of less than four known values.
    - `velocity`: Largest `|x[t+1] - x[t]|`.
    - `saturated`: Share of steps in which a continuous action lies at a bound of its space (within
      0.0001 of the range). Without declared bounds, these are the smallest and largest value if at least
      1 % of the values, and two, are equal to it. Components with 90 % of the values at bounds, such as
      grippers, are not counted.
    - `lag`: Largest difference of consecutive timestamps.
    - `timestamp_error`: Largest `|time[t] - time[0] - t · period|`. The period is `1 / fps` if that is
      within 10 % of the median difference, else this median.
    - `outliers`: Number of these columns, except `success`, in which the episode lies more than 1.5
      interquartile ranges outside of the quartiles; NaN is not an outlier.

    Columns that a dataset has no feature for are missing. Values that are not finite are ignored. Ranges
    are those of up to 4,096 rows, spread evenly.

    Attributes:
        columns: The columns.
        marked: For each column but `success` and `outliers`: which episodes are outliers, bool `[E]`.
        leaf: Feature of `idle`, `jerk` and `velocity`; None without a continuous feature.
        rate: Steps per second. `velocity` and `jerk` are per second and per second³ if it is known, else
            per step and step³.
    """

    columns: dict[str, NDArray[Any]]
    marked: dict[str, NDArray[np.bool_]]
    leaf: str | None
    rate: float | None

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one column; raises `UnknownLeafError`."""
        if name not in self.columns:
            raise unknown(UnknownLeafError, "Episodes have no column", name, self.columns)
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def get(self, name: str, default: Any = None) -> Any:
        """Return one column, or a default."""
        return self.columns.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        count = plural(len(self.columns["length"]), "episode")
        return f"EpisodeQuality({count}: {', '.join(self.columns)})"

    def blocks(
        self, rows: Sequence[Mapping[str, Any]] | None = None, sort: str | None = None
    ) -> list[Block]:
        """Return a table of `rows`, by default the first, and of the columns, `sort` first."""
        if rows is None:
            rows = self.rows(np.arange(min(len(self["length"]), _SHOWN)))
        first = [sort, "outliers", "mark", *_SIMILAR]  # a narrow terminal hides the last columns
        names = dict.fromkeys([*(name for name in first if name in self), *self])
        spec = " ".join(["episode", *(f"{name}:{_KINDS.get(name, 'number')}" for name in names)])
        return [table(spec, rows, outliers=lambda row: " ".join(row["outliers"]))]

    def order(self, name: str, *, reverse: bool = False) -> NDArray[np.int64]:
        """Return episode numbers by a column, largest first; NaN comes last."""
        values = column = self[name]
        if values.dtype == object:  # text, of which the empty one is unknown
            column = np.where(values == "", np.nan, np.unique(values, return_inverse=True)[1])
        column = np.asarray(column, np.float64)
        return np.argsort(column if reverse else -column, kind="stable")

    def rows(self, numbers: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return `episode`, columns as Python values (unknown: None), and the names of outliers."""
        table = {
            name: [None if _is_nan(value) else value for value in column[numbers].tolist()]
            for name, column in self.columns.items()
        }
        table["outliers"] = [
            [name for name, marked in self.marked.items() if marked[number]] for number in numbers
        ]
        found = zip(*table.values(), strict=True)
        return [
            {"episode": number, **dict(zip(table, row, strict=True))}
            for number, row in zip(numbers.tolist(), found, strict=True)
        ]

    def take(self, numbers: NDArray[np.int64]) -> EpisodeQuality:
        """Return the rows of some episodes."""
        columns, marked = (
            {name: column[numbers] for name, column in part.items()}
            for part in (self.columns, self.marked)
        )
        return EpisodeQuality(columns, marked, self.leaf, self.rate)


def with_marks(reader: DatasetReader, quality: EpisodeQuality) -> EpisodeQuality:
    """Return quality with the columns `mark` and `note`, text, if an episode has one."""
    if not reader.marks.episodes:
        return quality
    marks = {join_key(key): np.array(c, object) for key, c in reader.mark_columns.items()}
    return replace(quality, columns={**quality.columns, **marks})


def quality_columns(reader: DatasetReader) -> tuple[str, ...]:
    """Return the names of the columns of `episode_quality`; reads no rows."""
    found = _Leaves.of(reader)
    return (
        *("length", "return"),
        *(("success",) if found.success or found.stored else ()),
        *(("idle", "jerk", "jerk_p95", "velocity") if found.motion else ()),
        *(("saturated",) if found.actions else ()),
        *(("lag", "timestamp_error") if found.time else ()),
        "outliers",
    )


@np.errstate(over="ignore", invalid="ignore")
def episode_quality(
    reader: DatasetReader, progress: Progress = SILENT, *, leaf: str | None = None
) -> EpisodeQuality:
    """Measure all episodes; reads the features that it needs once, in blocks.

    `leaf` is the continuous feature of `idle`, `jerk` and `velocity`, by default the observation whose
    name contains `pos`, else `state`, else `observation`, else the first one; else the first
    action. Raises `UnknownLeafError` if there is no such feature, or it is not continuous, and
    `ManifestError` if a file is missing or damaged.
    """
    if leaf is None and reader in _MEASURED:
        return _MEASURED[reader]
    found = _Leaves.of(reader, leaf)
    stated = reader.manifest.about.get("fps")
    rate = float(stated) if isinstance(stated, (int, float)) and 0 < stated < 1e6 else None
    measures: list[Any] = []
    if found.success and not found.stored:
        measures.append(_Success(reader, found.success))
    if found.motion:
        measures.append(_Motion(reader, found.motion, rate or 1.0))
    if found.actions:
        measures.append(_Saturation(reader, found.actions))
    if found.time:
        measures.append(_Clock(reader, found.time, rate))
    leaves = reader.leaves
    read = {found.success, found.motion, *found.actions, found.time} - {None}
    size = sum(prod(leaves[key].shape) for key in read if key)
    rows = max(_LEAST_ROWS, BLOCK_ITEMS // max(1, size)) if measures else reader.transitions
    with progress.task("quality", reader.transitions, "rows") as task:
        for first in range(0, reader.transitions, rows):
            block = RowBlock(reader, first, min(first + rows, reader.transitions))
            for measure in measures:
                measure.add(block)
            task.advance(len(block))
    columns: dict[str, NDArray[Any]] = {
        "length": reader.lengths.copy(),
        "return": np.array(reader.episodes[("return",)], np.float64),
    }
    if found.stored:
        columns["success"] = np.array(reader.episodes[found.stored])
    for measure in measures:
        columns |= measure.columns()
    marked = {name: _outliers(column) for name, column in columns.items() if name != "success"}
    columns["outliers"] = np.asarray(np.sum([*marked.values()], axis=0, dtype=np.int64))
    for column in (*columns.values(), *marked.values()):
        column.setflags(write=False)
    quality = EpisodeQuality(
        columns, marked, join_key(found.motion) if found.motion else None, rate
    )
    if leaf is None:
        _MEASURED[reader] = quality
    return quality


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _outliers(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values lie more than 1.5 interquartile ranges outside of the quartiles."""
    finite = np.isfinite(column)
    if not finite.any():
        return np.zeros(len(column), bool)
    low, high = np.quantile(column[finite], (0.25, 0.75))
    reach = 1.5 * (high - low) + 1e-9 * max(abs(low), abs(high))  # equal values differ by rounding
    return np.asarray((column < low - reach) | (column > high + reach))


class _Leaves(NamedTuple):
    """Leaves that are measured."""

    motion: Key | None
    actions: tuple[Key, ...]
    time: Key | None
    success: Key | None
    stored: Key | None  # column of success

    @classmethod
    def of(cls, reader: DatasetReader, leaf: str | None = None) -> _Leaves:
        every = reader.leaves
        known = {join_key(key): key for key, spec in every.items() if _is_continuous(spec)}
        observed = [key for key in observed_leaves(reader) if key in known.values()]
        actions = tuple(key for key in known.values() if key[0] == "action")
        if leaf is not None:
            if join_key(split_key(leaf)) not in known:
                raise unknown(UnknownLeafError, "There is no continuous feature", leaf, known)
            motion: Key | None = split_key(leaf)
        else:
            likely = [key for part in _POSITIONS for key in observed if part in key[-1]]
            motion = next(iter((*likely, *observed, *actions)), None)
        single = [key for key, spec in every.items() if prod(spec.shape) == 1 and not spec.text]
        return cls(
            motion,
            actions,
            next((key for key in single if key[-1] in _TIMES and is_numeric(every[key])), None),
            next((key for key in single if key[-1] in _SUCCESS), None),
            next(
                (k for k, c in reader.episodes.items() if k[-1] in _SUCCESS and c.ndim == 1), None
            ),
        )


def _is_continuous(leaf: LeafSpec) -> bool:
    counted = 0 < prod(leaf.shape) <= MOST_FEATURES
    return leaf.dtype.startswith("float") and counted and not is_image(leaf)


def sample_rows(reader: DatasetReader, key: Key, *, after: bool = False) -> NDArray[np.float64]:
    """Return `[n, features]` values at `SAMPLE` rows, or at all; `after`: of the next row."""
    rows = np.arange(min(SAMPLE, reader.transitions))
    if len(rows) < reader.transitions:  # by the golden ratio: even, at other steps of each episode
        rows = np.sort((rows * 0.6180339887498949 % 1 * reader.transitions).astype(np.int64))
    if key in reader.observation_leaves:
        values = reader.observations_at(key, rows, after=after)
    else:
        values = reader.step(key)[np.minimum(rows + after, reader.transitions - 1)]
    return np.asarray(values, np.float64).reshape(len(rows), -1)


class LeafSeries:
    """Rows of a feature, block by block, after the last three known ones of an episode that continues.

    ```
    block            3  4 | 0  1  2  3 | 0        an episode that began before, one, and one that continues
    read    (0  1  2)  3  4 | 0  1  2  3 | 0      `past` is 3
    firsts             0      2            6
    new                       5            9      first rows of episodes that begin in the block
    ```
    """

    def __init__(self, reader: DatasetReader, key: Key, dtype: str = "float32") -> None:
        self.observed = key in reader.observation_leaves
        leaf = reader.leaves[key]
        self._starts, self.key, self._features = reader.starts, key, prod(leaf.shape)
        self._dtype = dtype if leaf.dtype in {"float32", "float16"} else "float64"
        self._kept = np.zeros((self._features, 0), self._dtype)
        self.space = np.zeros(0, self._dtype)

    def read(self, block: RowBlock) -> None:
        """Set `rows` `[features, n]`, and `past`, `firsts`, `new` as drawn above."""
        values = block.numbers(self.key)
        begins = self._starts[block.first_episode : block.last_episode + 1] - block.first
        continues = bool(begins[0] < 0)
        places = np.maximum(begins, 0)
        if self.observed:
            places += np.searchsorted(block.known_ends, places)
        self.past = past = self._kept.shape[1] if continues else 0
        size = self._features * (past + len(values))
        if size > len(self.space):  # new memory costs as much as the arithmetic
            self.space = np.empty(size * 5 // 4, self._dtype)
        self.rows = self.space[:size].reshape(self._features, -1)
        self.rows[:, :past] = self._kept[:, :past]
        self.rows[:, past:] = values.reshape(len(values), -1).T
        self.firsts, self.new = places, places[int(continues) :] + past
        self.episodes = slice(block.first_episode, block.last_episode + 1)
        self.finished = bool(len(block.ends)) and int(block.ends[-1]) == len(block) - 1
        own = self.new[-1] if len(self.new) else 0
        self._kept = self.rows[:, max(own, self.rows.shape[1] - 3) :].copy()


class _Motion:
    """`idle`, `jerk`, `jerk_p95` and `velocity`."""

    def __init__(self, reader: DatasetReader, key: Key, rate: float) -> None:
        self._series, self._rate, self._lengths = LeafSeries(reader, key), rate, reader.lengths
        self._starts = reader.starts
        low, high = np.nanquantile(finite_or_nan(sample_rows(reader, key)), (0.01, 0.99), axis=0)
        self._least = (IDLE * np.nan_to_num(high - low)[:, None]).astype(self._series.space.dtype)
        self._slow = 1.0001 * float(np.sqrt(np.square(self._least).sum()))
        self._space = np.zeros(0, self._least.dtype)
        count = reader.episode_count
        self._steps = reader.lengths - 1 + (reader.final if self._series.observed else 0)
        self._idle, self._velocity = np.zeros(count, np.int64), np.full(count, np.nan)
        self._jerk, self._known = np.full((2, count), np.nan), np.zeros(count, np.int64)
        # jerk of unfinished episodes, from `_done`
        self._waiting, self._done = list[NDArray[np.float32]](), 0

    def add(self, block: RowBlock) -> None:
        self._series.read(block)
        x, past, firsts = self._series.rows, self._series.past, self._series.firsts
        episodes, new = self._series.episodes, self._series.new
        speed, jerk = np.empty((2, x.shape[1]), x.dtype)
        speed[:1], jerk[:3] = np.nan, np.nan
        idle = np.zeros(x.shape[1], bool)
        if self._space.size < x.size:
            self._space = np.empty_like(self._series.space)
        change = _differences(x, self._space)
        speed[1:] = _norm(change)
        slow = np.flatnonzero(speed[1:] <= self._slow)
        idle[1 + slow] = (np.abs(change[:, slow]) <= self._least).all(axis=0)
        change = _differences(_differences(change, self._series.space), self._space)
        jerk[3:] = _norm(change)
        speed[new], idle[new] = np.nan, False
        for after in range(3):
            jerk[new[new + after < len(jerk)] + after] = np.nan
        found = np.fmax.reduceat(speed[past:], firsts)
        self._velocity[episodes] = np.fmax(self._velocity[episodes], found)
        self._idle[episodes] += np.add.reduceat(idle[past:], firsts, dtype=np.int64)
        self._add_jerk(jerk[past:], block)

    def _add_jerk(self, jerk: NDArray[np.float64], block: RowBlock) -> None:
        firsts, episodes = self._series.firsts, self._series.episodes
        stops = np.append(firsts[1:], len(jerk))
        known = ~np.isnan(jerk)
        for part in np.flatnonzero(self._lengths[episodes] > LONGEST):
            step = max(0, block.first - int(self._starts[episodes.start + part]))
            numbers = np.arange(step, step + stops[part] - firsts[part])
            every = -(-int(self._lengths[episodes.start + part]) // LONGEST)
            known[firsts[part] : stops[part]] &= numbers % every == 0
        self._known[episodes] += np.add.reduceat(known, firsts, dtype=np.int64)
        self._waiting.append(jerk[known].astype(np.float32, copy=False))
        stop = episodes.stop - (not self._series.finished)
        if stop > self._done and sum(map(len, self._waiting)) > _TOGETHER:
            self._finish(stop)

    def _finish(self, stop: int) -> None:
        """Compute the quantiles of episodes up to `stop`, whose values are complete."""
        done, values = slice(self._done, stop), np.concatenate(self._waiting)
        whole = int(self._known[done].sum())
        self._jerk[:, done] = _quantiles(values[:whole], self._known[done], (0.5, 0.95))
        self._waiting, self._done = [values[whole:]], stop

    def columns(self) -> dict[str, NDArray[Any]]:
        self._finish(len(self._known))
        middle, high = self._jerk * self._rate**3
        steps = np.where(self._steps > 0, self._steps, np.nan)
        return {
            "idle": self._idle / steps,
            "jerk": middle,
            "jerk_p95": high,
            "velocity": self._velocity * self._rate,
        }


class _Saturation:
    """`saturated`: steps in which an action lies at a bound."""

    def __init__(self, reader: DatasetReader, keys: tuple[Key, ...]) -> None:
        declared, leaves = declared_spaces(reader), reader.step_leaves
        self._bounds = {
            key: _bounds(finite_or_nan(sample_rows(reader, key)), declared.get(key)).astype(
                leaves[key].dtype
            )
            for key in keys
        }
        self._bounds = {k: b for k, b in self._bounds.items() if np.isfinite(b).any()}
        self._lengths, self._count = reader.lengths, np.zeros(reader.episode_count, np.int64)

    def add(self, block: RowBlock) -> None:
        if not self._bounds:
            return
        at_bound = np.zeros(len(block), bool)
        for key, bounds in self._bounds.items():
            features = block.numbers(key).reshape(len(block), -1).T
            for feature in np.flatnonzero(np.isfinite(bounds).any(axis=0)):
                low, high = bounds[:, feature]
                at_bound |= (features[feature] <= low) | (features[feature] >= high)
        firsts = np.append(0, block.ends + 1)
        found = np.add.reduceat(at_bound, firsts[firsts < len(block)], dtype=np.int64)
        self._count[block.first_episode : block.last_episode + 1] += found

    def columns(self) -> dict[str, NDArray[Any]]:
        return {"saturated": self._count / self._lengths}


class _Clock:
    """`lag` and `timestamp_error`."""

    def __init__(self, reader: DatasetReader, key: Key, rate: float | None) -> None:
        self._series, self._starts = LeafSeries(reader, key, "float64"), reader.starts
        kind = np.dtype(reader.leaves[key].dtype)
        self._rounding = 4 * float(np.finfo(kind if kind.kind == "f" else "float64").eps)
        gaps = sample_rows(reader, key, after=True) - sample_rows(reader, key)
        gaps = gaps[gaps > 0]
        period = float(np.median(gaps)) if len(gaps) else np.nan
        close = rate is not None and not abs(period * rate - 1) > 0.1
        self._period = 1 / rate if rate is not None and close else period
        self._origin, self._lag, self._error = np.full((3, reader.episode_count), np.nan)

    def add(self, block: RowBlock) -> None:
        self._series.read(block)
        times, past, firsts = self._series.rows[0], self._series.past, self._series.firsts
        episodes, new = self._series.episodes, self._series.new
        begun = episodes.stop - len(new)
        self._origin[begun : episodes.stop] = times[new]
        gaps = np.append(np.nan, times[1:] - times[:-1])
        gaps[new] = np.nan
        sizes = np.diff(np.append(firsts, len(times) - past))
        step = np.arange(len(times) - past) - np.repeat(firsts, sizes)
        step[: sizes[0]] += max(0, block.first - int(self._starts[episodes.start]))
        error = np.abs(
            times[past:] - np.repeat(self._origin[episodes], sizes) - step * self._period
        )
        error[error <= self._rounding * np.abs(times[past:])] = 0
        for column, values in ((self._lag, gaps[past:]), (self._error, error)):
            column[episodes] = np.fmax(column[episodes], np.fmax.reduceat(values, firsts))

    def columns(self) -> dict[str, NDArray[Any]]:
        return {"lag": self._lag, "timestamp_error": self._error}


class _Success:
    """`success`, of a leaf."""

    def __init__(self, reader: DatasetReader, key: Key) -> None:
        self._series, self._found = LeafSeries(reader, key), np.zeros(reader.episode_count, bool)

    def add(self, block: RowBlock) -> None:
        self._series.read(block)
        values = self._series.rows[0, self._series.past :] > 0
        self._found[self._series.episodes] |= np.logical_or.reduceat(values, self._series.firsts)

    def columns(self) -> dict[str, NDArray[Any]]:
        return {"success": self._found}


def _differences(rows: NDArray[Any], space: NDArray[Any]) -> NDArray[Any]:
    """Return differences of consecutive columns, in memory that does not overlap: numpy would copy."""
    features, columns = len(rows), max(0, rows.shape[1] - 1)
    out = space[: features * columns].reshape(features, columns)
    return np.asarray(np.subtract(rows[:, 1:], rows[:, :-1], out=out))


def _norm(change: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.sqrt(np.einsum("ij,ij->j", change, change)))


def finite_or_nan(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace infinite values by NaN, and columns without a finite value by 0."""
    finite = np.isfinite(values)
    return np.where(finite, values, np.where(finite.any(axis=0), np.nan, 0.0))


def _bounds(values: NDArray[np.float64], space: LeafSpace | None) -> NDArray[np.float64]:
    """Return values from which an action is saturated: low, high `[2, features]`; ignores NaN."""
    least, most = np.fmin.reduce(values), np.fmax.reduce(values)
    low, high = least.copy(), most.copy()
    notable = max(2, _NOTABLE * len(values))
    low[(values == low).sum(axis=0) < notable] = -np.inf
    high[(values == high).sum(axis=0) < notable] = np.inf
    if space is not None:
        declared = [np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high)]
        bounded = np.isfinite(declared[0]) | np.isfinite(declared[1])
        low, high = (np.where(bounded, *pair) for pair in zip(declared, (low, high), strict=True))
    reach = np.where(np.isfinite(high - low), high - low, most - least)
    low, high = low + AT_BOUND * reach, high - AT_BOUND * reach
    switch = ((values <= low) | (values >= high)).mean(axis=0) >= _SWITCH
    low[switch], high[switch] = -np.inf, np.inf
    return np.array([low, high])


def _quantiles(
    values: NDArray[np.float32], counts: NDArray[np.int64], levels: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return quantiles `[levels, parts]` of consecutive parts of values of at least 0."""
    keys = np.repeat(np.arange(len(counts), dtype=np.uint64) << np.uint64(32), counts)
    keys |= values.view(np.uint32)  # ordered as such floats are: one sort orders all parts
    keys.sort()
    begins, last = np.cumsum(counts) - counts, np.maximum(counts - 1, 0)
    found, some = np.full((len(levels), len(counts)), np.nan), counts > 0
    for row, level in zip(found, levels, strict=True):
        place = level * last
        below = place.astype(np.int64)
        low, high = (
            keys[(begins + at)[some]].astype(np.uint32).view(np.float32).astype(np.float64)
            for at in (below, np.minimum(below + 1, last))
        )
        row[some] = low + (high - low) * (place - below)[some]
    return found
