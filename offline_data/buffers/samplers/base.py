"""The contract of a sampler, and the rows that it may draw."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from offline_data.buffers.checkpoint import Saves
from offline_data.buffers.transforms import spread
from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tensordict import TensorDict
    from torch import Tensor


class ValidRows:
    """All rows `[0, total)` of a storage but `left_out`, `[k]` ascending: `count`, without gaps.

    Example:
        >>> import numpy as np
        >>> rows = ValidRows(6, np.array([2, 3]))
        >>> rows.count, rows.at(torch.arange(4)).tolist()
        (4, [0, 1, 4, 5])
    """

    def __init__(self, total: int, left_out: NDArray[np.int64]) -> None:
        self.count = total - len(left_out)
        self.left_out = left_out
        # A row is its number plus the rows left out at or before it.
        skips = torch.as_tensor(left_out, dtype=torch.int64)
        self._from = (skips - torch.arange(len(skips))) if len(skips) else None

    def at(self, numbers: Tensor) -> Tensor:
        """Turn numbers in `[0, count)` into rows, int64 of the same shape."""
        if self._from is None:
            return numbers
        return numbers + torch.searchsorted(self._from, numbers, right=True)


@dataclass(frozen=True)
class EpisodeIndex:
    """Rows that follow each other in time: the episodes of a storage, or what it has of them.

    Every row is in exactly one.

    Attributes:
        starts: First row of each episode, int64 `[E]`, ascending.
        lengths: Rows of each episode, int64 `[E]`, at least one.
        final: Whether the observation after each episode's last row is known, bool `[E]`; None:
            it is for all.
        order: Rows, where those of an episode are not adjacent: `starts` and `lengths` are then
            places in `order`, int64 `[rows]`.
    """

    starts: Tensor
    lengths: Tensor
    final: Tensor | None = None
    order: Tensor | None = None

    def of(self, rows: Tensor) -> Tensor:
        """Return the number of the episode that each row is in, int64 of the same shape."""
        return torch.searchsorted(self.starts, rows, right=True) - 1


@dataclass(frozen=True)
class Boundaries:
    """Leaves that separate trajectories, instead of those that a storage looks at by itself.

    `trajectory` has numbers, `ends` are flags, set where any of their elements is. `step` numbers
    the steps of a trajectory whose rows are in any order; None: rows are in order.
    """

    trajectory: Key | None
    ends: tuple[Key, ...]
    step: Key | None = None

    def check_stored(self) -> None:
        """Raise `UsageError` unless the leaves say what the episode index of a dataset does."""
        flags = {*self.ends}
        complete = not flags or DONE in flags or {TERMINATED, TRUNCATED} <= flags
        known = flags <= {DONE, TERMINATED, TRUNCATED} and self.trajectory in (None, ("episode",))
        if not (complete and known) or self.step is not None:
            asked = [key for key in (self.trajectory, *self.ends, self.step) if key is not None]
            raise UsageError(
                f"The episodes of a dataset are stored, and {', '.join(map(join_key, asked))} "
                "cannot take their place",
                hint="leave traj_key, end_key and end_keys out; to cut episodes by another leaf, "
                "copy the rows to a LazyTensorStorage",
            )


class Sampleable(Protocol):
    """Interface of a storage for a sampler."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def rows(self, *, valid_only: bool) -> ValidRows:
        """Return the rows that may be drawn.

        With `valid_only` these leave out transitions whose next observation is unknown and that
        are not terminated.
        """

    def runs(self) -> EpisodeIndex:
        """Return which rows follow each other: the same object until rows are written."""


class Sampler(Saves):
    """Draws the rows of batches; one instance belongs to one buffer.

    A subclass implements `sample`, which is called by one thread at a time, in the order of the
    batches, also where batches are prefetched.
    """

    keeps_together: bool = False
    """Whether a batch must be drawn again if some of its rows are written over before it is
    returned."""

    ran_out: bool = False
    """Whether the last batch ended an epoch: iteration over the buffer stops then."""

    _generator: torch.Generator | None = None  # None: torch's global one
    _computed: tuple[str, ...] = ()  # attributes that a pickle leaves out

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self._computed}

    @abstractmethod
    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw a batch.

        Returns:
            Rows, int64 `[B]`, a tensor that the sampler does not keep (`B` may be less than
            `batch_size` where an epoch ends); and leaves `[B, …]` by key that the sampler adds to
            the batch, which `buffer.sample(return_info=True)` returns too.
        """

    def sampleable(self, storage: Sampleable, batch_size: int) -> int:  # noqa: ARG002
        """Count what a batch of this size would be drawn from, here rows; 0: nothing yet."""
        if not len(storage):
            return 0
        return storage.rows(valid_only=getattr(self, "valid_only", True)).count

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor | None:  # noqa: ARG002
        """Return the rows that `sample` would draw now, changing nothing; None: not known.

        Other rows are drawn if something else draws from the same generator first.
        """
        return None

    def _drawn_by_copy(self, storage: Sampleable, batch_size: int) -> Tensor:
        """Return the rows that a copy of this sampler draws, with a copy of its generator."""
        other = object.__new__(type(self))
        generator = (self._generator or torch.default_generator).clone_state()
        other.__dict__.update(vars(self), _generator=generator)
        return other.sample(storage, batch_size)[0]

    def complete(self, batch: TensorDict, leaves: dict[Any, Tensor]) -> None:
        """Set the leaves that `sample` returned in the gathered batch.

        If rows are trajectories, `[B, T]`, each step gets the value of its row. Several threads
        may call it at once, for different batches.
        """
        for key, leaf in leaves.items():
            batch.set(key, spread(leaf, batch.batch_size))

    def info(self, batch: Any, leaves: dict[Any, Tensor]) -> dict[Any, Tensor]:  # noqa: ARG002
        """Return what `buffer.sample(return_info=True)` says of a batch beside its rows."""
        return leaves

    def extend(self, rows: Tensor) -> None:
        """Note that `rows`, int64 `[n]`, were written in the storage."""

    def add(self, row: int) -> None:
        """Note that one row was written in the storage."""
        self.extend(torch.tensor([row]))

    def empty(self) -> None:
        """Note that the storage was emptied."""

    def set_rng(self, generator: torch.Generator) -> None:
        """Draw from `generator` from now on, instead of from a seed or the global generator."""
        self._generator = generator

    def update_priority(self, rows: Tensor | int, priority: Tensor | float) -> None:  # noqa: ARG002
        """Warn that this sampler has no priorities; one that has them updates them."""
        warnings.warn(
            f"update_priority was called, and {type(self).__name__} has no priorities: nothing "
            "changes; offline_data.PrioritizedSampler has them",
            stacklevel=2,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from: here that of the generator, if it has its own."""
        return {} if self._generator is None else {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`; raises `UsageError` if it is of another sampler."""
        if unknown := sorted(state.keys() - {"generator"}):
            raise UsageError(f"{type(self).__name__} has no state; found {unknown}")
        if self._generator is not None and "generator" in state:
            self._generator.set_state(state["generator"])


def seeded(seed: int | None) -> torch.Generator | None:
    """Return a generator with this seed; None stands for torch's global one."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def nothing_to_draw(storage: Sampleable) -> UsageError:
    """Return the error for a storage none of whose rows may be drawn."""
    return UsageError(
        f"None of the {len(storage)} transitions can be sampled: the observation after the "
        "action is not known for any",
        hint="valid_only=False in the sampler takes them as they are",
    )
