"""The contract of a sampler, and the rows that it may draw."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from offline_data.buffers.chain import spread
from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tensordict import TensorDict
    from torch import Tensor


EPISODE: Key = ("episode",)
"""Leaf of a dataset's batches with the number of the episode."""


class RowSet:
    """All rows of a storage but a few, numbered without gaps.

    Args:
        total: Rows of the storage.
        left_out: `[k]` rows that are left out, ascending.

    Attributes:
        count: How many rows there are.
        left_out: `[k]` as given.

    Example:
        >>> import numpy as np
        >>> rows = RowSet(6, np.array([2, 3]))
        >>> rows.count, rows.at(torch.arange(4)).tolist()
        (4, [0, 1, 4, 5])
    """

    def __init__(self, total: int, left_out: NDArray[np.int64]) -> None:
        self.count = total - len(left_out)
        self.left_out = left_out
        # Row = number + rows left out at or before it; row x is left out at number x - (those
        # left out before x), and from that number on counts.
        skips = torch.as_tensor(left_out, dtype=torch.int64)
        self._from = (skips - torch.arange(len(skips))) if len(skips) else None

    def at(self, numbers: Tensor) -> Tensor:
        """Turn numbers in `[0, len)` into rows, int64 of the same shape."""
        if self._from is None:
            return numbers
        return numbers + torch.searchsorted(self._from, numbers, right=True)


@dataclass(frozen=True)
class Runs:
    """Rows that follow each other in time: the episodes of a storage, or what it has of them.

    Run `r` has the rows `starts[r]`, …, `starts[r] + lengths[r] - 1`. Every row is in one run.

    Example:
        >>> runs = Runs(torch.tensor([0, 3]), torch.tensor([3, 2]))
        >>> runs.of(torch.tensor([0, 2, 3, 4])).tolist()
        [0, 0, 1, 1]
    """

    starts: Tensor
    """First row of each run, int64 `[R]`, ascending."""
    lengths: Tensor
    """Rows of each run, int64 `[R]`, at least one."""
    final: Tensor | None = None
    """Whether the observation after the last row of each run is known, bool `[R]`; None: it is for
    all of them."""

    def of(self, rows: Tensor) -> Tensor:
        """Return the number of the run that each row is in, int64 of the same shape."""
        return torch.searchsorted(self.starts, rows, right=True) - 1


@dataclass(frozen=True)
class Boundaries:
    """Leaves that tell trajectories apart, in place of those that a storage looks at by itself.

    A trajectory ends with a row where one of the flags is set, and where the number of the
    trajectory is not that of the next row.
    """

    trajectory: Key | None = None
    """Leaf with the number of the trajectory, of any shape `[B, …]`."""
    ends: tuple[Key, ...] = ()
    """Flags, of any shape `[B, …]`: set where one of their parts is."""

    def check_stored(self) -> None:
        """Raise `UsageError` unless the leaves are those that the index of a dataset stands for."""
        own = {DONE} <= {*self.ends} or {TERMINATED, TRUNCATED} <= {*self.ends} or not self.ends
        known = {DONE, TERMINATED, TRUNCATED}
        if own and {*self.ends} <= known and self.trajectory in (None, EPISODE):
            return
        asked = [key for key in (self.trajectory, *self.ends) if key is not None]
        raise UsageError(
            f"The episodes of a dataset are stored, and {', '.join(map(join_key, asked))} cannot "
            "take their place",
            hint="leave traj_key, end_key and end_keys out; to cut episodes by another leaf, copy "
            "the rows to a LazyTensorStorage",
        )


class Sampleable(Protocol):
    """Interface of a storage for a sampler."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def rows(self, *, valid_only: bool) -> RowSet:
        """Return the rows that may be drawn.

        Args:
            valid_only: Whether to leave out transitions whose next observation is unknown and
                that are not terminated.
        """

    def runs(self) -> Runs:
        """Return which rows follow each other; cheap to ask again.

        It is the same object until rows are written.
        """


class Sampler(ABC):
    """Draws the rows of batches; one instance belongs to one buffer.

    A subclass writes `sample`. It is called by one thread at a time for a buffer, in the order of
    the batches, also where batches are prefetched.
    """

    _generator: torch.Generator | None = None
    """Random generator; None: torch's global one."""

    keeps_together: bool = False
    """Whether rows of a batch belong together, so that a batch must be drawn again where some of
    its rows are written over before it is handed out."""

    ran_out: bool = False
    """Whether the batch drawn last ended an epoch: then iteration over the buffer stops."""

    @abstractmethod
    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw a batch.

        Returns:
            Rows, int64 `[B]`, a tensor that the sampler does not keep (`B` may be less than
            `batch_size` where an epoch ends); and leaves `[B, …]` by key that the sampler knows
            of them: they are set in the batch, and given by `buffer.sample(return_info=True)`.
        """

    def sampleable(self, storage: Sampleable, batch_size: int) -> int:  # noqa: ARG002
        """Count what a batch of this size would be drawn from; 0: nothing can be drawn now.

        Here: the rows that may be drawn.
        """
        if not len(storage):
            return 0
        return storage.rows(valid_only=getattr(self, "valid_only", True)).count

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor | None:  # noqa: ARG002
        """Return the rows that `sample` would draw now, changing nothing; None: not known.

        Others come where something else draws from the same generator first.
        """
        return None

    def _drawn_by_copy(self, storage: Sampleable, batch_size: int, **attributes: Any) -> Tensor:
        """Return the rows that a copy draws: one with other `attributes`, and its own randomness."""
        other = object.__new__(type(self))
        generator = (self._generator or torch.default_generator).clone_state()
        other.__dict__.update(vars(self), _generator=generator, **attributes)
        return other.sample(storage, batch_size)[0]

    def complete(self, batch: TensorDict, leaves: dict[Any, Tensor]) -> None:
        """Set in a gathered batch what `sample` said of it; here: leaf by leaf.

        If rows are trajectories, `[B, T]`, each of their steps gets the priority of the row.

        A subclass may combine its leaves with what is there. Several threads may call it at once,
        for different batches.

        Args:
            batch: `[B]`, changed in place; no leaf of it is written to.
            leaves: As `sample` gave them.
        """
        for key, leaf in leaves.items():
            batch.set(key, spread(leaf, batch.batch_size))

    def extend(self, rows: Tensor) -> None:  # noqa: B027 - most samplers have nothing to note
        """Take note that `rows`, int64 `[n]`, were written in the storage; nothing by default."""

    def add(self, row: int) -> None:
        """Take note that one row was written in the storage."""
        self.extend(torch.tensor([row]))

    def empty(self) -> None:  # noqa: B027 - a sampler may have nothing to forget
        """Take note that the storage was emptied; nothing by default."""

    def set_rng(self, generator: torch.Generator) -> None:
        """Take randomness from `generator` from now on, not from a seed or the global one."""
        self._generator = generator

    def update_priority(self, rows: Tensor | int, priority: Tensor | float) -> None:  # noqa: ARG002
        """Warn that this sampler has no priorities; one that has them takes them in."""
        warnings.warn(
            f"update_priority was called, and {type(self).__name__} has no priorities: nothing "
            "changes; offline_data.PrioritizedSampler has them",
            stacklevel=2,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that `load_state_dict` resumes from; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; raises `UsageError` where it is none."""
        if state:
            raise UsageError(f"{type(self).__name__} has no state; found {sorted(state)}")


def drawable(storage: Sampleable, *, valid_only: bool) -> RowSet:
    """Return the rows to draw from; raises `UsageError` where there are none."""
    rows = storage.rows(valid_only=valid_only)
    if not rows.count:
        raise UsageError(
            f"None of the {len(storage)} transitions can be sampled: the observation after the "
            "action is not known for any",
            hint="valid_only=False in the sampler takes them as they are",
        )
    return rows
