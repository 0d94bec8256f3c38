"""Quantiles of many features from one pass, in bounded memory, with a known rank error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Levels of the quantiles that are reported."""

LEVELS = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
"""Levels that LeRobot stores, by name; openpi stores the first and the last."""

_MOST, _LEAST, _MEMORY = 8192, 1024, 1 << 18
"""Values per feature and level, and of all features of a level."""


class QuantileSketch:
    """Quantiles of the finite values of `features` features.

    Values are kept until there are `size` of each feature. Then they are sorted, every second one
    is kept with twice the weight, and these go to the next level, where the same happens (Munro and
    Paterson, 1980). Halving items of weight `w` changes the rank of any value by at most `w`, up if
    the first of each pair is kept, down if the second is. Both kinds are added up and balanced, so
    the error of the data at hand is known: about `log2(2 n / size) / (2 size)` of `n` rows.
    There is no randomness: the same blocks in the same order give the same result.

    NaN and infinite values are sorted behind the finite ones and do not count.

    Example:
        >>> seen = QuantileSketch(1)
        >>> seen.add(np.arange(1000.0)[None])
        >>> seen.quantiles([0.01, 0.5]).tolist(), seen.rank_error
        ([[9.99, 499.5]], 0.0)
        >>> for begin in range(1000, 1000000, 1000):
        ...     seen.add(np.arange(begin, begin + 1000.0)[None])
        >>> seen.rank_error < 0.0006
        True
    """

    def __init__(self, features: int, size: int | None = None) -> None:
        self.size = size or int(np.clip(_MEMORY // max(features, 1), _LEAST, _MOST))
        self.rows = 0
        self.count = np.zeros(features, np.int64)  # finite values of each feature
        self.low: NDArray[Any] = np.full(features, np.nan)
        """Least finite value of each feature, exact, NaN if there is none; like `high`."""
        self.high: NDArray[Any] = self.low
        self._levels: list[NDArray[Any]] = []
        self._up = self._down = 0

    @property
    def not_finite(self) -> int:
        """Number of values that are NaN or infinite."""
        return self.rows * len(self.count) - int(self.count.sum())

    @property
    def rank_error(self) -> float:
        """Bound of the error of a quantile's rank, as a share of the rows; 0 while all are kept."""
        return max(self._up, self._down) / max(self.rows, 1)

    def add(self, values: NDArray[Any]) -> None:
        """Add values `[features, n]`, `n > 0`: real numbers or booleans, in either memory order."""
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        elif values.dtype == np.float16:  # which is sorted slowly
            values = values.astype(np.float32)
        count: Any = values.shape[1]
        low, high = np.min(values, 1), np.max(values, 1)  # NaN where there is one
        if values.dtype.kind == "f" and not (np.isfinite(low) & np.isfinite(high)).all():
            values = np.where(np.isfinite(values), values, values.dtype.type(np.nan))
            low, high = np.fmin.reduce(values, 1), np.fmax.reduce(values, 1)
            count = values.shape[1] - np.isnan(values).sum(axis=1)
        self._count(values.shape[1], count, low, high)
        self._push(0, values)

    def merge(self, other: QuantileSketch) -> QuantileSketch:
        """Return the sketch of the values of both; neither is changed."""
        both = QuantileSketch(len(self.count), min(self.size, other.size))
        for sketch in (self, other):
            if sketch.rows:
                both._count(sketch.rows, sketch.count, sketch.low, sketch.high)
                both._up, both._down = both._up + sketch._up, both._down + sketch._down
                for level, values in enumerate(sketch._levels):
                    both._push(level, values)
        return both

    def quantiles(self, levels: Sequence[float]) -> NDArray[np.float64]:
        """Return quantiles `[features, len(levels)]`, NaN for features without finite values.

        They are interpolated as by `numpy.quantile`; 0 and 1 are the exact minimum and maximum.
        """
        out = np.full((len(self.count), len(levels)), np.nan)
        if not self.rows:
            return out
        values = np.concatenate(self._levels, axis=1)
        weights = np.repeat(1 << np.arange(len(self._levels)), [v.shape[1] for v in self._levels])
        order = np.argsort(values, axis=1, kind="stable")
        ends, values = np.cumsum(weights[order], axis=1), np.take_along_axis(values, order, axis=1)
        numbers, last = np.arange(len(values)), values.shape[1] - 1
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        for place, level in enumerate(levels):
            rank = level * (np.maximum(self.count, 1) - 1)
            below, above = (
                # Beyond the finite values that were kept, the maximum is within the error.
                np.fmin(values[numbers, np.minimum((ends <= of[:, None]).sum(axis=1), last)], high)
                for of in (np.floor(rank), np.ceil(rank))
            )
            share = rank - np.floor(rank)
            out[:, place] = below * (1 - share) + above * share
            if level in {0, 1}:
                out[:, place] = high if level else low
        out[self.count == 0] = np.nan
        return out

    def _count(self, rows: int, count: Any, low: NDArray[Any], high: NDArray[Any]) -> None:
        first = not self.rows
        self.rows, self.count = self.rows + rows, self.count + count
        self.low = low if first else np.asarray(np.fmin(self.low, low))
        self.high = high if first else np.asarray(np.fmax(self.high, high))

    def _push(self, level: int, values: NDArray[Any]) -> None:
        """Add values of weight `2**level`; halve this level and those above while they are full."""
        while True:
            if level == len(self._levels):
                self._levels.append(values[:, :0].copy())
            held = np.concatenate([self._levels[level], values], axis=1)
            if held.shape[1] < self.size:
                self._levels[level] = held
                return
            odd = held.shape[1] % 2
            self._levels[level] = held[:, :odd].copy()
            # Numbers of two bytes at most are sorted by radix.
            kind: Any = "stable" if held.dtype.itemsize <= 2 else None
            ordered = np.sort(held[:, odd:], axis=1, kind=kind)
            second = self._up > self._down
            values = ordered[:, int(second) :: 2]
            self._up, self._down = (
                self._up + (0 if second else 1 << level),
                self._down + (1 << level if second else 0),
            )
            level += 1
