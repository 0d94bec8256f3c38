"""Steps that change the rows of episodes: `resample shift trim`.

A new row stands for a group of consecutive rows of one episode, and groups may leave rows out at both
ends:

```
old row             0    1    2    3    4    5    6         T = 7, groups of 3
observation         s0   s1   s2   s3   s4   s5   s6   s7
new row             0              1              2
observation         s0             s3             s6   s7   the first of a group; then that after the last
next observation    s3             s6             s7        that of the following row, as everywhere
reward              r0+r1+r2       r3+r4+r5       r6
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from offline_data.base.decode import Check
from offline_data.base.errors import StepError
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import ACTION_ROOTS, REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.leaves import column, matching, numbers, overflow
from offline_data.pipeline.preprocess.steps.parse import FLAG, at_least, is_whole, number
from offline_data.store.chunk import EpisodeChunk

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.store.reader import DatasetReader

Rule: TypeAlias = Literal["hold", "last", "mean", "sum"]
"""Value of a group: that of its first row, that of its last row, the mean, or the sum."""

_RULES: tuple[Rule, ...] = get_args(Rule)
_RATE = number("a number above 0", lambda rate: 0 < rate <= 1e6)
_FINEST = 10_000
"""Largest denominator of a ratio of two rates."""
_ROWS = Check(
    "a whole number from -1000 to 1000, not 0",
    lambda rows: is_whole(rows, -1000) and 0 != rows <= 1000,
)


@dataclass(frozen=True)
class Resample(Step, name="resample", example="resample:10,source_fps=30,action=sum"):
    """Lower the rate of rows: `resample:10,action=sum` makes 10 rows of a second.

    Row `j` begins at `j / fps` seconds: its observation is the last one at or before that time, and it
    stands for all rows until the next one begins. `a=RULE` says what becomes of a step feature, or of all
    features below a name: `hold` takes the first of these rows, `last` the last, `mean` and `sum` all of
    them. Actions need a rule: `sum` for differences (delta actions), `hold` or `last` for targets and
    commands, `mean` for velocities. Of several rules for one feature the last one holds.

    Without a rule, rewards are summed, an end flag is set if it is set in any of the rows, other features
    under `next` are `last`, and all others are `hold`. The observation after the last action is kept;
    the last row may stand for fewer rows than the others. `fps` in the description of the dataset is
    the new one.

    Raises:
        UsageError: A rate or rule that is invalid; no rule for actions.
        StepError: The dataset does not state its rate, or it is lower; a mean or sum of a feature that is
            not floating-point; a sum that its type cannot represent; a missing feature.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> step = Resample(10, (("action", "sum"),), source_fps=20)
        >>> made = step.apply(toy_chunk([3])).batch
        >>> made.steps["next", "reward"][:, 0].tolist()  # 0.125 + 0.25, and 0.375
        [0.375, 0.375]
        >>> made.observations["observation", "velocity"].tolist()
        [1.5, 3.5, 4.5]
    """

    keeps_rows: ClassVar[bool] = False

    fps: Annotated[float, _RATE]
    """Rows in a second, at most as many as before."""
    rules: tuple[tuple[str, str], ...]
    """Pairs of a feature, or beginning of keys, and its rule."""
    source_fps: Annotated[float | None, _RATE] = None
    """Rows in a second at this point; default: what the dataset states, as LeRobot's do."""

    def _problems(self) -> Iterator[str]:
        if self.source_fps is not None and self.fps > self.source_fps:
            yield f"has fps={self.fps}; expected at most the {self.source_fps:g} of the dataset"
        if not self.rules:
            yield f"needs a rule for actions, as action={_RULES[0]}"
        for name, rule in self.rules:
            if rule not in _RULES:
                yield f"has {name}={rule}; expected one of {', '.join(_RULES)}"

    def bind(self, reader: DatasetReader, before: Sequence[Step]) -> Self:
        if self.source_fps is not None:
            return self
        about: Mapping[str, Any] = reader.manifest.about
        for step in before:
            about = step.update_about(about)
        stated: Any = about.get("fps")
        if not _RATE.holds(stated):
            raise StepError(
                f"Step 'resample' needs the rate of the rows, which {reader.manifest.id} does not state",
                hint=f"give it: --step 'resample:{self.fps:g},…,source_fps=30'",
            )
        return replace(self, source_fps=stated)

    def update_about(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**about, "fps": self.fps}

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        if self.source_fps is None:
            raise StepError("Step 'resample' needs source_fps, the rate of the rows")
        batch = chunk.batch
        ratio = Fraction(self.source_fps) / Fraction(self.fps)
        ratio = ratio.limit_denominator(_FINEST)  # 33.333333 rows a second are 100 / 3
        # Row j of an episode of T begins at floor(j · ratio), which is below T.
        counts = -(-batch.lengths * ratio.denominator // ratio.numerator)
        episode = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = batch.starts[episode] + number * ratio.numerator // ratio.denominator
        stop = np.append(first[1:], batch.transitions)[: len(first)]
        return group_rows(chunk, first, stop, self._rules_of(chunk), self.name)

    def _rules_of(self, chunk: EpisodeChunk) -> dict[Key, Rule]:
        rules: dict[Key, Rule] = {}
        for name, rule in self.rules:
            for key in matching(chunk, [name]):
                if key in chunk.batch.observations or key in {TERMINATED, TRUNCATED}:
                    what = "an end flag" if key in {TERMINATED, TRUNCATED} else "an observation"
                    raise StepError(
                        f"Step 'resample' has {name}={rule}, and {join_key(key)!r} is {what}, which has "
                        "no rule of its own"
                    )
                rules[key] = cast("Rule", rule)
        for key in chunk.batch.steps:
            if key[0] in ACTION_ROOTS and key not in rules:
                raise StepError(
                    f"Step 'resample' needs a rule for {join_key(key)!r}",
                    hint=f"{join_key(key)}=sum for differences, =hold or =last for targets",
                )
        return rules

    def notes(self) -> tuple[str, ...]:
        rules = ", ".join(f"{name} {rule}" for name, rule in self.rules)
        rates = f"{self.source_fps:g} to {self.fps:g}" if self.source_fps else f"{self.fps:g}"
        return (f"resample: {rates} rows a second ({rules}; rewards summed unless named)",)


@dataclass(frozen=True)
class Trim(Step, name="trim", example="trim:start=10,idle=0.001,least=5"):
    """Remove rows at the beginning and the end of every episode, and rows in which nothing happens.

    First `start` and `end` rows go. Then, with `idle`, runs of at least `least` rows whose action has
    a norm of at most `idle` go at the beginning and the end, and with `inside` everywhere. If `key` is an
    observation feature, its change is measured instead: the norm of the next one minus this one. The norm
    is Euclidean, over all numbers of a row; a row with NaN is not idle.

    An episode that ends earlier is truncated there, unless that row is terminated; its next
    observation is the parent's. Episodes without a row left are dropped. Rows that `inside` removes
    join the row before them: its next observation is that of the next row that is kept, their rewards
    are added to its own, and other features under `next` are those of the last row that joined.

    Raises:
        UsageError: Nothing to remove; a value out of range.
        StepError: `key` is not a numeric feature.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> made = Trim(start=1, end=1).apply(toy_chunk([4, 2])).batch
        >>> made.lengths.tolist(), made.steps["next", "truncated"][:, 0].tolist()
        ([2], [False, True])
        >>> made.observations["observation", "velocity"].tolist()
        [2.5, 3.5, 4.5]
    """

    keeps_rows: ClassVar[bool] = False

    start: Annotated[int, at_least(0)] = 0
    """Rows to remove at the beginning of every episode."""
    end: Annotated[int, at_least(0)] = 0
    """Rows to remove at the end of every episode."""
    idle: Annotated[float | None, number("a number, 0 or more", lambda norm: norm >= 0)] = None
    """Largest norm of an idle row; default: none is idle."""
    key: str = "action"
    """Feature, or beginning of keys, whose norm or change is measured."""
    least: Annotated[int, at_least(1)] = 1
    """Rows of the shortest idle run that is removed."""
    inside: Annotated[bool, FLAG] = False
    """Whether to remove idle runs inside of episodes, too."""

    def _problems(self) -> Iterator[str]:
        if not (self.start or self.end) and self.idle is None:
            yield "needs start, end or idle"
        if self.idle is None and (self.least > 1 or self.inside):
            yield "has least or inside without idle, the largest norm"

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        kept = self.choose_rows(chunk)
        first = np.flatnonzero(kept)
        stop = first + 1
        if self.inside and len(first):
            joined = np.diff(chunk.batch.episode_of[first]) == 0
            stop[:-1] = np.where(joined, first[1:], stop[:-1])
        return group_rows(chunk, first, stop, {}, self.name)

    def choose_rows(self, chunk: EpisodeChunk) -> NDArray[np.bool_]:
        """Return which rows to keep, `[N]`."""
        batch = chunk.batch
        within = _within(batch)
        left = batch.lengths[batch.episode_of] - within
        kept = (within >= self.start) & (left > self.end)
        if self.idle is None:
            return np.asarray(kept)
        idle = kept & (self._norms(chunk) <= self.idle)
        # Runs: consecutive rows of one episode that are all idle, all active, or all gone.
        states = np.stack([idle, kept, batch.episode_of], axis=1)
        begins = np.append(True, (states[1:] != states[:-1]).any(axis=1))[: len(idle)]
        run = np.cumsum(begins) - 1
        lengths = np.bincount(run)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        gone = idle & (lengths[run] >= self.least)
        if not self.inside:
            at_end = left[bounds[1:] - 1] <= self.end + 1
            gone &= ((within[bounds[:-1]] <= self.start) | at_end)[run]
        return np.asarray(kept & ~gone)

    def _norms(self, chunk: EpisodeChunk) -> NDArray[np.float64]:
        """Return the norm of each row, `[N]`: of the step leaves, or the change of observations."""
        batch = chunk.batch
        squares = np.zeros(batch.transitions)
        with np.errstate(over="ignore", invalid="ignore"):
            for key in numbers(chunk, [self.key]):
                values = column(chunk, key).astype(np.float64)
                if key in batch.observations:
                    values = values[batch.next_rows] - values[batch.root_rows]
                squares += (values.reshape(len(values), -1) ** 2).sum(axis=1)
        return np.sqrt(squares)

    def notes(self) -> tuple[str, ...]:
        parts = [
            f"{plural(count, 'row')} at the {where}"
            for count, where in ((self.start, "beginning"), (self.end, "end"))
            if count
        ]
        if self.idle is not None:
            where = "everywhere" if self.inside else "at both ends"
            parts.append(f"{self.key} at most {self.idle:g} for {self.least} or more rows, {where}")
        return (f"trim: removed {'; '.join(parts)}; episodes without a row left are dropped",)


@dataclass(frozen=True)
class Shift(Step, name="shift", example="shift:action,by=1"):
    """Shift features against all others within episodes: row t takes the values of row t + `by`.

    `offline-data align` finds features that are stored some rows late or early, and writes this step. Rows
    that would need values from before or after their episode are removed: with `by=1` the last row of
    every episode, with `by=-1` the first. An observation feature is shifted together with its next one; if
    `by` is positive and the observation after the last action is not known, one more row is removed.
    An episode that ends earlier is truncated; one without a row left is dropped.

    Raises:
        UsageError: No feature, or `by` is 0.
        StepError: A missing feature, or an end flag.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> chunk = toy_chunk([4])
        >>> made = Shift(("next/reward",), by=1).apply(chunk).batch
        >>> chunk.batch.steps["next", "reward"][:, 0].tolist()
        [0.125, 0.25, 0.375, 0.5]
        >>> made.steps["next", "reward"][:, 0].tolist(), made.lengths.tolist()
        ([0.25, 0.375, 0.5], [3])
    """

    keeps_rows: ClassVar[bool] = False

    keys: Annotated[tuple[str, ...], Check("at least one feature", bool)] = field(
        metadata={"many": True}
    )
    """Features, or beginnings of keys; end flags cannot be shifted."""
    by: Annotated[int, _ROWS] = 1
    """Rows: positive for features that are stored late, negative for features that are stored early."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        batch = chunk.batch
        keys = matching(chunk, self.keys)
        for key in keys:
            if key in {TERMINATED, TRUNCATED}:
                raise StepError(f"Step 'shift' cannot shift {join_key(key)!r}, an end flag")
        seen = [key for key in keys if key in batch.observations]
        missing = ~batch.final_observation[batch.episode_of] & (bool(seen) and self.by > 0)
        left = batch.lengths[batch.episode_of] - _within(batch)
        first = np.flatnonzero((_within(batch) >= -self.by) & (left > self.by + missing))
        steps, observations = dict(batch.steps), dict(batch.observations)
        for columns in (steps, observations):
            for key in columns.keys() & set(keys):
                columns[key] = columns[key][np.roll(np.arange(len(columns[key])), -self.by)]
        shifted = chunk.having(steps=steps, observations=observations)
        return group_rows(shifted, first, first + 1, {}, self.name)

    def notes(self) -> tuple[str, ...]:
        what = f"{plural(abs(self.by), 'row')} {'later' if self.by > 0 else 'earlier'}"
        return (f"shift: {', '.join(self.keys)} taken from {what}; rows without a value removed",)


def _within(batch: EpisodeBatch) -> NDArray[np.int64]:
    """Return the number of each row in its episode, `[N]`."""
    return np.asarray(np.arange(batch.transitions) - batch.starts[batch.episode_of])


def group_rows(
    chunk: EpisodeChunk,
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
    rules: Mapping[Key, Rule],
    step: str,
) -> EpisodeChunk:
    """Return the chunk with one row for each group of rows; see the module.

    Args:
        chunk: The episodes; those without a group are dropped.
        first: `[M]` ascending first row of each group.
        stop: `[M]` row after the last one of each group: within an episode, the first one of the next
            group; after the last group of an episode rows may be left out.
        rules: Rules of step features, but for the end flags; see `Resample` for the others.
        step: Name of the step, for messages.
    """
    batch = chunk.batch
    episode = batch.episode_of[first]
    counts = np.bincount(episode, minlength=len(batch.lengths))
    kept = np.flatnonzero(counts)
    lengths = counts[kept].astype(np.int64)
    last = np.cumsum(lengths) - 1
    early = stop[last] <= batch.last_rows[kept]

    steps: dict[Key, NDArray[Any]] = {}
    for key, values in batch.steps.items():
        if key in {TERMINATED, TRUNCATED}:
            steps[key] = _reduce(np.logical_or, values, first, stop)
            continue
        rule = rules.get(key, "sum" if key == REWARD else "last" if key[0] == "next" else "hold")
        if rule in {"hold", "last"}:
            steps[key] = values[first if rule == "hold" else stop - 1]
        else:
            steps[key] = _total(chunk, key, first, stop, step, mean=rule == "mean")
    steps[TRUNCATED][last[early]] |= ~steps[TERMINATED][last[early]]
    seen = np.insert(first + episode, last + 1, stop[last] + kept)
    made = EpisodeBatch(
        lengths,
        steps,
        {key: values[seen] for key, values in batch.observations.items()},
        batch.final_observation[kept] | early,
        {key: values[kept] for key, values in batch.episodes.items()},
    )
    where = (chunk.episodes[kept], chunk.rows[kept], chunk.steps[kept])
    return EpisodeChunk(made, *where, chunk.words, chunk.by_rows)


def _total(
    chunk: EpisodeChunk,
    key: Key,
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
    step: str,
    *,
    mean: bool,
) -> NDArray[Any]:
    """Return sums, or means, of groups in the type of the leaf (of bools: float32)."""
    values = column(chunk, key)
    is_reward = key == REWARD and values.dtype.kind in "biu" and not mean
    if key in chunk.words or not (values.dtype.kind in "fc" or is_reward):
        kind = "text" if key in chunk.words else str(values.dtype)
        raise StepError(
            f"Step {step!r} cannot take the {'mean' if mean else 'sum'} of {join_key(key)!r}, which is "
            f"{kind}",
            hint=f"{join_key(key)}=hold or {join_key(key)}=last; or cast it to float32 before",
        )
    if values.dtype.kind in "iu":
        totals = _reduce(np.add, values.astype(object), first, stop)  # exact
        dtype, info = values.dtype, np.iinfo(values.dtype)
        lost = np.asarray((totals < info.min) | (totals > info.max), bool)
        result = np.where(lost, 0, totals).astype(dtype)
    else:
        wide = np.complex128 if values.dtype.kind == "c" else np.float64
        dtype = np.dtype(np.float32) if values.dtype.kind == "b" else values.dtype
        with np.errstate(over="ignore", invalid="ignore"):
            totals = _reduce(np.add, values.astype(wide), first, stop)
            if mean:
                totals = totals / (stop - first).reshape(-1, *(1,) * (values.ndim - 1))
            result = totals.astype(dtype)
        lost = np.isfinite(totals) & ~np.isfinite(result)
    if lost.any():
        raise overflow(chunk, key, int(first[np.nonzero(lost)[0][0]]), dtype, step)
    return np.asarray(result)


def _reduce(
    operation: np.ufunc, values: NDArray[Any], first: NDArray[np.int64], stop: NDArray[np.int64]
) -> NDArray[Any]:
    """Return `operation` over the rows of each group, `[M, …]`."""
    if not len(first):
        return np.asarray(operation.reduce(values, axis=0, keepdims=True)[:0])
    bounds = np.stack([first, stop], axis=1).reshape(-1)
    return np.asarray(operation.reduceat(values, bounds[bounds < len(values)], axis=0)[::2])
