"""The lags between actions, rewards, observations and cameras of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.alignment.lags import SHORTEST, Array, LagEstimate, Series, find_lag
from offline_data.analysis.frames import image_leaves
from offline_data.base.errors import NotFoundError
from offline_data.base.ids import unknown
from offline_data.base.pickles import pickled_by_name
from offline_data.document.blocks import Block, non_empty, table
from offline_data.document.html import Document
from offline_data.episode.fields import ACTION_ROOTS, REWARD, Key, join_key, split_key
from offline_data.store.layout import LeafSpec
from offline_data.store.reader import DatasetReader

Kind: TypeAlias = Literal["action", "reward", "camera", "pair"]

MOST_ROWS = 50_000  # rows to read
MOST_FRAMES, MOST_PIXELS = 5_000, 1 << 28  # rows of a camera, numbers in them: decoding is slow
GROUPS = 40  # groups of episodes, which the bootstrap draws

# Columns of a leaf of the observation; of all of them, of actions, or of a camera. More are
# projected on as many random directions.
WIDE, NARROW = 128, 24
FEATURES = 32  # random features of the observations that predict rewards and cameras
LARGEST = 4.0  # standard deviations at which images and states are clipped to be compared
MOST_VALUES = 32  # distinct values of an integer action up to which each has a column of its own
SIDE = 16  # height and width to which images are reduced


@pickled_by_name
@dataclass(frozen=True, kw_only=True)
class LeafAlignment(LagEstimate):
    """The lag of one feature against others: the rows by which it is late."""

    leaf: str
    """`action`, `next/reward`, or a camera or other feature of the observation."""
    against: str
    """Features that it is compared with."""
    kind: Kind


@pickled_by_name
@dataclass(frozen=True, repr=False)
class Alignment(Document):
    """The lags of the features of a dataset."""

    id: str
    leaves: tuple[LeafAlignment, ...]

    def blocks(self) -> list[Block]:
        verdicts = table(
            "feature=leaf against:clip lag:keep why=reason:clip episodes:count",
            self.leaves,
            lag=lambda leaf: (
                "undecided" if leaf.lag is None else f"{leaf.lag:+d}" if leaf.lag else "0"
            ),
        )
        measured = [leaf for leaf in self.leaves if leaf.errors]
        lags = sorted(measured[0].errors) if measured else []
        errors = table(
            " ".join(["feature=leaf", *(f"{lag}=errors.{lag}" for lag in lags)]),
            [(leaf.leaf, *(f"{leaf.errors[lag]:.2f}" for lag in lags)) for leaf in measured],
            "error at each lag, as a share of that of a model without the feature",
        )
        return [verdicts, *non_empty(errors)]

    @property
    def shifts(self) -> dict[str, int]:
        """Rows by which each shifted feature is late, by name; empty if no shift was found.

        If all decided features of the observation agree, the action is shifted; if the action is aligned
        with some of them, the others are.
        """
        found = {leaf.leaf: leaf.lag for leaf in self.leaves if leaf.kind != "action" and leaf.lag}
        lag = _action_lag(self.leaves)
        if lag == 0:
            acted = [leaf for leaf in self.leaves if leaf.kind == "action"]
            found |= {leaf.against: -leaf.lag for leaf in acted if leaf.lag}
        return {"action": lag, **found} if lag else found

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps of `preprocess` that shift these features back."""
        return tuple(f"shift:{leaf},by={lag}" for leaf, lag in self.shifts.items())


def _action_lag(leaves: Sequence[LeafAlignment]) -> int | None:
    """Return the lag of the action if leaves of the observation agree, 0 if it is that of some, or None."""
    decided = {leaf.lag for leaf in leaves if leaf.kind == "action"} - {None}
    return decided.pop() if len(decided) == 1 else 0 if 0 in decided else None


def align_dataset(
    reader: DatasetReader,
    *,
    kinds: Sequence[Kind] = ("action", "reward", "camera"),
    pairs: Sequence[tuple[str, str]] = (),
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> Alignment:
    """Find the lags of actions, rewards and cameras, and of `pairs` of features of the observation.

    Predicts, on episodes that the model was not fitted on:

    - the change of each feature of the observation from its value and `action[t + k]`;
    - the reward from observations before and after, the action, and features of them;
    - the change of a camera's images, reduced to 16 × 16, from that of the observations;
    - of a pair, the change of the second feature from that of the first.

    Features of `info` are not used. Reads up to `most_rows` rows, of cameras at most 5,000, of
    episodes in random order (by `seed`, as the bootstrap). Raises `NotFoundError` if a pair names
    another feature than numeric ones of the observation.
    """
    known = {join_key(k): k for k, leaf in reader.observation_leaves.items() if _is_numeric(leaf)}
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise unknown(NotFoundError, "There is no numeric observation feature", name, known)
    keys = [key for key in known.values() if key[0] != "info"]
    if not keys:
        return Alignment(reader.manifest.id, ())
    groups = _sample(reader, most_rows, seed)
    actions = _action_values(reader, groups)
    acted = _Columns(partial(_actions, actions), NARROW)
    seen = _Columns(partial(_observations, keys), NARROW)
    found: list[LeafAlignment] = []

    def add(
        kind: Kind, leaf: str, against: str, series: Callable[[_Group], Series], rows: int
    ) -> None:
        sampled = groups if rows == most_rows else _sample(reader, rows, seed)
        estimate = find_lag(map(series, sampled), seed=seed)
        if kind == "camera":
            estimate = estimate.reverse()
        found.append(LeafAlignment(leaf=leaf, against=against, kind=kind, **vars(estimate)))

    def columns(name: str) -> _Columns:
        return _Columns(partial(_observations, [known[name]]), WIDE)

    for name in map(join_key, keys) if "action" in kinds and actions else ():
        series = partial(_action_series, acted, columns(name))
        add("action", "action", name, series, most_rows)
    lag = _action_lag(found)
    rewarded = reader.step_leaves.get(REWARD)
    if "reward" in kinds and rewarded is not None and _is_numeric(rewarded):
        against = "observation" if lag is None else "observation, action"
        reward = _Columns(partial(_Group.step, key=REWARD), NARROW)
        series = partial(_reward_series, acted, lag, seen, reward)
        add("reward", join_key(REWARD), against, series, most_rows)
    for first, second in pairs:
        series = partial(_pair_series, columns(first), columns(second))
        add("pair", second, first, series, most_rows)
    for name in image_leaves(reader) if "camera" in kinds else ():
        key = split_key(name)
        if key in reader.observation_leaves and key[0] != "info":
            rows = MOST_PIXELS // prod(reader.observation_leaves[key].shape)
            camera = _Columns(partial(_thumbnails, key), NARROW, alike=True)
            series = partial(_camera_series, seen, camera)
            add("camera", name, "observation", series, min(most_rows, MOST_FRAMES, rows))
    return Alignment(reader.manifest.id, tuple(found))


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
        return _as_table(self.reader.step(key)[self.rows])

    def observation(self, key: Key) -> Array:
        """Return an observation leaf before each action."""
        return _as_table(self.reader.observations_at(key, self.rows, after=False))

    def later(self, values: Array, by: int = 1) -> Array:
        """Return the values some rows later; NaN where that row is in another episode."""
        ends = np.repeat(np.cumsum(self.lengths), self.lengths)
        row = np.arange(len(ends)) + by
        inside = (row < ends) & (row >= ends - np.repeat(self.lengths, self.lengths))
        return np.where(inside[:, None], np.roll(values, -by, axis=0), np.nan)

    def changes(self, values: Array) -> Array:
        """Return the values one row later minus those of each row; NaN in last rows."""
        return self.later(values) - values


def _as_table(values: Any) -> Array:
    return np.asarray(values, np.float64).reshape(len(values), -1)


def _sample(reader: DatasetReader, most_rows: int, seed: int) -> list[_Group]:
    """Divide random episodes into groups of about as many rows, and take a run of rows of long ones."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(np.flatnonzero(reader.lengths >= SHORTEST))
    longest = max(most_rows // max(1, min(GROUPS, len(order))), 4 * SHORTEST)
    lengths = np.minimum(reader.lengths[order], longest)
    order = order[: int(np.searchsorted(np.cumsum(lengths), most_rows)) + 1]
    lengths = lengths[: len(order)]
    starts = reader.starts[order] + draw.integers(reader.lengths[order] - lengths + 1)
    runs = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    return [
        _Group(reader, np.concatenate(runs[first::GROUPS]), lengths[first::GROUPS])
        for first in range(min(GROUPS, len(runs)))
    ]


class _Columns:
    """Leaves as columns in units of their standard deviation in the first group that is read.

    More than `most` columns are projected on as many random directions. Columns that are `alike`, as
    pixels are, have one unit: where nothing moves, it would otherwise be that of the noise.
    """

    def __init__(self, read: Callable[[_Group], Array], most: int, *, alike: bool = False) -> None:
        self.read, self.most, self.alike = read, most, alike
        self.scaling: tuple[Array, Array] | None = None

    def of(self, group: _Group) -> Array:
        """Return `[N, columns]`; not finite where the values are not, or too large."""
        values = self.read(group)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.scaling is None:
                self.scaling = _mean_and_spread(values[np.isfinite(values).all(1)], self.alike)
            mean, spread = self.scaling
            return _project((values - mean) / spread, self.most)


def _mean_and_spread(values: Array, alike: bool) -> tuple[Array, Array]:
    """Return mean and standard deviation of each column; 1 where it is 0 or overflows."""
    if not len(values):
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    spread = values.std(0)
    if alike:
        spread = np.sqrt(np.full_like(spread, (spread**2).mean()))
    return values.mean(0), np.where((spread > 0) & np.isfinite(spread), spread, 1.0)


def _project(values: Array, most: int) -> Array:
    """Return the columns, or as many random directions of more than `most`."""
    width = values.shape[1]
    return values if width <= most else values @ (_normal((width, most)) / np.sqrt(width))


def _normal(shape: tuple[int, ...]) -> Array:
    """Return normal numbers, the same in every run."""
    return np.random.default_rng(shape).normal(size=shape)


def _with_features(values: Array) -> Array:
    """Append random features `tanh(values W + b)`: of these two layers, only the second is fitted."""
    weights, shift = _normal((values.shape[1], FEATURES)), _normal((FEATURES,))
    features = np.tanh(values @ weights / np.sqrt(len(weights)) + shift)
    return np.concatenate([values, features], axis=1)


def _observations(keys: Sequence[Key], group: _Group) -> Array:
    return np.concatenate([group.observation(key) for key in keys], axis=1)


def _action_values(reader: DatasetReader, groups: Sequence[_Group]) -> dict[Key, Array | None]:
    """Return the leaves of actions, with the values of an integer that has few."""
    found: dict[Key, Array | None] = {}
    for key, leaf in reader.step_leaves.items():
        if key[0] in ACTION_ROOTS and _is_numeric(leaf):
            found[key] = None
            if groups and not leaf.dtype.startswith("float") and prod(leaf.shape) == 1:
                values = np.unique(np.concatenate([group.step(key) for group in groups]))
                found[key] = values if len(values) <= MOST_VALUES else None
    return found


def _actions(values: Mapping[Key, Array | None], group: _Group) -> Array:
    """Return actions as columns: one for each value of an integer that has few."""
    columns = [
        group.step(key) if few is None else (group.step(key) == few).astype(np.float64)
        for key, few in values.items()
    ]
    return np.concatenate(columns, axis=1)


def _action_series(acted: _Columns, state: _Columns, group: _Group) -> Series:
    seen = state.of(group)
    moved = group.changes(seen)
    before = _project(group.later(moved, -1), NARROW)
    return Series(group.lengths, seen, acted.of(group), moved, before)


def _reward_series(
    acted: _Columns, lag: int | None, seen: _Columns, reward: _Columns, group: _Group
) -> Series:
    states, rewards = _with_features(seen.of(group)), reward.of(group)
    actions = states[:, :0] if lag is None else group.later(acted.of(group), lag)
    causes = np.concatenate([states, group.later(states), actions, actions**2], axis=1)
    return Series(group.lengths, causes, rewards, rewards[:, :0])


def _camera_series(seen: _Columns, camera: _Columns, group: _Group) -> Series:
    """Predict the states from the images, as one image shows positions and not where they will be next."""
    images, states = (np.clip(each.of(group), -LARGEST, LARGEST) for each in (camera, seen))
    moved = group.changes(states)
    return Series(group.lengths, group.changes(_with_features(images)), moved, moved[:, :0])


def _pair_series(first: _Columns, second: _Columns, group: _Group) -> Series:
    moved = group.changes(second.of(group))
    return Series(group.lengths, group.changes(first.of(group)), moved, moved[:, :0])


def _thumbnails(key: Key, group: _Group) -> Array:
    """Reduce the images of a camera to grey values of 16 × 16 blocks, `[N, 256]`."""
    reduced = []
    for image in chain.from_iterable(group.reader.decoded_at(key, group.rows)):
        image = image[..., None] if image.ndim == 2 else image
        grey = image.sum(axis=int(np.argmin(image.shape)), dtype=np.uint32)
        rows, columns = (np.arange(SIDE) * size // SIDE for size in grey.shape)
        across = np.add.reduceat(grey, rows, axis=0, dtype=np.float64)
        reduced.append(np.add.reduceat(across, columns, axis=1))
    return _as_table(np.stack(reduced))
