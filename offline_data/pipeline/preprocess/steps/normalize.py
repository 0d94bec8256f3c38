"""Steps that measure all data first: `normalize` features, `normalize_return` for rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.decode import Check
from offline_data.base.errors import StepError
from offline_data.base.plurals import plural
from offline_data.episode.fields import REWARD, Key, join_key, next_of, split_key
from offline_data.pipeline.preprocess.steps.base import MeasuredStep
from offline_data.pipeline.preprocess.steps.leaves import (
    column,
    leaves,
    matching,
    numbers,
    replace_columns,
    rewards,
    root_of,
    stored_column,
    without_overflow,
)
from offline_data.pipeline.preprocess.steps.parse import FLAG, number, one_of
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.scaler import EPS, FIGURES, Scaler, measure, normalized
from offline_data.store.statistics import Moments, moments_of

if TYPE_CHECKING:
    from typing_extensions import Self

_SKETCH = 4096
"""Values that a sketch keeps of each element and level."""


class _Learning(MeasuredStep):
    learnt: Mapping[str, Any] | None

    def state(self) -> dict[str, Any]:
        return dict(self.learnt or {})

    def with_state(self, state: Mapping[str, Any]) -> Self:
        return replace(self, learnt=dict(state) or None)  # type: ignore[type-var]

    def _require_learnt(self) -> Mapping[str, Any]:
        if self.learnt is None:
            raise StepError(
                f"Step {self.name!r} has measured nothing yet: it takes a first pass over all data",
                hint="step.fitted([step.measure(chunk), …]) gives a step that has",
            )
        return self.learnt


@dataclass(frozen=True)
class Normalize(_Learning, name="normalize", example="normalize:observation,eps=1e-3"):
    """Normalize features to mean 0 and standard deviation 1, or to quantiles -1 and 1.

    `by="std"`: `(x - mean) / (std + eps)`. `by="quantile"`: `2 (x - q01) / (q99 - q01 + eps) - 1` with
    the 1 % and 99 % quantiles, as openpi does; values beyond them are not clipped. They are exact
    for up to 4,096 rows and else of a `QuantileSketch`, whose rank error is in the manifest.

    Mean and (population) standard deviation are computed elementwise in float64 over the T rows of each
    episode that a policy sees: the observation after the last action does not count, nor do those of
    `next` where it is stored apart; they are scaled by the same statistics. NaN and infinite values are
    ignored and unchanged.

    Floating-point features keep their type, integers become float32. The computation is in float32,
    or in float64 for float64 and for integers of 32 bits or more.

    The derived feature `buffers.derived.normalize` has the same formula and the same statistics (and
    returns float32); it also accepts this step's, from the manifest, as
    `statistics={key: (mean, std)}`.

    Raises:
        UsageError: `eps` below 0, or an invalid value.
        StepError: No such feature of real numbers, or a dimension without any finite value; a standard
            deviation of 0 with `eps=0`; a result that its type cannot represent.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> chunk = toy_chunk([2])
        >>> step = Normalize(("observation.velocity",), eps=0)
        >>> step = step.fitted([step.measure(chunk)])
        >>> step.state()["leaves"]["observation/velocity"]["mean"]
        2.0
        >>> step.apply(chunk).batch.observations["observation", "velocity"].round(3).tolist()
        [-1.0, 1.0, 3.0]
    """

    keys: Annotated[tuple[str, ...], Check("some features", bool)] = field(
        default=("observation",), metadata={"many": True}
    )
    """Features. A name of one feature selects it; a name of several selects those of floating-point
    numbers."""
    eps: Annotated[float | None, number("a finite number, 0 or more", lambda eps: eps >= 0)] = None
    """Added to the divisor. null: 1e-3 by standard deviation, as in CORL and d3rlpy, where a constant
    dimension becomes 0; 1e-6 by quantiles, as in openpi, where it becomes -1."""
    std: Annotated[bool, FLAG] = True
    """Whether to divide; else only the mean is subtracted."""
    by: Annotated[str, one_of(tuple(FIGURES))] = "std"
    """`std`, or `quantile`."""
    learnt: Mapping[str, Any] | None = field(
        default=None, hash=False, repr=False, metadata={"state": True}
    )
    """JSON values `{"leaves": {key: {mean, std, not_finite}}}`: nested lists in the shape of a row,
    and the number of ignored values; by quantiles `q01`, `q99` and their `rank_error` instead."""

    def __post_init__(self) -> None:
        if self.eps is None:
            object.__setattr__(self, "eps", EPS.get(self.by))
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        if not self.std and self.by == "quantile":
            yield f"has std={self.std}; expected true, since quantiles divide"

    def settled(self, probe: EpisodeChunk) -> Self:
        self._meant(probe)
        return self

    def measure(self, chunk: EpisodeChunk) -> dict[Key, Any]:
        """Return by feature the shape of a row, and moments or a sketch."""
        batch, found = chunk.batch, {}
        seen = np.zeros(batch.transitions + len(batch.lengths), bool)
        seen[batch.root_rows] = True
        for key in self._meant(chunk):
            values, counted = column(chunk, key), seen if key in batch.observations else None
            found[key] = values.shape[1:], measure(self.by, values, counted, size=_SKETCH)
        return found

    def condense(self, measures: Sequence[Mapping[Key, Any]]) -> list[Mapping[Key, Any]]:
        def merge(one: Mapping[Key, Any], other: Mapping[Key, Any]) -> Mapping[Key, Any]:
            return {key: (shape, own.merge(other[key][1])) for key, (shape, own) in one.items()}

        return [reduce(merge, measures)]

    def fitted(self, measures: Sequence[Mapping[Key, Any]]) -> Self:
        if not measures:
            raise StepError("Step 'normalize' has no episode to take statistics of")
        learnt: dict[str, Any] = {}
        for key, (shape, seen) in self.condense(measures)[0].items():
            found = Scaler.of(seen, shape)
            self._check(f"Step 'normalize': {join_key(key)!r}", found)
            pair = found.first.tolist(), found.second.tolist()
            figures: dict[str, Any] = dict(zip(FIGURES[self.by], pair, strict=True))
            if self.by == "quantile":
                figures["rank_error"] = seen.rank_error
            learnt[join_key(key)] = {**figures, "not_finite": seen.not_finite}
        return replace(self, learnt={"leaves": learnt})

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        known, learnt, made = leaves(chunk), self._require_learnt()["leaves"], {}
        for name, figures in learnt.items():
            key = split_key(name)
            if key not in known:
                raise StepError(f"Step 'normalize' has statistics of {name!r}, which is not there")
            made[key] = self._scale(chunk, key, figures)
            after = next_of(key)
            apart = after in known and root_of(chunk, after) == key
            if apart and join_key(after) not in learnt:
                made[after] = self._scale(chunk, after, figures)
        return replace_columns(chunk, made)

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"normalize: {key!r} has {plural(figures['not_finite'], 'value')} that are NaN or infinite; "
            "they are not in its statistics and are not changed"
            for key, figures in self.state().get("leaves", {}).items()
            if figures["not_finite"]
        )

    def _meant(self, chunk: EpisodeChunk) -> list[Key]:
        """Return the leaves to take statistics of, in the order of the chunk."""
        wanted: set[Key] = set()
        for name in self.keys:
            roots = {root_of(chunk, key) for key in matching(chunk, [name])}
            wanted |= {*numbers(chunk, [name], "iuf" if len(roots) == 1 else "f")}
        for key in leaves(chunk):
            if (root := root_of(chunk, key)) == key or root not in wanted:
                continue
            wanted.discard(key)  # scaled by the statistics of its root
            shapes = [list(stored_column(chunk, leaf).shape[1:]) for leaf in (root, key)]
            if shapes[0] != shapes[1]:
                raise StepError(
                    f"Step 'normalize' scales {join_key(key)!r} {shapes[1]} by the statistics of "
                    f"{join_key(root)!r} {shapes[0]}, and their shapes differ",
                    hint="put a step before it: exclude, or rename to scale each by its own",
                )
        return [key for key in leaves(chunk) if key in wanted]

    def _check(self, leaf: str, found: Scaler) -> None:
        """Raise `StepError` if values cannot be normalized with these statistics."""
        count, spread = np.asarray(found.count), found.spread
        if not count.all():
            raise StepError(
                f"{leaf} has no finite value in {int((count == 0).sum())} of "
                f"{plural(count.size, 'dimension')}: mean and quantiles are not defined",
                hint="name other features, or take this one out with exclude",
            )
        if not np.isfinite(spread).all():
            raise StepError(
                f"{leaf} has values too large for a standard deviation or range in float64",
                hint="put a step before it, such as clip",
            )
        if self.std and self.eps == 0 and not spread.all():
            equal = "never changes" if self.by == "std" else "has equal quantiles"
            raise StepError(
                f"{leaf} {equal} in {int((spread == 0).sum())} of "
                f"{plural(spread.size, 'dimension')}, and eps=0: that would divide by 0",
                hint="give eps above 0, for example eps=1e-3",
            )

    def _scale(self, chunk: EpisodeChunk, key: Key, learnt: Mapping[str, Any]) -> NDArray[Any]:
        values, eps = column(chunk, key), self.eps or 0.0
        wide = np.result_type(values.dtype, np.float32)
        dtype = values.dtype if values.dtype.kind == "f" else np.float32
        first, second = (np.asarray(learnt[name], "f8") for name in FIGURES[self.by])
        if not self.std:
            second, eps = np.ones_like(first), 0.0
        # Datasets that were made by quantiles have `eps` added before the sum is rounded.
        exact = np.dtype(np.float64) if self.by == "quantile" else wide
        *parts, shift = Scaler(first, second, self.by).affine(eps, exact)
        # Not of no dimension: before numpy 2 such a one does not widen float16.
        center, divisor = (np.atleast_1d(part).astype(wide) for part in parts)

        def scale(values: NDArray[Any]) -> NDArray[Any]:
            result: NDArray[Any] = normalized(values, center, divisor, shift)
            return result.astype(dtype, copy=False)

        return without_overflow(chunk, key, values, scale, self.name)


@dataclass(frozen=True)
class NormalizeReturn(_Learning, name="normalize_return", example="normalize_return:scale=1000"):
    """Multiply every reward by `scale / (best return - worst return)`.

    As IQL does for D4RL's locomotion datasets, with `scale=1000` (`normalize` in its
    `train_offline.py`, https://github.com/ikostrikov/implicit_q_learning, Kostrikov et al. 2021).
    Zero and the order of returns are preserved. A return is the undiscounted sum of an episode's
    rewards; non-finite ones are ignored.

    Rewards keep a floating-point type, others become float32; the product is computed in float64.

    Raises:
        UsageError: `scale` is not a number above 0.
        StepError: All finite returns are equal, or there are none; a reward exceeds the range of
            its type.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> chunk = toy_chunk([1, 1])
        >>> chunk.batch.returns.tolist()
        [0.125, 125.125]
        >>> step = NormalizeReturn(scale=1000)
        >>> step.fitted([step.measure(chunk)]).apply(chunk).batch.returns.tolist()
        [1.0, 1001.0]
    """

    scale: Annotated[float, number("a finite number above 0", lambda scale: scale > 0)] = 1000.0
    """Range of returns (maximum minus minimum) afterwards."""
    learnt: Mapping[str, Any] | None = field(
        default=None, hash=False, repr=False, metadata={"state": True}
    )
    """`minimum` and `maximum` of the finite returns, and the number of `not_finite` ones."""

    def settled(self, probe: EpisodeChunk) -> Self:
        return self

    def measure(self, chunk: EpisodeChunk) -> Moments:
        rewards(chunk, self.name)  # raises where there are none
        return moments_of(chunk.batch.returns)

    def fitted(self, measures: Sequence[Moments]) -> Self:
        found = reduce(Moments.merge, measures, Moments())
        low, high = found.minimum, found.maximum
        if low is None or high is None or not 0 < high - low < inf:
            returns = f"all {found.count} finite returns are {low}"
            raise StepError(
                f"Step 'normalize_return' divides by the best return less the worst, and "
                f"{returns if found.count else 'no return is finite'}",
                hint="reward_scale multiplies rewards by a number of your choice",
            )
        figures = {"minimum": low, "maximum": high, "not_finite": found.not_finite}
        return replace(self, learnt=figures)

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        learnt, given = self._require_learnt(), rewards(chunk, self.name)
        dtype = given.dtype if given.dtype.kind == "f" else np.float32
        factor = self.scale / (learnt["maximum"] - learnt["minimum"])

        def scale(values: NDArray[Any]) -> NDArray[Any]:
            product: NDArray[Any] = np.multiply(values, factor, dtype=np.float64)
            return product.astype(dtype, copy=False)

        made = without_overflow(chunk, REWARD, given, scale, self.name)
        return replace_columns(chunk, {REWARD: made})

    def notes(self) -> tuple[str, ...]:
        missing = self.state().get("not_finite")
        if not missing:
            return ()
        found = plural(missing, "episode has", "episodes have")
        note = f"normalize_return: {found} a return that is NaN or infinite, outside of the range"
        return (f"{note} of returns",)
