"""Steps for rewards: `reward_clip reward_scale reward_shift return_to_go`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episode.discount import discount_rewards
from offline_data.episode.fields import REWARD, split_key
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.columns import Clip
from offline_data.pipeline.preprocess.steps.leaves import (
    overflow,
    rebuilt,
    replace_columns,
    rewards,
    without_overflow,
)
from offline_data.pipeline.preprocess.steps.parse import FINITE, number
from offline_data.store.chunk import EpisodeChunk


@dataclass(frozen=True)
class RewardClip(Clip, name="reward_clip", example="reward_clip:low=-1,high=1"):
    """Clip the reward; see `Clip`. With -1 and 1: Atari's usual clipped reward.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> RewardClip(high=0.2).apply(toy_chunk([2])).batch.steps["next", "reward"].tolist()
        [[0.125], [0.20000000298023224]]
    """

    keys: tuple[str, ...] = field(
        default=("next/reward",), init=False, repr=False, metadata={"state": True}
    )


@dataclass(frozen=True)
class RewardScale(Step, name="reward_scale", example="reward_scale:0.1"):
    """Multiply the reward: `reward · scale`, computed and stored in the reward's type.

    Integer rewards stay integers if `scale` is an integer, else become float32, as bools always do.
    NaN stays NaN; infinite rewards stay infinite, but times 0 become NaN.

    Raises:
        UsageError: A scale that is not a finite number.
        StepError: A product that overflows the reward's type; names the row.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> RewardScale(8).apply(toy_chunk([2])).batch.steps["next", "reward"].tolist()
        [[1.0], [2.0]]
    """

    scale: Annotated[float, FINITE]
    """Factor, dimensionless."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return _with_reward(chunk, operator.mul, self.scale, self.name)


@dataclass(frozen=True)
class RewardShift(Step, name="reward_shift", example="reward_shift:-1"):
    """Add to the reward: `reward + shift`; types and errors are those of `RewardScale`.

    With -1, as is usual for sparse rewards of 0 and 1, every step costs 1 and success 0. NaN and
    infinite rewards are unchanged.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> RewardShift(-1).apply(toy_chunk([2])).batch.steps["next", "reward"].tolist()
        [[-0.875], [-0.75]]
    """

    shift: Annotated[float, FINITE]
    """Summand, in the reward's unit."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return _with_reward(chunk, operator.add, self.shift, self.name)


@dataclass(frozen=True)
class ReturnToGo(Step, name="return_to_go", example="return_to_go:gamma=0.99"):
    """Add the discounted sum of rewards from each transition to its episode's end.

    `Σ_{k≥0} gamma^k r_t+k`, including its own reward, over the rewards at this point of the recipe,
    like the derived feature `return_to_go`. Truncated episodes are not extrapolated. Sums are computed
    in float64; the feature is float64 if rewards are, else float32, `[1]` per row. NaN and infinite
    rewards propagate back to the first step.

    Raises:
        UsageError: `gamma` outside 0 to 1.
        StepError: An existing or invalid key; a sum that its type cannot represent.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> chunk = ReturnToGo(gamma=0.5).apply(toy_chunk([3]))
        >>> chunk.batch.steps["next", "reward"][:, 0].tolist()
        [0.125, 0.25, 0.375]
        >>> chunk.batch.steps["return_to_go",][:, 0].tolist()
        [0.34375, 0.4375, 0.375]
    """

    gamma: Annotated[float, number("a number from 0 to 1", lambda gamma: 0 <= gamma <= 1)] = 1.0
    """Discount of one step."""
    key: str = "return_to_go"
    """Key of the feature, nested keys with `/` or `.`."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        given = rewards(chunk, self.name)
        dtype = np.float64 if given.dtype == np.float64 else np.float32
        sums = discount_rewards(given.astype(np.float64), chunk.batch.lengths, self.gamma)
        leaf = without_overflow(
            chunk, REWARD, sums, lambda rows: rows.astype(dtype, copy=False), self.name
        )
        return rebuilt(chunk, self.name, {}, {split_key(self.key): leaf})

    def notes(self) -> tuple[str, ...]:
        summed = f"{self.key!r} sums the rewards of an episode with gamma={self.gamma}"
        return (f"return_to_go: {summed}, up to its end also where it was truncated",)


def _with_reward(
    chunk: EpisodeChunk, operation: Callable[[Any, Any], Any], number: float, step: str
) -> EpisodeChunk:
    """Return the episodes with `operation(reward, number)`; see `RewardScale` for its type."""
    reward = rewards(chunk, step)
    if reward.dtype.kind in "iu" and number == int(number):
        whole, info = int(number), np.iinfo(reward.dtype)

        def fits(value: Any) -> bool:
            return bool(info.min <= operation(int(value), whole) <= info.max)

        if len(reward) and not (fits(reward.min()) and fits(reward.max())):
            row = next(i for i, value in enumerate(reward[:, 0]) if not fits(value))
            raise overflow(chunk, REWARD, row, reward.dtype, step)
        # Modulo 2**64, so that a result that fits is exact whatever the operands are.
        new = operation(reward.astype(np.uint64), np.array(whole % (1 << 64), np.uint64))
        return replace_columns(chunk, {REWARD: np.asarray(new.astype(reward.dtype))})
    dtype = reward.dtype if reward.dtype.kind == "f" else np.dtype(np.float32)

    def reals(values: NDArray[Any]) -> NDArray[Any]:
        other = np.array(number, np.float64).astype(dtype)
        return np.asarray(operation(values.astype(dtype, copy=False), other))

    return replace_columns(chunk, {REWARD: without_overflow(chunk, REWARD, reward, reals, step)})
