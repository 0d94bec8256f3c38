"""Figures of one leaf: numbers by their moments, text by how often each word occurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from offline_data.errors import ManifestError
from offline_data.reports.moments import Moments, moments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from offline_data.reports.moments import Number

MOST_COMMON = 5
"""Words of a text leaf that are named."""


@dataclass(frozen=True)
class LeafStats:
    """Figures of all items of one numeric leaf, over the finite ones."""

    key: str
    """TED key, parts joined by `/`."""
    dtype: str
    """numpy name of the item type."""
    shape: tuple[int, ...]
    """Shape of one row."""
    rows: int
    """Rows looked at: `N`, or for observations one more per episode that has its last one."""
    min: Number | None
    """Least value; None for complex leaves and where no item is finite, like the next three."""
    max: Number | None
    """Greatest value."""
    mean: float | None
    """Mean in float64."""
    std: float | None
    """Standard deviation of the population."""
    nan: int
    """Items that are not a number."""
    inf: int
    """Items that are infinite."""


@dataclass(frozen=True)
class TextStats:
    """Figures of one text leaf."""

    key: str
    """TED key, parts joined by `/`."""
    rows: int
    """Rows looked at."""
    distinct: int
    """Different words that occur."""
    missing: int
    """Items where the source has nothing."""
    most_common: tuple[tuple[str, int], ...]
    """Up to `MOST_COMMON` words with how often each occurs, most frequent first."""


class NumberTally:
    """Adds up one numeric leaf.

    Example:
        >>> tally = NumberTally("action", "float32", (2,))
        >>> tally.add(np.array([[1, 2], [3, 6]], "f4"))
        >>> tally.stats().mean
        3.0
    """

    def __init__(self, key: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.key, self.dtype, self.shape = key, dtype, shape
        self._rows = 0
        self._moments = Moments()

    def add(self, values: NDArray[np.generic]) -> None:
        """Take in `[n, *shape]` rows."""
        self._rows += len(values)
        self._moments = self._moments.merge(moments_of(values))

    def stats(self) -> LeafStats:
        """Return the figures of all rows taken in."""
        seen = self._moments
        return LeafStats(
            self.key,
            self.dtype,
            self.shape,
            self._rows,
            seen.minimum,
            seen.maximum,
            seen.mean if seen.count else None,
            seen.std,
            seen.nan,
            seen.inf,
        )


class WordTally:
    """Adds up one text leaf, stored as codes into `words`; -1 is missing.

    Example:
        >>> tally = WordTally("info/mission", ["go", "stop"])
        >>> tally.add(np.array([1, 1, -1], "i4"))
        >>> tally.stats().most_common
        (('stop', 2),)
    """

    def __init__(self, key: str, words: Sequence[str]) -> None:
        self.key, self._words = key, words
        self._rows = 0
        self._counts = np.zeros(len(words) + 1, np.int64)

    def add(self, codes: NDArray[np.generic]) -> None:
        """Take in `[n, …]` rows of codes; raises `ManifestError` where one names no word."""
        self._rows += len(codes)
        places = codes.astype(np.int64).ravel() + 1
        if places.size and not (places.min() >= 0 and places.max() < len(self._counts)):
            raise ManifestError(
                f"Text leaf {self.key!r} has codes outside its {len(self._words)} words",
                hint="offline-data verify names damaged files",
            )
        self._counts += np.bincount(places, minlength=len(self._counts))

    def stats(self) -> TextStats:
        """Return the figures of all rows taken in; words that are as frequent go by code."""
        counts = self._counts[1:]
        order = np.argsort(-counts, kind="stable")[:MOST_COMMON]
        return TextStats(
            self.key,
            self._rows,
            int((counts > 0).sum()),
            int(self._counts[0]),
            tuple((self._words[i], int(counts[i])) for i in order if counts[i]),
        )
