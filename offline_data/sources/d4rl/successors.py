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

    jumps: NDArray[np.bool_]
    """`[N]` rows inside episodes whose next observation is not the following row."""
    final: NDArray[Any] | None
    """`[E, …]` its rows at the ends of episodes; None where they are more than `KEPT` bytes."""
    explicit: bool
    """Whether episodes go on where the column jumps, so that it has to be stored beside the
    observations. Else they are cut there, and only its rows at the ends are."""


def compare_next(
    flat: FlatFile,
    file: Any,
    ends: NDArray[np.bool_],
    *,
    keep_episodes: bool = False,
    block: int = BLOCK,
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
        ends: `[N]` which rows are an episode's last; that of the file is one anyhow.
        keep_episodes: Whether episodes go on where the two differ.
        block: Bytes of a column to read at once.
    """
    nbytes = max(1, flat.columns["next_observations"].nbytes)
    size = max(1, block // nbytes)
    jumps = np.zeros(flat.rows, bool)
    final: list[NDArray[Any]] | None = []
    kept = 0
    for start in range(0, flat.rows, size):
        stop = min(start + size, flat.rows)
        after = flat.read(file, "next_observations", start, stop)
        following = flat.read(file, "observations", start + 1, min(stop + 1, flat.rows))
        jumps[start + _differing_rows(after[: len(following)], following)] = True
        jumps[start:stop] &= ~ends[start:stop]
        last = ends[start:stop].copy() if keep_episodes else ends[start:stop] | jumps[start:stop]
        last[-1] |= stop == flat.rows
        kept += nbytes * np.count_nonzero(last)
        final = None if final is None or kept > KEPT else [*final, after[last]]
    joined = None if final is None else np.concatenate(final)
    return NextColumn(jumps, joined, keep_episodes and bool(jumps.any()))


def _differing_rows(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows in which some value differs, ascending."""
    places = np.flatnonzero(found != expected)
    nan = np.isnan(found.reshape(-1)[places]) & np.isnan(expected.reshape(-1)[places])
    width = max(1, found[:1].size)
    return np.unique(places[~nan] // width)
