"""`clip`: values of some leaves held within bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episodes.fields import Key, join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import check_finite, usage_error
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import column, numbers, replaced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class Clip(Step):
    """Hold every number of some leaves within bounds; types stay as they are.

    `min(max(x, low), high)`, the bounds rounded to the leaf's type. Infinities become a bound, NaN
    stays NaN. Integers are held between the least and the greatest integer within the bounds.

    Raises:
        UsageError: No bound, one that is not finite, or `low` above `high`.
        StepError: A leaf that is not there or not of real numbers, or no number of its type is
            within the bounds.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> Clip(("action",), high=2.0).apply(toy_piece([3])).batch.steps["action",].max().item()
        2.0
    """

    name: ClassVar[str] = "clip"
    example: ClassVar[str] = "clip:action,low=-1,high=1"

    keys: tuple[str, ...] = field(metadata={"many": True})
    """Leaves; the beginning of a key stands for all leaves of real numbers below it."""
    low: float | None = None
    """Least value; None: no bound."""
    high: float | None = None
    """Greatest value; None: no bound."""

    def __post_init__(self) -> None:
        check_bounds(type(self), self.low, self.high)

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with the leaves clipped."""
        keys = numbers(piece, self.keys)
        return replaced(
            piece, {key: clipped(piece, key, self.low, self.high, self.name) for key in keys}
        )


def check_bounds(step: type[Step], low: float | None, high: float | None) -> None:
    """Raise `UsageError` unless there is a bound, bounds are finite, and `low <= high`."""
    given = {name: b for name, b in (("low", low), ("high", high)) if b is not None}
    for name, bound in given.items():
        check_finite(step, name, bound)
    if not given or sorted(given.values()) != list(given.values()):
        raise usage_error(
            step, f"has low={low}, high={high}; expected one bound or two, low <= high"
        )


def clipped(
    piece: Piece, key: Key, low: float | None, high: float | None, step: str
) -> NDArray[Any]:
    """Return the real numbers of a leaf held within bounds, of the same dtype.

    Raises:
        StepError: No number of the dtype is within the bounds.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> clipped(toy_piece([1]), ("info", "code"), 2.5, 9.5, "clip").tolist()
        [[7], [9]]
    """
    values = column(piece, key)
    least, greatest = _within(values.dtype, low, high)
    if least > greatest:
        raise StepError(
            f"Step {step!r}: {join_key(key)!r} is {values.dtype}, and no such number is between "
            f"{'-inf' if low is None else low} and {'inf' if high is None else high}"
        )
    limits = np.array([least, greatest], values.dtype)
    return np.asarray(np.clip(values, limits[0], limits[1]))


def _within(
    dtype: np.dtype[Any], low: float | None, high: float | None
) -> tuple[float | int, float | int]:
    """Return the least and the greatest number of a type within bounds, infinities included."""
    if dtype.kind == "f":
        reach = float(np.finfo(dtype).max)
        least = -math.inf if low is None else max(low, -reach)
        greatest = math.inf if high is None else min(high, reach)
        return min(least, reach), max(greatest, -reach)
    info = np.iinfo(dtype)
    least = info.min if low is None else max(math.ceil(low), info.min)
    greatest = info.max if high is None else min(math.floor(high), info.max)
    return least, greatest
