"""Episodes of rows: how each ended, its final observation, and where it is cut.

```
row                      0    1    2         3    4             episodes of 3 and 2 steps
terminated of a file     .    .    X         .    .             the second one is truncated
observation  [N]         s0   s1   s2        s3   s4            final: s2 and s4 again, not known
             [N + E]     s0   s1   s2  s2'   s3   s4  s4'       final: s2' and s4'
and after    [N]         s1   s2   s2'       s4   s4'           final: s2' and s4'
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episode.batch import EpisodeBatch
from offline_data.episode.cut import lengths_of, with_final_rows
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, next_of
from offline_data.episode.notes import count_rows


def assemble(
    lengths: NDArray[np.int64],
    steps: Mapping[Key, Any],
    observations: Mapping[Key, Any],
    *,
    terminated: Any = None,
    truncated: Any = None,
    after: Mapping[Key, Any] | None = None,
    jumps: str = "",
    keep: bool = False,
    episodes: Mapping[Key, Any] | None = None,
    warnings: tuple[str, ...] = (),
    **said: Any,
) -> EpisodeBatch:
    """Return `[E]` whole episodes of `N` steps in all; a last step that is not terminated is truncated.

    Args:
        lengths: `[E]` steps of each episode.
        steps: `[N, …]` features but the two flags.
        observations: `[N + E, …]` features, or `[N, …]` without final observations.
        terminated: `[N]` or `[N, 1]`, not 0 where the task ended; None: nowhere.
        truncated: The same of limits of time.
        after: `[N, …]` next observations, each of the dtype and shape of the observation. Where it is
            not the observation of the row after, an episode is cut.
        jumps: What is said of such rows, after their number.
        keep: Whether nothing is cut, and `after` is stored next to the observations.
        episodes: `[E, …]` columns of episodes.
        warnings: As those of the batch, and like them in `said`: `dropped` and `notes`.

    Example:
        >>> seen = {("observation",): np.arange(5)}
        >>> batch = assemble(np.array([3, 2]), {("action",): np.zeros(5)}, seen)
        >>> batch.observations["observation",].tolist(), batch.steps[TRUNCATED][:, 0].tolist()
        ([0, 1, 2, 2, 3, 4, 4], [False, False, True, False, True])
    """
    count, last = int(lengths.sum()), np.cumsum(lengths) - 1
    terminated, truncated = (
        np.zeros((count, 1), bool) if flags is None else np.array(flags, bool).reshape(-1, 1)
        for flags in (terminated, truncated)
    )
    found = after or {}
    known = bool(found) or any(len(column) > count for column in observations.values())
    if keep and found:
        steps = {**steps, **observations, **{next_of(key): one for key, one in found.items()}}
        observations = {}
    elif found:
        ends = np.zeros(count, bool)
        for key, column in found.items():
            ends[differing_rows(column[:-1], observations[key][1:])] = True
        ends[last] = True
        if places := int(ends.sum()) - len(lengths):
            warnings = (*warnings, count_rows(places, jumps))
            lengths, whole = lengths_of(ends), last
            last = np.cumsum(lengths) - 1
            parts = np.searchsorted(whole, last)
            episodes = {key: column[parts] for key, column in (episodes or {}).items()}
    truncated[last] |= ~terminated[last]
    seen = {
        key: with_final_rows(column, lengths, found[key][last] if key in found else None)
        if len(column) == count
        else column
        for key, column in observations.items()
    }
    steps = {**steps, TERMINATED: terminated, TRUNCATED: truncated}
    final = np.full(len(lengths), known)
    return EpisodeBatch(lengths, steps, seen, final, episodes or {}, warnings=warnings, **said)


def differing_rows(found: Any, expected: Any) -> NDArray[np.int64]:
    """Return the rows in which some value differs, ascending; NaN equals NaN.

    Both are numbers, or text, or encoded images, of one shape.
    """
    if hasattr(found, "images"):
        return np.flatnonzero(~found.same_rows(expected))
    if found.dtype == object:
        return np.flatnonzero(found != expected)
    places = np.flatnonzero(found != expected)
    nan = np.isnan(found.reshape(-1)[places]) & np.isnan(expected.reshape(-1)[places])
    width = max(1, found[:1].size)
    return np.unique(places[~nan] // width)
