"""Slices as the rows of one batch, laid end to end or padded, and what marks their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SliceRows(NamedTuple):
    """The rows of `S` slices, one slice after the other."""

    rows: NDArray[np.int64]
    """`[B]` rows of the storage."""
    first: NDArray[np.bool_]
    """`[B, 1]` whether a row is the first of its slice."""
    last: NDArray[np.bool_]
    """`[B, 1]` whether a row is the last of its slice, padding not counted."""
    mask: NDArray[np.bool_] | None
    """`[B]` whether a row is of its slice, where the slices were padded."""


def laid_out(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> SliceRows:
    """Lay slices end to end: `B = Σ lengths`.

    Args:
        starts: `[S]` first row of each.
        lengths: `[S]` rows of each, at least one.

    Example:
        >>> laid_out(np.array([7, 2]), np.array([1, 3])).rows.tolist()
        [7, 2, 3, 4]
    """
    ends = np.cumsum(lengths)
    before = ends - lengths
    rows = np.repeat(starts - before, lengths) + np.arange(ends[-1])
    return SliceRows(rows, _marked(len(rows), before), _marked(len(rows), ends - 1), None)


def laid_out_evenly(starts: NDArray[np.int64], width: int) -> SliceRows:
    """Lay slices of `width` rows each end to end: `B = S · width`."""
    rows = (starts[:, None] + np.arange(width)).reshape(-1)
    first, last = np.zeros((2, len(rows), 1), bool)
    first[::width] = True
    last[width - 1 :: width] = True
    return SliceRows(rows, first, last, None)


def padded(starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int) -> SliceRows:
    """Lay slices end to end, each filled up to `width` with its last row: `B = S · width`.

    Example:
        >>> slices = padded(np.array([7, 2]), np.array([1, 3]), 3)
        >>> slices.rows.tolist(), slices.last[:, 0].nonzero()[0].tolist()
        ([7, 7, 7, 2, 3, 4], [0, 5])
    """
    time = np.arange(width)
    rows = (starts[:, None] + np.minimum(time, lengths[:, None] - 1)).reshape(-1)
    before = np.arange(len(starts)) * width
    return SliceRows(
        rows,
        _marked(len(rows), before),
        _marked(len(rows), before + lengths - 1),
        (time < lengths[:, None]).reshape(-1),
    )


def _marked(count: int, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    marks = np.zeros((count, 1), bool)
    marks[at] = True
    return marks
