"""`reward_scale`: the reward times a number."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offline_data.preprocess.steps.arguments import check_finite
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.rewards import with_reward

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class RewardScale(Step):
    """Multiply the reward: `reward · scale`, computed in the reward's dtype.

    A reward of integers stays so where `scale` is whole, and else becomes float32, as one of bools
    always does. NaN stays NaN; infinite rewards stay infinite, but times 0 become NaN.

    Raises:
        UsageError: A scale that is not a finite number.
        StepError: A product that is infinite or does not fit the reward's type; names the row.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> RewardScale(8).apply(toy_piece([2])).batch.steps["next", "reward"].tolist()
        [[1.0], [2.0]]
    """

    name: ClassVar[str] = "reward_scale"
    example: ClassVar[str] = "reward_scale:0.1"

    scale: float
    """What every reward is multiplied by."""

    def __post_init__(self) -> None:
        check_finite(type(self), "scale", self.scale)

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with scaled rewards."""
        return with_reward(piece, operator.mul, self.scale, self.name)
