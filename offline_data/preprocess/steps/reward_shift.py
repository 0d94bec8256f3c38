"""`reward_shift`: a number added to the reward."""

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
class RewardShift(Step):
    """Add to the reward: `reward + shift`, computed in the reward's dtype.

    With -1, as is usual for sparse rewards of 0 and 1, every step costs 1 and success nothing.
    A reward of integers stays so where `shift` is whole, and else becomes float32, as one of bools
    always does. NaN and infinite rewards stay what they are.

    Raises:
        UsageError: A shift that is not a finite number.
        StepError: A sum that is infinite or does not fit the reward's type; names the row.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> RewardShift(-1).apply(toy_piece([2])).batch.steps["next", "reward"].tolist()
        [[-0.875], [-0.75]]
    """

    name: ClassVar[str] = "reward_shift"
    example: ClassVar[str] = "reward_shift:-1"

    shift: float
    """What is added to every reward."""

    def __post_init__(self) -> None:
        check_finite(type(self), "shift", self.shift)

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with shifted rewards."""
        return with_reward(piece, operator.add, self.shift, self.name)
