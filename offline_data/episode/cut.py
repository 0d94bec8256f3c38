"""Cutting flat arrays into episodes.

```
row of the flat arrays     0    1    2    3    4
end of an episode          .    .    X    .    X        ends
lengths                    3              2             lengths_of(ends)
row of observations        0 1 2 2        3 4 4         with_final_rows(column, lengths)
                                 └ the row after the last action: s3 if it is known
```
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray


def lengths_of(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the length of each episode; `ends` `[N]` marks last rows; the very last is always one.

    Example:
        >>> lengths_of(np.array([False, False, True, False])).tolist()
        [3, 1]
    """
    last_rows = np.flatnonzero(ends)
    if len(ends) and not ends[-1]:
        last_rows = np.append(last_rows, len(ends) - 1)
    return np.diff(last_rows, prepend=-1).astype(np.int64)


def with_horizon(ends: NDArray[np.bool_], horizon: int) -> NDArray[np.bool_]:
    """Return `ends` `[N]` and one more wherever `horizon` (at least 1) rows follow the last one.

    Example:
        >>> with_horizon(np.array([False, True, False, False, False]), 2).nonzero()[0].tolist()
        [1, 3]
    """
    lengths = lengths_of(ends)
    starts = np.cumsum(lengths) - lengths
    step = np.arange(len(ends)) - np.repeat(starts, lengths)
    return np.asarray(ends | (step % horizon == horizon - 1))


def with_final_rows(
    column: NDArray[np.generic],
    lengths: NDArray[np.int64],
    final: NDArray[np.generic] | None = None,
) -> NDArray[np.generic]:
    """Append a row to each episode of a column.

    Args:
        column: `[N, …]` one row before each action.
        lengths: `[E]`, sum `N`.
        final: `[E, …]` the rows after the last actions; without it, each last row is repeated.

    Returns:
        `[N + E, …]`, a copy, of the column's dtype.

    Example:
        >>> with_final_rows(np.array([1, 2, 7]), np.array([2, 1])).tolist()
        [1, 2, 2, 7, 7]
    """
    ends = np.cumsum(lengths)
    copies = np.ones(len(column), np.int64)
    copies[ends - 1] = 2
    rows = np.repeat(np.arange(len(column)), copies)
    if (join := getattr(column, "joined_with", None)) is not None:  # an `EncodedColumn`
        if final is None:
            return column[rows]
        rows[ends + np.arange(len(ends))] = len(column) + np.arange(len(ends))
        return cast("NDArray[np.generic]", join([final])[rows])
    out = np.take(column, rows, axis=0)
    if final is not None:
        out[ends + np.arange(len(ends))] = final
    return out


def runs_within(sizes: NDArray[np.int64], budget: int) -> list[tuple[int, int]]:
    """Divide episodes into runs `(first, stop)` of at most `budget`; a larger one is a run alone.

    Example:
        >>> runs_within(np.array([2, 2, 9, 1]), 4)
        [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(sizes)
    runs: list[tuple[int, int]] = []
    first = 0
    while first < len(sizes):
        most = int(ends[first] - sizes[first]) + budget
        stop = max(int(np.searchsorted(ends, most, side="right")), first + 1)
        runs.append((first, stop))
        first = stop
    return runs
