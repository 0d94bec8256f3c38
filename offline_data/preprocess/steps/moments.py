"""Mean and spread of a leaf, number by number of a row, merged from pieces in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_ITEMS = 1 << 16
"""Numbers that are looked at together: their float64 copy stays in the cache."""

_LEAST_ROWS = 16
_NARROW = 64


@dataclass(frozen=True)
class ItemMoments:
    """Figures of the finite values seen of each number of a row; arrays have a row's shape.

    `a.merge(b)` is what `item_moments` gives for the rows of both, up to rounding.

    Example:
        >>> both = item_moments(np.array([[1, 8], [2, 8]])).merge(item_moments(np.array([[6, 8]])))
        >>> both.mean.tolist(), (both.squares / both.count).tolist()
        ([3.0, 8.0], [4.666666666666667, 0.0])
    """

    count: NDArray[np.int64]
    """Finite values."""
    mean: NDArray[np.float64]
    """Their mean, 0 where there is none."""
    squares: NDArray[np.float64]
    """Sum of squared distances from the mean."""
    not_finite: int
    """Values of all numbers of the rows that are NaN or infinite."""

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation of the population, as `numpy.std`; 0 where there is no value."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    def merge(self, other: ItemMoments) -> ItemMoments:
        """Return the moments of the rows of both (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        with np.errstate(over="ignore", invalid="ignore"):
            weight = other.count / np.maximum(count, 1)
            delta = other.mean - self.mean
            mean = self.mean + delta * weight
            squares = self.squares + other.squares + delta * delta * self.count * weight
        return ItemMoments(count, mean, squares, self.not_finite + other.not_finite)


def item_moments(values: NDArray[Any], counted: NDArray[np.bool_] | None = None) -> ItemMoments:
    """Measure each number of the rows of a leaf, block by block.

    Args:
        values: `[n, *shape]` real numbers of any strides; not written to.
        counted: `[n]` which rows count; None: all.

    Returns:
        Arrays of shape `[*shape]`. A mean or spread that float64 cannot hold is not finite.
    """
    shape = values.shape[1:]
    step = max(_LEAST_ROWS, BLOCK_ITEMS // max(prod(shape), 1))
    none = ItemMoments(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape), 0)
    blocks = (
        values[begin : begin + step]
        if counted is None or counted[begin : begin + step].all()
        else values[begin : begin + step][counted[begin : begin + step]]
        for begin in range(0, len(values), step)
    )
    return reduce(ItemMoments.merge, map(_block_moments, blocks), none)


def _block_moments(values: NDArray[Any]) -> ItemMoments:
    """Measure some rows at once."""
    shape, rows = values.shape[1:], len(values)
    flat = values.reshape(rows, prod(shape))
    # Few numbers a row: side by side, those of one column add up several times faster.
    numbers = np.array(flat.T, np.float64, order="C" if flat.shape[1] <= _NARROW else "F")
    with np.errstate(over="ignore", invalid="ignore"):
        total = numbers.sum(axis=1)
        count = np.full(len(numbers), rows)
        finite = None if np.isfinite(total).all() else np.isfinite(numbers)
        if finite is not None:
            numbers[~finite] = 0
            count, total = finite.sum(axis=1), numbers.sum(axis=1)
        mean = total / np.maximum(count, 1)
        numbers -= mean[:, None]
        if finite is not None:
            numbers[~finite] = 0
        squares = np.square(numbers, out=numbers).sum(axis=1)
    missing = numbers.size - int(count.sum())
    return ItemMoments(count.reshape(shape), mean.reshape(shape), squares.reshape(shape), missing)
