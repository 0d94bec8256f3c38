"""First rows of slices of a length that do not cross the end of their episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.buffers.samplers.base import Boundaries, Runs, Sampleable

Law: TypeAlias = Literal["episodes", "starts"]
"""Unit that is drawn uniformly."""


@dataclass(frozen=True)
class Windows:
    """The episodes that slices are taken from, `K` of them, ascending.

    ```
    episode of 5 rows, slices of 3:    0 1 2 3 4     a slice may begin at 3 rows: 0, 1, 2
    episode of 2 rows, slices of 3:    0 1           none, or itself from its first row on
    ```
    """

    starts: NDArray[np.int64]
    """`[K]` first row of each episode."""
    counts: NDArray[np.int64]
    """`[K]` rows from the first one on at which a slice may begin, at least one."""
    lengths: NDArray[np.int64]
    """`[K]` rows of a slice."""
    ends: NDArray[np.int64]
    """`[K]` starts of this episode and all before it, added up."""

    def draw(
        self, law: Law, which: NDArray[np.float64], where: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Turn fractions of `[0, 1)` into slices; returns first rows and lengths, both `[S]`.

        Args:
            law: See `SliceSampler`.
            which: `[S]`, decides the episode (and for `"starts"` the row).
            where: `[S]`, decides the row.
        """
        if law == "episodes":
            return self.at((which * len(self.starts)).astype(np.int64), where)
        number = (which * self.ends[-1]).astype(np.int64)
        episode = np.searchsorted(self.ends, number, side="right")
        after = number - (self.ends[episode] - self.counts[episode])
        return self.starts[episode] + after, self.lengths[episode]

    def at(
        self, episodes: NDArray[np.int64], where: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a slice of each of these episodes (numbers in `[0, K)`); see `draw`."""
        after = (where * self.counts[episodes]).astype(np.int64)
        return self.starts[episodes] + after, self.lengths[episodes]

    def lengths_from(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how long the slices are that begin at `rows`, same shape."""
        return self.lengths[np.searchsorted(self.starts, rows, side="right") - 1]

    def mask(self, count: int) -> NDArray[np.bool_]:
        """Tell for rows `[0, count)` whether a slice may begin there."""
        change = np.zeros(count + 1, np.int8)
        change[self.starts] += 1
        change[self.starts + self.counts] -= 1
        return np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)


def windows(runs: Runs, length: int, *, strict: bool) -> Windows:
    """Find where slices of `length` rows may begin.

    Args:
        runs: The episodes.
        length: Rows of a slice, at least one.
        strict: Whether episodes that are shorter are left out; else they are slices themselves.

    Raises:
        UsageError: All episodes are shorter, and `strict`.
    """
    starts, lengths = runs.starts.numpy(), runs.lengths.numpy()
    if strict:
        starts, lengths = starts[lengths >= length], lengths[lengths >= length]
    if not len(starts):
        raise _too_short(runs, length)
    counts = np.maximum(lengths - length + 1, 1)
    return Windows(starts, counts, np.minimum(lengths, length), np.cumsum(counts))


def runs_by(storage: Sampleable, boundaries: Boundaries | None) -> Runs:
    """Return which rows of a storage follow each other.

    Args:
        storage: Where; one that grows tells its `runs_by` leaves.
        boundaries: Leaves that tell trajectories apart; None: those the storage knows by itself.

    Raises:
        UsageError: Leaves that are not there, or not those that a dataset's index stands for.
    """
    if boundaries is None:
        return storage.runs()
    by_leaves: Callable[[Boundaries], Runs] | None = getattr(storage, "runs_by", None)
    if by_leaves is None:
        boundaries.check_stored()
        return storage.runs()
    return by_leaves(boundaries)


def episodes_of(storage: Sampleable, runs: Runs, *, valid_only: bool) -> Runs:
    """Return the episodes that slices are taken from.

    Args:
        storage: Where.
        runs: Its trajectories.
        valid_only: Whether the last transition of an episode is cut off where its next
            observation is unknown and it is not terminated.
    """
    left_out = storage.rows(valid_only=True).left_out if valid_only else np.zeros(0, np.int64)
    if not len(left_out):
        return runs
    starts, lengths = runs.starts.numpy(), runs.lengths.numpy()
    lengths = lengths - np.isin(starts + lengths - 1, left_out)
    kept = lengths > 0
    return type(runs)(torch.from_numpy(starts[kept]), torch.from_numpy(lengths[kept]))


def _too_short(runs: Runs, length: int) -> UsageError:
    if not len(runs.lengths):
        return UsageError("There is no episode to take a slice from")
    return UsageError(
        f"No episode has {length} transitions; the longest of {len(runs.lengths)} has "
        f"{int(runs.lengths.max())}",
        hint="ask for shorter slices, or take short episodes whole with strict_length=False",
    )
