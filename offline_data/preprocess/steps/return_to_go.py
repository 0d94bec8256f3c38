"""`return_to_go`: a leaf with what the rest of the episode gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episodes.fields import REWARD, split_key
from offline_data.preprocess.steps.arguments import check_finite, usage_error
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.naming import check_names
from offline_data.preprocess.steps.overflow import held

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece

_LEAST = 5e-324


@dataclass(frozen=True)
class ReturnToGo(Step):
    """Add the discounted sum of rewards from each transition to its episode's end.

    `Σ_{k≥0} gamma^k r_t+k`, its own reward included, as the derived leaf `return_to_go` does. An
    episode that was truncated is not continued: nothing stands for what would have come. Sums are
    taken in float64; the leaf is float64 where rewards are, else float32, `[1]` a row.

    The sum of an episode is that of its rewards at this point of the recipe: steps that change
    rewards or cut episodes come before. NaN and infinite rewards reach back to the first step.

    Raises:
        UsageError: `gamma` outside 0 to 1.
        StepError: The key is taken or cannot be one; a sum that its type cannot hold.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> piece = ReturnToGo(gamma=0.5).apply(toy_piece([3]))
        >>> piece.batch.steps["next", "reward"][:, 0].tolist()
        [0.125, 0.25, 0.375]
        >>> piece.batch.steps["return_to_go",][:, 0].tolist()
        [0.34375, 0.4375, 0.375]
    """

    name: ClassVar[str] = "return_to_go"
    example: ClassVar[str] = "return_to_go:gamma=0.99"

    gamma: float = 1.0
    """Discount of one step."""
    key: str = "return_to_go"
    """Where the leaf is put, `/` or `.` between the parts of a nested key."""

    def __post_init__(self) -> None:
        check_finite(type(self), "gamma", self.gamma)
        if not 0 <= self.gamma <= 1:
            raise usage_error(type(self), f"has gamma={self.gamma}; expected a number from 0 to 1")

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with the leaf added."""
        steps, key = piece.batch.steps, split_key(self.key)
        check_names([key], [*steps, key], [*piece.batch.observations], self.name)
        rewards = steps[REWARD]
        dtype = np.float64 if rewards.dtype == np.float64 else np.float32
        sums = discounted(rewards.astype(np.float64), piece.batch.lengths, self.gamma)
        leaf = held(piece, REWARD, sums, lambda one: one.astype(dtype, copy=False), self.name)
        return piece.having(steps={**steps, key: leaf})

    def notes(self) -> tuple[str, ...]:
        """Say where sums end."""
        summed = f"{self.key!r} sums the rewards of an episode with gamma={self.gamma}"
        return (f"return_to_go: {summed}, up to its end also where it was truncated",)


def discounted(rewards: NDArray[Any], lengths: NDArray[np.int64], gamma: float) -> NDArray[Any]:
    """Add up, for each row, rewards from it to the end of its episode.

    By doubling: sums over `s` rows, `S[t] += γ^s · S[t + s]`, are sums over `2s`. Each pass takes
    all rows at once, and there are as many as the longest episode has binary digits. What is added
    to a row, and in which order, depends on its own episode alone.

    Args:
        rewards: float64 `[N, …]`, episodes laid end to end; written to.
        lengths: `[E]` rows of each.
        gamma: Discount of one row.

    Returns:
        `rewards`, with the sums in place.

    Example:
        >>> discounted(np.array([1.0, 2, 4, 8]), np.array([3, 1]), 0.5).tolist()
        [3.0, 4.0, 4.0, 8.0]
    """
    end = np.repeat(np.cumsum(lengths), lengths)
    left = (end - np.arange(len(rewards))).reshape(-1, *(1,) * (rewards.ndim - 1))
    shift, longest = 1, int(lengths.max(initial=1)) if gamma else 1
    with np.errstate(invalid="ignore", over="ignore"):
        while shift < longest:
            # A power that is rounded to 0 would make NaN of an infinite reward far ahead.
            later = max(gamma**shift, _LEAST) * rewards[shift:]
            sums = rewards[:-shift]
            np.add(sums, later, out=sums, where=left[:-shift] > shift)
            shift *= 2
    return rewards
