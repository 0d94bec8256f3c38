"""`select`: some leaves kept, and what every dataset has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import matching, only
from offline_data.preprocess.steps.naming import REQUIRED

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class Select(Step):
    """Keep these leaves, `next/reward`, `next/terminated` and `next/truncated`; others go.

    Action leaves are all kept where none is named. Values and types stay as they are.

    Raises:
        StepError: A leaf that is not there.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> kept = Select(("obs.position",)).apply(toy_piece([1])).batch
        >>> [*kept.observations], [*kept.steps][:2]
        ([('observation', 'position')], [('action',), ('next', 'reward')])
    """

    name: ClassVar[str] = "select"
    example: ClassVar[str] = "select:observation,action"

    keys: tuple[str, ...] = field(metadata={"many": True})
    """Leaves; the beginning of a key stands for all below it."""

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with these leaves."""
        kept = {*matching(piece, self.keys), *REQUIRED}
        if not any(key[0] == "action" for key in kept):
            kept.update(key for key in piece.batch.steps if key[0] == "action")
        return only(piece, kept)
