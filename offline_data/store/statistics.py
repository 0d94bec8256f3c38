"""Mean, standard deviation and extremes of numbers in chunks, merged in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = "int | float"

BLOCK_ITEMS = 1 << 16
"""Numbers that `item_moments` measures at once: their float64 copy fits the cache."""

_ITEMS = 1 << 24  # numbers that `moments_of` measures at once
_LEAST_ROWS = 16
_NARROW = 64


@dataclass(frozen=True)
class Moments:
    """Statistics of the finite values seen, of all items together or per item of a row (arrays).

    `a.merge(b)` equals the statistics of the values of both, up to rounding.

    Example:
        >>> both = moments_of(np.array([1, 2])).merge(moments_of(np.array([6])))
        >>> both.count, both.minimum, both.maximum, float(both.mean)
        (3, 1, 6, 3.0)
        >>> both = item_moments(np.array([[1, 8], [2, 8]])).merge(item_moments(np.array([[6, 8]])))
        >>> both.mean.tolist(), (both.squares / both.count).tolist()
        ([3.0, 8.0], [4.666666666666667, 0.0])
    """

    count: Any = 0
    """Number of finite values."""
    mean: Any = 0.0
    squares: Any = 0.0
    """Sum of squared distances from the mean."""
    minimum: Number | None = None
    """Least finite value, exact for integers; None if there is none or it was not measured."""
    maximum: Number | None = None
    nan: int = 0
    inf: int = 0
    """Number of infinite values of either sign."""

    @property
    def not_finite(self) -> int:
        """Number of values that are NaN or infinite."""
        return self.nan + self.inf

    @property
    def std(self) -> Any:
        """Standard deviation of the population, as `numpy.std`; 0 if there is no value."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    def pool(self) -> Moments:
        """Return the moments of all items of a row together, without extremes.

        Example:
            >>> both = item_moments(np.array([[1, 8], [2, 9]])).pool()
            >>> both.count, both.mean, both.squares
            (4, 5.0, 50.0)
        """
        count = int(np.sum(self.count))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(np.sum(self.mean * self.count)) / max(count, 1)
            squares = np.sum(self.squares) + np.sum(self.count * np.square(self.mean - mean))
        return Moments(count, mean, float(squares), nan=self.nan, inf=self.inf)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the values of both (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        with np.errstate(over="ignore", invalid="ignore"):
            weight = other.count / np.maximum(count, 1)
            delta = np.subtract(other.mean, self.mean)
            mean = self.mean + delta * weight
            squares = self.squares + other.squares + delta * delta * self.count * weight
        low = [one for one in (self.minimum, other.minimum) if one is not None]
        high = [one for one in (self.maximum, other.maximum) if one is not None]
        nan, inf = self.nan + other.nan, self.inf + other.inf
        return Moments(
            count, mean, squares, min(low, default=None), max(high, default=None), nan, inf
        )


def moments_of(values: NDArray[np.generic]) -> Moments:
    """Measure all items of an array of numbers together, in float64; booleans count as 0 and 1.

    For complex numbers only non-finite values are counted.
    """
    if values.size > _ITEMS:  # a large image: as float64 it is eight times larger
        flat = values.reshape(-1)
        parts = (flat[begin : begin + _ITEMS] for begin in range(0, len(flat), _ITEMS))
        return reduce(Moments.merge, map(moments_of, parts))
    nan = inf = 0
    if values.dtype.kind in "fc" and not (finite := np.isfinite(values)).all():
        nan = int(np.isnan(values).sum())
        inf = int(values.size - finite.sum()) - nan
        values = values[finite]
    if values.size == 0 or values.dtype.kind == "c":
        return Moments(nan=nan, inf=inf)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.sum(dtype=np.float64) / values.size
        distance = np.subtract(values, mean, dtype=np.float64).ravel()
        squares = np.dot(distance, distance)
    extremes = (values.min().item(), values.max().item())
    low, high = (one if isinstance(one, float) else int(one) for one in extremes)
    return Moments(values.size, float(mean), float(squares), low, high, nan, inf)


def item_moments(values: NDArray[Any], counted: NDArray[np.bool_] | None = None) -> Moments:
    """Measure each item of the rows of a feature, block by block, without extremes.

    `values` are real, `[n, *shape]` with any strides; `counted` masks `[n]` those to include.
    """
    shape = values.shape[1:]
    step = max(_LEAST_ROWS, BLOCK_ITEMS // max(prod(shape), 1))
    blocks = (
        values[begin : begin + step]
        if counted is None or counted[begin : begin + step].all()
        else values[begin : begin + step][counted[begin : begin + step]]
        for begin in range(0, len(values), step)
    )
    none = Moments(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))
    return reduce(Moments.merge, map(_block_moments, blocks), none)


def _block_moments(values: NDArray[Any]) -> Moments:
    shape, rows = values.shape[1:], len(values)
    flat = values.reshape(rows, prod(shape))
    # With few items per row, summing contiguous columns is several times faster.
    numbers = np.array(flat.T, np.float64, order="C" if flat.shape[1] <= _NARROW else "F")
    nan = inf = 0
    with np.errstate(over="ignore", invalid="ignore"):
        total = numbers.sum(axis=1)
        count = np.full(len(numbers), rows)
        finite = None if np.isfinite(total).all() else np.isfinite(numbers)
        if finite is not None:
            nan = int(np.isnan(numbers).sum())
            inf = int(numbers.size - finite.sum()) - nan
            numbers[~finite] = 0
            count, total = finite.sum(axis=1), numbers.sum(axis=1)
        mean = total / np.maximum(count, 1)
        numbers -= mean[:, None]
        if finite is not None:
            numbers[~finite] = 0
        squares = np.square(numbers, out=numbers).sum(axis=1)
    return Moments(
        count.reshape(shape), mean.reshape(shape), squares.reshape(shape), nan=nan, inf=inf
    )
