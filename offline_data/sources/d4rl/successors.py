"""`next_observations` of a D4RL file: is it the following observation, so that one copy does?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.sources.d4rl.file import FlatFile

BLOCK = 16 << 20
"""Bytes of each of the two columns held at once while they are compared."""

KEPT = 16 << 20
"""Bytes of final observations that are kept, so that the column need not be read again."""


@dataclass(frozen=True, eq=False)
class NextColumn:
    """What was found in `next_observations`."""

    differing: int
    """Rows inside episodes that are not the following row's observation."""
    final: NDArray[Any] | None
    """`[E, …]` its rows at the ends of episodes; None where they are more than `KEPT` bytes."""


def compare_next(
    flat: FlatFile, file: Any, last_rows: NDArray[np.int64], block: int = BLOCK
) -> NextColumn:
    """Compare every row of `next_observations` with the observation that follows.

    ```
    row                  t      t+1              compared unless t is an episode's last row
    observations         s_t    s_t+1  ◄─┐
    next_observations    n_t  ───────────┘
    ```

    Values are compared as numbers, without tolerance; NaN equals NaN. Both columns are read once,
    in blocks.

    Args:
        flat: The file; it has `next_observations`.
        file: The same, open.
        last_rows: `[E]` last row of each episode, ascending; the last is the file's.
        block: Bytes of a column to read at once.
    """
    column = flat.columns["next_observations"]
    keep = len(last_rows) * column.nbytes <= KEPT
    size = max(1, block // max(1, column.nbytes))
    differing, final = 0, []
    for start in range(0, flat.rows, size):
        after = flat.read(file, "next_observations", start, min(start + size, flat.rows))
        following = flat.read(file, "observations", start + 1, min(start + 1 + size, flat.rows))
        first, stop = np.searchsorted(last_rows, (start, start + len(after)))
        ends = last_rows[first:stop] - start
        rows = _differing_rows(after[: len(following)], following)
        differing += len(np.setdiff1d(rows, ends, assume_unique=True))
        final.append(after[ends] if keep else after[:0])
    return NextColumn(differing, np.concatenate(final) if keep else None)


def _differing_rows(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows in which some value differs, ascending."""
    places = np.flatnonzero(found != expected)
    nan = np.isnan(found.reshape(-1)[places]) & np.isnan(expected.reshape(-1)[places])
    width = max(1, found[:1].size)
    return np.unique(places[~nan] // width)
