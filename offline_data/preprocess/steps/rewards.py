"""Arithmetic on the reward, in its own type; what becomes infinite or does not fit is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import REWARD
from offline_data.preprocess.steps.leaves import column, replaced
from offline_data.preprocess.steps.overflow import held, not_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece


def with_reward(
    piece: Piece, operation: Callable[[Any, Any], Any], number: float, step: str
) -> Piece:
    """Return the episodes with `operation(reward, number)` as the reward.

    A floating-point reward is computed with and keeps its dtype. One of integers stays so where
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
        return replaced(piece, {REWARD: _integers(piece, reward, operation, int(number), step)})
    dtype = reward.dtype if reward.dtype.kind == "f" else np.dtype(np.float32)

    def reals(values: NDArray[Any]) -> NDArray[Any]:
        other = np.array(number, np.float64).astype(dtype)
        return np.asarray(operation(values.astype(dtype, copy=False), other))

    return replaced(piece, {REWARD: held(piece, REWARD, reward, reals, step)})


def _integers(
    piece: Piece,
    reward: NDArray[Any],
    operation: Callable[[Any, Any], Any],
    number: int,
    step: str,
) -> NDArray[Any]:
    info, modulus = np.iinfo(reward.dtype), 1 << 64
    # Modulo 2**64, so that a result that fits is exact whatever the operands are.
    new = operation(reward.astype(np.uint64), np.array(number % modulus, np.uint64))

    def fits(one: Any) -> bool:
        return bool(info.min <= operation(int(one), number) <= info.max)

    if len(reward) and not (fits(reward.min()) and fits(reward.max())):
        row = next(i for i, one in enumerate(reward[:, 0]) if not fits(one))
        raise not_held(piece, REWARD, row, reward.dtype, step)
    return np.asarray(new.astype(reward.dtype))
