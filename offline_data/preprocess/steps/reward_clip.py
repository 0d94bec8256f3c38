"""`reward_clip`: the reward held within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offline_data.episodes.fields import REWARD
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.clip import check_bounds, clipped
from offline_data.preprocess.steps.leaves import numbers, replaced

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class RewardClip(Step):
    """Hold the reward within bounds; see `Clip`. With -1 and 1: Atari's usual clipped reward.

    Raises:
        UsageError: No bound, one that is not finite, or `low` above `high`.
        StepError: A reward of bools, or no number of its type is within the bounds.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> RewardClip(high=0.2).apply(toy_piece([2])).batch.steps["next", "reward"].tolist()
        [[0.125], [0.20000000298023224]]
    """

    name: ClassVar[str] = "reward_clip"
    example: ClassVar[str] = "reward_clip:low=-1,high=1"

    low: float | None = None
    """Least reward; None: no bound."""
    high: float | None = None
    """Greatest reward; None: no bound."""

    def __post_init__(self) -> None:
        check_bounds(type(self), self.low, self.high)

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with clipped rewards."""
        numbers(piece, ["next/reward"])
        return replaced(piece, {REWARD: clipped(piece, REWARD, self.low, self.high, self.name)})
