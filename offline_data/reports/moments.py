"""Moments of numbers that arrive in chunks: count, extremes, mean and spread, merged exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number: TypeAlias = "int | float"


@dataclass(frozen=True)
class Moments:
    """Figures of the finite values seen, and how many were not finite.

    `a.merge(b)` is what `moments_of` gives for the values of both, up to rounding.

    Example:
        >>> both = moments_of(np.array([1, 2])).merge(moments_of(np.array([6])))
        >>> both.count, both.minimum, both.maximum, both.mean
        (3, 1, 6, 3.0)
    """

    count: int = 0
    """Finite values."""
    mean: float = 0.0
    """Their mean, 0 where there is none."""
    squares: float = 0.0
    """Sum of squared distances from the mean."""
    minimum: Number | None = None
    """Least finite value, exact for integers; None where there is none."""
    maximum: Number | None = None
    """Greatest finite value."""
    nan: int = 0
    """Values that are not a number."""
    inf: int = 0
    """Values that are infinite, of either sign."""

    @property
    def std(self) -> float | None:
        """Standard deviation of the population, as `numpy.std`; None without a finite value."""
        return math.sqrt(self.squares / self.count) if self.count else None

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the values of both (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        weight = other.count / count if count else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            delta = np.float64(other.mean) - self.mean
            mean = self.mean + delta * weight
            squares = self.squares + other.squares + delta * delta * self.count * weight
        return Moments(
            count,
            float(mean),
            float(squares),
            min(_known(self.minimum, other.minimum), default=None),
            max(_known(self.maximum, other.maximum), default=None),
            self.nan + other.nan,
            self.inf + other.inf,
        )


def moments_of(values: NDArray[np.generic]) -> Moments:
    """Measure all items of an array of numbers, of any shape.

    Sums are taken in float64; booleans count as 0 and 1. A spread that float64 cannot hold is
    infinite. Complex numbers have no order: only those that are not finite are counted.
    """
    values, nan, inf = _finite(values) if values.dtype.kind in "fc" else (values, 0, 0)
    if values.size == 0 or values.dtype.kind == "c":
        return Moments(nan=nan, inf=inf)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.sum(dtype=np.float64) / values.size
        distance = np.subtract(values, mean, dtype=np.float64).ravel()
        squares = np.dot(distance, distance)
    low, high = _number(values.min()), _number(values.max())
    return Moments(values.size, float(mean), float(squares), low, high, nan, inf)


def _finite(values: NDArray[np.generic]) -> tuple[NDArray[np.generic], int, int]:
    """Return the finite values, and how many are NaN and infinite."""
    finite = np.isfinite(values)
    if finite.all():
        return values, 0, 0
    nan = int(np.isnan(values).sum())
    return values[finite], nan, int(values.size - finite.sum()) - nan


def _number(value: np.generic) -> Number:
    plain = value.item()
    return plain if isinstance(plain, float) else int(plain)


def _known(*values: Number | None) -> list[Number]:
    return [value for value in values if value is not None]
