"""Arithmetic on the reward, in its own type; what becomes infinite or does not fit is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import REWARD, join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.leaves import column, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece


def with_reward(
    piece: Piece, operation: Callable[[Any, Any], Any], number: float, step: str
) -> Piece:
    """Return the episodes with `operation(reward, number)` as the reward.

    A floating-point reward is reckoned with and stays what it is. One of integers stays so where
    `number` is whole, and else becomes float32, as one of bools always does.

    Args:
        piece: The episodes.
        operation: `operator.mul` or `operator.add`.
        number: The other operand, finite.
        step: Name of the step, for messages.

    Raises:
        StepError: A result is infinite or does not fit the type; names the row.

    Example:
        >>> import operator
        >>> from offline_data.testing.pieces import toy_piece
        >>> with_reward(toy_piece([2]), operator.add, 1, "reward_shift").batch.steps[REWARD]
        array([[1.125],
               [1.25 ]], dtype=float32)
    """
    reward = column(piece, REWARD)
    if reward.dtype.kind in "iu" and number == int(number):
        new, lost = _integers(reward, operation, int(number))
    else:
        new, lost = _reals(reward, operation, number)
    if lost is not None:
        raise StepError(
            f"Step {step!r} with {number} on {join_key(REWARD)!r} {reward[lost, 0]} in "
            f"{piece.place(lost)} gives what {new.dtype} cannot hold"
        )
    return replaced(piece, {REWARD: new})


def _reals(
    reward: NDArray[Any], operation: Callable[[Any, Any], Any], number: float
) -> tuple[NDArray[Any], int | None]:
    """Return the results, and the first row whose result is infinite though its reward is not."""
    dtype = reward.dtype if reward.dtype.kind == "f" else np.dtype(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        new = operation(
            reward.astype(dtype, copy=False), np.array(number, np.float64).astype(dtype)
        )
    return new, _first(np.isfinite(reward) & ~np.isfinite(new))


def _integers(
    reward: NDArray[Any], operation: Callable[[Any, Any], Any], number: int
) -> tuple[NDArray[Any], int | None]:
    """Return the results, and the first row whose result does not fit the type."""
    info, modulus = np.iinfo(reward.dtype), 1 << 64
    # Modulo 2**64, so that a result that fits is exact whatever the operands are.
    new = operation(reward.astype(np.uint64), np.array(number % modulus, np.uint64))

    def fits(one: Any) -> bool:
        return bool(info.min <= operation(int(one), number) <= info.max)

    if len(reward) == 0 or (fits(reward.min()) and fits(reward.max())):
        return new.astype(reward.dtype), None
    return new.astype(reward.dtype), next(i for i, one in enumerate(reward[:, 0]) if not fits(one))


def _first(flags: NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(flags)
    return int(found[0]) if len(found) else None
