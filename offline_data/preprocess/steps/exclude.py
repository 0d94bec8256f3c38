"""`exclude`: some leaves dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import leaves, matching, only
from offline_data.preprocess.steps.naming import check_required

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class Exclude(Step):
    """Drop these leaves; values and types of all others stay as they are.

    Raises:
        StepError: A leaf that is not there, or one that every dataset has: `next/reward`,
            `next/terminated`, `next/truncated`, the last action leaf.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> [*Exclude(("info", "obs.velocity")).apply(toy_piece([1])).batch.observations]
        [('observation', 'position')]
    """

    name: ClassVar[str] = "exclude"
    example: ClassVar[str] = "exclude:info,observation.velocity"

    keys: tuple[str, ...] = field(metadata={"many": True})
    """Leaves; the beginning of a key stands for all below it."""

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes without these leaves."""
        kept = {*leaves(piece)}.difference(matching(piece, self.keys))
        check_required(kept, self.name)
        return only(piece, kept)
