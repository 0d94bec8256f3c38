"""The lags between actions, rewards, observations and cameras of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.alignment.lags import LAGS, SHORTEST, Array, LagEstimate, Series, find_lag
from offline_data.episodes.fields import ACTION_ROOTS, REWARD, Key, join_key, split_key
from offline_data.errors import NotFoundError
from offline_data.ids import unknown
from offline_data.reports.frames import image_leaves
from offline_data.store.layout import LeafSpec
from offline_data.store.reader import DatasetReader

Kind: TypeAlias = Literal["action", "reward", "camera", "pair"]

MOST_ROWS = 50_000
"""Rows to read."""
MOST_FRAMES, MOST_PIXELS = 5_000, 1 << 28
"""Rows to read of a camera, and numbers in its images: decoding them takes most of the time."""
GROUPS = 40
"""Groups of episodes, which the bootstrap draws."""

WIDE, NARROW = 128, 24
"""Columns of a leaf of the observation; of all of them, of actions, or of a camera. More are projected on as
many random directions."""
FEATURES = 32
"""Random features of the observations that predict rewards and cameras."""
LARGEST = 4.0
"""Standard deviations at which images and states are clipped where they are compared with each other."""
MOST_VALUES = 32
"""Distinct values of an integer action up to which each has a column of its own."""
SIDE = 16
"""Height and width to which images are reduced."""


@dataclass(frozen=True)
class LeafAlignment:
    """The lag of one leaf against others."""

    leaf: str
    """`action`, `next/reward`, or a camera or other leaf of the observation."""
    against: str
    """Leaves that it is compared with."""
    kind: Kind
    lag: int | None
    """Rows by which the leaf is late: what belongs to row t is stored in row t + lag. None: undecided."""
    reason: str | None
    """Why it is undecided; None if it is decided."""
    errors: dict[int, float]
    """Error of the prediction at each lag, as a multiple of the error without the leaf."""
    best: int | None
    """Lag with the smallest error, decided or not."""
    apart: tuple[float, float] | None
    """99 % interval of the logarithm of the error of the next best lag over that of the best."""
    episodes: int
    rows: int
    """Episodes and rows that were compared."""


@dataclass(frozen=True)
class Alignment:
    """The lags of the leaves of a dataset."""

    id: str
    leaves: tuple[LeafAlignment, ...]

    @property
    def shifts(self) -> dict[str, int]:
        """Rows by which each shifted leaf is late, by name; empty if no shift was found.

        If all decided leaves of the observation agree, the action is shifted; if the action is aligned
        with some of them, the others are.
        """
        decided = {
            leaf.against: leaf.lag
            for leaf in self.leaves
            if leaf.kind == "action" and leaf.lag is not None
        }
        found = {leaf.leaf: leaf.lag for leaf in self.leaves if leaf.kind != "action" and leaf.lag}
        if len(set(decided.values())) == 1 and (lag := next(iter(decided.values()))):
            return {"action": lag, **found}
        if 0 in decided.values():
            found |= {leaf: -lag for leaf, lag in decided.items() if lag}
        return found

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps of `preprocess` that shift these leaves back."""
        return tuple(f"shift:{leaf},by={lag}" for leaf, lag in self.shifts.items())


def align_dataset(
    reader: DatasetReader,
    *,
    kinds: Sequence[Kind] = ("action", "reward", "camera"),
    pairs: Sequence[tuple[str, str]] = (),
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> Alignment:
    """Find the lags of actions, rewards and cameras, and of pairs of leaves of the observation.

    Predicts, on episodes that the model was not fitted on:

    - the change of each leaf of the observation from its value and `action[t + k]`;
    - the reward from observations before and after, the action, and features of them;
    - the change of a camera's images, reduced to 16 × 16, from that of the observations;
    - of a pair, the change of the second leaf from that of the first.

    Leaves of `info` are not used.

    Args:
        reader: The dataset.
        kinds: Kinds of leaves to compare.
        pairs: Names of two numeric leaves of the observation each.
        most_rows: Rows to read, of episodes in random order; of cameras at most 5,000.
        seed: Seed of the order, and of the bootstrap.

    Raises:
        NotFoundError: A pair names a leaf that does not exist.
    """
    known = {join_key(k): k for k, leaf in reader.observation_leaves.items() if _is_numeric(leaf)}
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise unknown(NotFoundError, "There is no numeric leaf of the observation", name, known)
    keys = [key for key in known.values() if key[0] != "info"]
    cameras = [split_key(name) for name in image_leaves(reader)]
    cameras = [key for key in cameras if key in reader.observation_leaves and key[0] != "info"]
    groups = _sample(reader, most_rows, seed)
    found: list[LeafAlignment] = []

    def add(kind: Kind, key: Key, against: str, series: Callable[[_Group], Series]) -> None:
        estimate = find_lag(map(series, groups), seed=seed)
        found.append(_name(estimate, kind, join_key(key), against))

    if keys:
        acted, seen = _Actions(reader, groups), _Columns(_observations(keys), NARROW)
        if "action" in kinds and acted.keys:
            for key in keys:
                state = _Columns(_observations([key]), WIDE)
                add("action", ("action",), join_key(key), partial(_action_series, acted, state))
            acted.lag = _action_lag(found)
        reward = reader.step_leaves.get(REWARD)
        if "reward" in kinds and reward is not None and _is_numeric(reward):
            against = "observation" if acted.lag is None else "observation, action"
            add("reward", REWARD, against, partial(_reward_series, acted, seen))
        for names in pairs:
            first, second = (_Columns(_observations([known[name]]), WIDE) for name in names)
            add("pair", known[names[1]], names[0], partial(_pair_series, first, second))
        if "camera" in kinds:
            for key in cameras:
                size = prod(reader.observation_leaves[key].shape)
                rows = min(most_rows, MOST_FRAMES, MOST_PIXELS // size)
                groups = _sample(reader, rows, seed)
                camera = _Columns(partial(_thumbnails, key), NARROW)
                add("camera", key, "observation", partial(_camera_series, seen, camera))
    return Alignment(reader.manifest.id, tuple(found))


def _action_lag(found: Sequence[LeafAlignment]) -> int | None:
    """Return the lag of the action, by which rewards are compared with it; None: undecided."""
    if "action" in (shifts := Alignment("", tuple(found)).shifts):
        return shifts["action"]
    return 0 if any(leaf.lag == 0 for leaf in found) else None


def _name(estimate: LagEstimate, kind: Kind, leaf: str, against: str) -> LeafAlignment:
    """Name a lag, which is that of the observations where a camera was compared with them."""
    sign = -1 if kind == "camera" else 1
    errors = {sign * lag: error for lag, error in zip(LAGS, estimate.errors, strict=False)}
    return LeafAlignment(
        leaf,
        against,
        kind,
        None if estimate.lag is None else sign * estimate.lag,
        estimate.reason,
        dict(sorted(errors.items())),
        None if estimate.best is None else sign * estimate.best,
        estimate.apart,
        estimate.episodes,
        estimate.rows,
    )


def _is_numeric(leaf: LeafSpec) -> bool:
    plain = not leaf.text and leaf.encoding is None and not leaf.dtype.startswith("complex")
    return plain and 0 not in leaf.shape and len(leaf.shape) < 3


@dataclass(frozen=True)
class _Group:
    """Episodes, or a run of consecutive rows of each, end to end."""

    reader: DatasetReader
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def step(self, key: Key) -> Array:
        values = np.asarray(self.reader.step(key)[self.rows])
        return values.reshape(len(values), -1).astype(np.float64)

    def observation(self, key: Key) -> Array:
        """Return an observation leaf before each action."""
        values = np.asarray(self.reader.observations_at(key, self.rows, after=False))
        return values.reshape(len(values), -1).astype(np.float64)

    def changes(self, values: Array) -> Array:
        """Return the values one row later minus those of each row; NaN in last rows."""
        changes = np.roll(values, -1, axis=0) - values
        changes[np.cumsum(self.lengths) - 1] = np.nan
        return changes


def _sample(reader: DatasetReader, most_rows: int, seed: int) -> list[_Group]:
    """Divide random episodes into groups of about as many rows, and take a run of rows of long ones."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(np.flatnonzero(reader.lengths >= SHORTEST))
    if not len(order):
        return []
    longest = max(most_rows // min(GROUPS, len(order)), 4 * SHORTEST)
    lengths = np.minimum(reader.lengths[order], longest)
    order = order[: int(np.searchsorted(np.cumsum(lengths), most_rows)) + 1]
    lengths = lengths[: len(order)]
    starts = reader.starts[order] + draw.integers(reader.lengths[order] - lengths + 1)
    groups = []
    for members in (
        np.arange(first, len(order), GROUPS) for first in range(min(GROUPS, len(order)))
    ):
        begins, counts = starts[members], lengths[members]
        before = np.cumsum(counts) - counts
        rows = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
        groups.append(_Group(reader, rows, counts))
    return groups


class _Columns:
    """Leaves as columns in units of their standard deviation in the first group that is read.

    More than `most` columns are projected on as many random directions.
    """

    def __init__(self, read: Callable[[_Group], Array], most: int) -> None:
        self.read, self.most = read, most
        self.scaling: tuple[Array, Array] | None = None

    def of(self, group: _Group) -> Array:
        """Return `[N, columns]`; not finite where the values are not, or too large."""
        values = self.read(group)
        width = values.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            if self.scaling is None:
                self.scaling = _mean_and_spread(values[np.isfinite(values).all(1)])
            mean, spread = self.scaling
            values = (values - mean) / spread
            if width > self.most:
                values = values @ (_normal((width, self.most)) / np.sqrt(width))
        return np.asarray(values)


def _mean_and_spread(values: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each column; 1 where it is 0 or overflows."""
    if not len(values):
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    spread = values.std(0)
    return values.mean(0), np.where((spread > 0) & np.isfinite(spread), spread, 1.0)


def _normal(shape: tuple[int, ...]) -> Array:
    """Return normal numbers, the same in every run."""
    return np.random.default_rng(shape).normal(size=shape)


def _observations(keys: Sequence[Key]) -> Callable[[_Group], Array]:
    return lambda group: np.concatenate([group.observation(key) for key in keys], axis=1)


def _with_features(values: Array) -> Array:
    """Append random features `tanh(values W + b)`: of these two layers, only the second is fitted."""
    weights, shift = _normal((values.shape[1], FEATURES)), _normal((FEATURES,))
    features = np.tanh(values @ weights / np.sqrt(len(weights)) + shift)
    return np.concatenate([values, features], axis=1)


class _Actions:
    """Actions as columns: one for each value of an integer that has few."""

    def __init__(self, reader: DatasetReader, groups: Sequence[_Group]) -> None:
        leaves = reader.step_leaves.items()
        self.keys = [k for k, leaf in leaves if k[0] in ACTION_ROOTS and _is_numeric(leaf)]
        self.values: dict[Key, Array] = {}
        self.lag: int | None = None
        """Rows by which actions are late; `of` shifts them back, and returns no columns if it is not known."""
        for key in self.keys:
            leaf = reader.step_leaves[key]
            if groups and not leaf.dtype.startswith("float") and prod(leaf.shape) == 1:
                values = np.unique(np.concatenate([group.step(key) for group in groups]))
                if len(values) <= MOST_VALUES:
                    self.values[key] = values
        self.columns = _Columns(self._read, NARROW)

    def _read(self, group: _Group) -> Array:
        columns = [group.step(key) for key in self.keys]
        for i, key in enumerate(self.keys):
            if key in self.values:
                columns[i] = (columns[i] == self.values[key]).astype(np.float64)
        return np.concatenate(columns or [np.zeros((len(group.rows), 0))], axis=1)

    def of(self, group: _Group) -> Array:
        """Return the actions of each row, `[N, columns]`; NaN where they are in another episode."""
        if self.lag is None:
            return np.zeros((len(group.rows), 0))
        values = np.roll(self.columns.of(group), -self.lag, axis=0)
        ends = np.cumsum(group.lengths)
        for gap in range(abs(self.lag)):
            values[ends - 1 - gap if self.lag > 0 else ends - group.lengths + gap] = np.nan
        return values


def _action_series(acted: _Actions, state: _Columns, group: _Group) -> Series:
    seen = state.of(group)
    return Series(group.lengths, seen, acted.columns.of(group), group.changes(seen))


def _reward_series(acted: _Actions, seen: _Columns, group: _Group) -> Series:
    states, actions = _with_features(seen.of(group)), acted.of(group)
    after = states + group.changes(states)
    causes = np.concatenate([states, after, actions, actions**2], axis=1)
    return Series(group.lengths, causes, group.step(REWARD))


def _camera_series(seen: _Columns, camera: _Columns, group: _Group) -> Series:
    """Predict the states from the images, as one image shows positions and not where they will be next."""
    images, states = (np.clip(each.of(group), -LARGEST, LARGEST) for each in (camera, seen))
    return Series(group.lengths, group.changes(_with_features(images)), group.changes(states))


def _pair_series(first: _Columns, second: _Columns, group: _Group) -> Series:
    return Series(group.lengths, group.changes(first.of(group)), group.changes(second.of(group)))


def _thumbnails(key: Key, group: _Group) -> Array:
    """Reduce the images of a camera to grey values of 16 × 16 blocks, `[N, 256]`."""
    images = np.asarray(group.reader.observations_at(key, group.rows, after=False))
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[1] in (1, 3, 4) and images.shape[-1] not in (1, 3, 4):
        images = np.moveaxis(images, 1, -1)
    rows, columns = (np.arange(SIDE) * images.shape[axis] // SIDE for axis in (1, 2))
    grey = images.sum(axis=-1, dtype=np.float64)
    sums = np.add.reduceat(np.add.reduceat(grey, rows, axis=1), columns, axis=2)
    return np.asarray(sums.reshape(len(sums), -1))
