"""Histograms and quantiles of many features from one pass, whatever their range, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""Levels of the quantiles that are reported."""

HISTOGRAM_BINS = 64
"""Bins of the histograms that are reported."""

FINE_BINS = 1024
"""Bins in memory per feature."""

_DIGITS = 45
"""A bin is at least `2**-_DIGITS` of the largest value wide, so that its number is exact."""
_NARROWEST = -960
"""Least exponent of a bin's width: smaller values count as 0."""


@dataclass(frozen=True, eq=False)
class FeatureHistogram:
    """Counts of the finite values of each feature in bins of equal width."""

    counts: NDArray[np.int64]
    """`[*shape, bins]`. Bins above the maximum are empty."""
    edges: NDArray[np.float64]
    """`[*shape, bins + 1]`, ascending; bin `i` holds `edges[i] <= value < edges[i + 1]`. Integers
    that span at most `bins` values have bins of width 1. A constant feature of floats is counted in
    bin `bins // 2`, which begins at its value. NaN where no value is finite."""


class Histograms:
    """Counts and sums of the values of `features` features in `FINE_BINS` bins each.

    The bins of a feature are `[i * w, (i + 1) * w)` for consecutive integers `i`, where `w` is the
    least power of two with which they hold all of its values, at least 1 for integers. A range that
    grows merges pairs of bins, so the counts do not depend on the order of the values or on chunks.
    For floats `w` is less than `2 * (max - min) / (FINE_BINS - 1)`, or `2**-44` of the largest
    magnitude.

    Example:
        >>> seen = Histograms(1)
        >>> seen.add(np.array([[0.0, 0.5, 1.0]]), np.array([0.0]), np.array([1.0]))
        >>> seen.add(np.array([[100.0]]), np.array([100.0]), np.array([100.0]))
        >>> seen.quantiles((0, 0.5, 1))
        array([[  0.  ,   0.75, 100.  ]])
    """

    def __init__(self, features: int, *, integers: bool = False) -> None:
        self._integers = integers
        self._counts = np.zeros((features, FINE_BINS), np.int64)
        self._sums = np.zeros((features, FINE_BINS))
        self._low = np.full(features, np.nan)
        self._high = np.full(features, np.nan)
        self._exponent = np.full(features, _NARROWEST)
        self._first = np.zeros(features)

    def add(self, values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> None:
        """Count some values, the features in rows.

        Args:
            values: `[features, n]` real numbers; NaN and infinities are left out.
            low: `[features]` least finite value of each row, NaN if there is none.
            high: `[features]` greatest finite value, like `low`.
        """
        self._widen(np.fmin(self._low, low), np.fmax(self._high, high))
        rows = np.arange(len(values))[:, None] * float(FINE_BINS)
        numbers = values.astype(np.float64)
        # Subtracting is exact: both are whole numbers below 2**53.
        with np.errstate(invalid="ignore", over="ignore"):
            places = numbers * np.ldexp(1.0, -self._exponent)[:, None]
            np.floor(places, out=places)
            places -= self._first[:, None] - rows
            whole = values.dtype.kind != "f" or np.isfinite(places.sum())
        if not whole:
            finite = np.isfinite(numbers)
            places, numbers = places[finite], numbers[finite]
        flat, size = places.ravel().astype(np.intp), self._counts.size
        self._counts += np.bincount(flat, minlength=size).reshape(self._counts.shape)
        weights = numbers.ravel()
        self._sums += np.bincount(flat, weights, minlength=size).reshape(self._sums.shape)

    def quantiles(self, levels: tuple[float, ...] = QUANTILES) -> NDArray[np.float64]:
        """Return estimates of quantiles, `[features, len(levels)]`, NaN without finite values.

        A value is estimated by the mean of its bin, and a quantile as numpy's default does: between
        two neighbours in order. So it is less than a bin `w` from the exact one, and equal to it,
        up to rounding, where all values of a bin are equal: rewards of a few values, integers that
        span fewer than `FINE_BINS`. The levels 0 and 1 are the exact minimum and maximum.
        """
        ends = np.cumsum(self._counts, axis=1)
        total = ends[:, -1]
        with np.errstate(invalid="ignore", over="ignore"):
            means = self._sums / self._counts
            means = np.clip(means, self._low[:, None], self._high[:, None])
        rows, out = np.arange(len(total)), np.full((len(total), len(levels)), np.nan)
        for place, level in enumerate(levels):
            rank = level * (np.maximum(total, 1) - 1)
            below, above = (
                means[rows, np.minimum((ends <= of[:, None]).sum(axis=1), FINE_BINS - 1)]
                for of in (np.floor(rank), np.ceil(rank))
            )
            share = rank - np.floor(rank)
            out[:, place] = below * (1 - share) + above * share
            if level in {0, 1}:
                out[:, place] = self._high if level else self._low
        out[total == 0] = np.nan
        return out

    def histogram(self, shape: tuple[int, ...], bins: int = HISTOGRAM_BINS) -> FeatureHistogram:
        """Return a histogram of each feature in wider bins; `shape` is that of a row."""
        filled = self._counts > 0
        used = np.where(filled.any(axis=1), FINE_BINS - filled[:, ::-1].argmax(axis=1), 1)
        merged = -(-used // bins)
        counts = np.zeros((len(used), bins), np.int64)
        rows = np.repeat(np.arange(len(used)), FINE_BINS)
        places = np.arange(FINE_BINS) // merged[:, None]
        np.add.at(counts, (rows, np.minimum(places, bins - 1).ravel()), self._counts.ravel())
        steps = np.arange(bins + 1)
        numbers = self._first[:, None] + merged[:, None] * steps
        with np.errstate(over="ignore"):
            edges = np.ldexp(numbers, self._exponent[:, None])
        edges = np.minimum(edges, np.finfo(np.float64).max)
        if not self._integers and (constant := self._low == self._high).any():
            value = self._low[constant, None]
            width = np.maximum(1.0, np.abs(value) * 2.0**-20) / bins
            edges[constant] = value + width * (steps - bins // 2)
            counts[constant] = np.roll(counts[constant], bins // 2, axis=1)
        edges[np.isnan(self._low)] = np.nan
        return FeatureHistogram(counts.reshape(*shape, bins), edges.reshape(*shape, bins + 1))

    def _widen(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        """Make bins for the finite values from `low` to `high`, which include all seen."""
        grown = np.flatnonzero(((low != self._low) | (high != self._high)) & ~np.isnan(low))
        if not len(grown):
            return
        self._low, self._high = low, high
        low, high = low[grown], high[grown]
        largest = np.maximum(np.abs(low), np.abs(high))
        least = np.where(largest > 0, np.frexp(largest)[1] - _DIGITS, _NARROWEST)
        exponent = np.maximum(least, 0 if self._integers else _NARROWEST)
        first, last = (np.floor(np.ldexp(of, -exponent)).astype(np.int64) for of in (low, high))
        while (wide := last - first >= FINE_BINS).any():
            first, last, exponent = first >> wide, last >> wide, exponent + wide
        moved = (first != self._first[grown]) | (exponent != self._exponent[grown])
        grown, first, exponent = grown[moved], first[moved], exponent[moved]
        old = self._first[grown].astype(np.int64)[:, None] + np.arange(FINE_BINS)
        merged = np.minimum(exponent - self._exponent[grown], 62)
        places = (old >> merged[:, None]) - first[:, None]
        counts, sums = self._counts[grown], self._sums[grown]
        self._counts[grown], self._sums[grown] = 0, 0
        rows, columns = np.nonzero(counts)
        target = grown[rows], places[rows, columns]
        np.add.at(self._counts, target, counts[rows, columns])
        np.add.at(self._sums, target, sums[rows, columns])
        self._exponent[grown], self._first[grown] = exponent, first
