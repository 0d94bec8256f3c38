"""Histograms of many features from one pass, whatever their range, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.pickles import pickled_by_name

HISTOGRAM_BINS = 64  # bins of the histograms that are reported

FINE_BINS = 1024  # bins in memory per feature

_DIGITS = 45  # a bin is `2**-_DIGITS` of the largest value wide at least: its number is exact
_FLOAT32 = 100  # exponents of widths up to this have a float32, so that float32 is not converted
_NARROWEST = -960  # least exponent of a bin's width: smaller values count as 0


@pickled_by_name
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
    """Counts of the values of `features` features in `FINE_BINS` bins each.

    The bins of a feature are `[i * w, (i + 1) * w)` for consecutive integers `i`, where `w` is the
    least power of two with which they hold all of its values, at least 1 for integers. A range that
    grows merges pairs of bins, so the counts do not depend on the order of the values or on chunks.
    For floats `w` is less than `2 * (max - min) / (FINE_BINS - 1)`, or `2**-44` of the largest
    magnitude. Integers of 8 bits have the 256 bins of their dtype.

    Example:
        >>> seen = Histograms(1)
        >>> seen.add(np.array([[0.0, 0.5, 1.0]]), np.array([0.0]), np.array([1.0]))
        >>> seen.add(np.array([[100.0]]), np.array([100.0]), np.array([100.0]))
        >>> found = seen.histogram(())
        >>> found.counts[0].item(), found.edges[[0, 1, -1]].tolist()
        (3, [0.0, 1.625, 104.0])
    """

    def __init__(self, features: int, dtype: str | np.dtype[Any] = "float64") -> None:
        kind = np.dtype(dtype)
        self._integers, self._bytes = kind.kind != "f", kind.itemsize == 1
        self.bins = 256 if self._bytes else FINE_BINS  # bins of each feature in memory
        self._counts = np.zeros((features, self.bins), np.int64)
        self._low = np.full(features, np.nan)
        self._high = np.full(features, np.nan)
        self._exponent = np.full(features, 0 if self._bytes else _NARROWEST)
        self._first = np.full(features, -128.0 if kind == np.int8 else 0.0)

    def add(self, values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> None:
        """Count `[features, n]` numbers, in either memory order, without NaN and infinities.

        `low` and `high`, `[features]`, are the extremes of each row's finite values, NaN without
        one.
        """
        rows = np.arange(len(values))[:, None] * self.bins
        if self._bytes:
            self._low, self._high = np.fmin(self._low, low), np.fmax(self._high, high)
            places = values + (rows - self._first.astype(np.int64)[:, None])
        else:
            self._widen(np.fmin(self._low, low), np.fmax(self._high, high))
            narrow = values.dtype == np.float32 and np.abs(self._exponent).max(initial=0) < _FLOAT32
            numbers = values if narrow else values.astype(np.float64)
            kind = numbers.dtype.type
            # Every step is exact: a power of two, whole numbers, and a difference below 2**24.
            with np.errstate(invalid="ignore", over="ignore"):
                places = numbers * np.ldexp(1.0, -self._exponent).astype(kind)[:, None]
                np.floor(places, out=places)
                places -= self._first.astype(kind)[:, None]
                places += rows.astype(kind)
                whole = self._integers or np.isfinite(places.sum())
            if not whole:
                places = places[np.isfinite(numbers)]
            places = places.astype(np.intp)
        size, flat = self._counts.size, places.ravel("K")
        self._counts += np.bincount(flat, minlength=size).reshape(self._counts.shape)

    def histogram(self, shape: tuple[int, ...], bins: int = HISTOGRAM_BINS) -> FeatureHistogram:
        """Return a histogram of each feature in wider bins; `shape` is that of a row."""
        filled = np.asarray(self._counts > 0)
        begin = filled.argmax(axis=1)[:, None]
        used = self.bins - filled[:, ::-1].argmax(axis=1)[:, None] - begin
        merged: NDArray[np.int64] = np.maximum(-(-used // bins), 1)
        rows, columns = np.nonzero(self._counts)
        counts = np.zeros((len(filled), bins), np.int64)
        places = (columns - begin[rows, 0]) // merged[rows, 0]
        np.add.at(counts, (rows, places), self._counts[rows, columns])
        steps = np.arange(bins + 1)
        numbers = self._first[:, None] + begin + merged * steps
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
        rows, columns = np.nonzero(self._counts[grown])
        target = grown[rows], places[rows, columns]
        kept = self._counts[grown[rows], columns]
        self._counts[grown] = 0
        np.add.at(self._counts, target, kept)
        self._exponent[grown], self._first[grown] = exponent, first
