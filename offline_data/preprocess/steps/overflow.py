"""Arithmetic on a leaf that says which row became too large for its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import Key, join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.leaves import place

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece


def held(
    piece: Piece,
    key: Key,
    values: NDArray[Any],
    operation: Callable[[NDArray[Any]], NDArray[Any]],
    step: str,
) -> NDArray[Any]:
    """Return `operation(values)`, whose finite numbers stay finite.

    Args:
        piece: The episodes, for messages.
        key: The column whose rows `values` has.
        values: `[n, …]` numbers.
        operation: Computes each number of the result from the same one of `values`, by numpy, which
            takes note of overflows: nothing is read a second time.
        step: Name of the step, for messages.

    Raises:
        StepError: A finite number became infinite; names the row.
    """
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return operation(values)
    except FloatingPointError as error:
        with np.errstate(over="ignore", invalid="ignore"):
            result = operation(values)
        lost = np.nonzero(np.isfinite(values) & ~np.isfinite(result))[0]
        if not len(lost):  # a parameter alone was too large for the type
            return result
        raise not_held(piece, key, int(lost[0]), result.dtype, step) from error


def not_held(piece: Piece, key: Key, row: int, dtype: np.dtype[Any], step: str) -> StepError:
    """Return the error of a row whose result does not fit a type."""
    return StepError(
        f"Step {step!r} on {join_key(key)!r} in {place(piece, key, row)} gives what {dtype} cannot "
        "hold"
    )
