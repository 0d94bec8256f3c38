"""`flatten`: every row of a leaf as one axis of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import changed, leaves, matching

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.piece import Piece

_DEFAULT = ("observation", "action")


@dataclass(frozen=True)
class Flatten(Step):
    """Give rows of some leaves one axis: `[n, a, b]` becomes `[n, a · b]`, and `[n]` `[n, 1]`.

    The last axis runs fastest, as in `torch.flatten`. Values and types stay as they are.

    Raises:
        StepError: A leaf that is not there.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> batch = Flatten().apply(toy_piece([2])).batch
        >>> batch.observations["observation", "velocity"].shape
        (3, 1)
    """

    name: ClassVar[str] = "flatten"
    example: ClassVar[str] = "flatten:observation.pixels"

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Leaves; the beginning of a key stands for all below it. None named: all whose key begins
    with `observation` or `action`."""

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with flat leaves."""
        return changed(piece, self._meant(piece), _flat)

    def _meant(self, piece: Piece) -> list[Key]:
        if self.keys:
            return matching(piece, self.keys)
        return [key for key in leaves(piece) if key[0] in _DEFAULT]


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), prod(values.shape[1:]))
