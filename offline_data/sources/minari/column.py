"""A column whose rows are appended in place, so that readers write where the batch will be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.sources.minari.leaves import PlannedLeaf


class Column:
    """A leaf of a batch under construction: rows are appended in place.

    Args:
        leaf: What it holds.
        capacity: Rows to make room for; more are made as needed.
    """

    def __init__(self, leaf: PlannedLeaf, capacity: int) -> None:
        self._buffer: NDArray[Any] = np.zeros((capacity, *leaf.shape), leaf.dtype)
        self._filled = 0

    def extend(self, rows: int) -> NDArray[Any]:
        """Return the next `rows` rows, to be written by the caller."""
        begin, self._filled = self._filled, self._filled + rows
        if self._filled > len(self._buffer):
            room = (max(self._filled, len(self._buffer) * 3 // 2), *self._buffer.shape[1:])
            larger = np.zeros(room, self._buffer.dtype)
            larger[:begin] = self._buffer[:begin]
            self._buffer = larger
        return self._buffer[begin : self._filled]

    @property
    def values(self) -> NDArray[Any]:
        """All rows so far."""
        return self._buffer[: self._filled]
