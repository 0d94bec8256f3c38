"""The base class of samplers, and the rows that they may draw."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, join_key
from offline_data.rows.fields import RANDOM_STATE
from offline_data.rows.state import Saves
from offline_data.rows.transforms import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tensordict import TensorDict


@pickled_by_name
class ValidRows:
    """The rows `[0, total)` except `left_out`, `[k]` ascending, None: no others; `count` of them.

    Example:
        >>> rows = ValidRows(6, np.array([2, 3]))
        >>> rows.count, rows.at(torch.arange(4)).tolist()
        (4, [0, 1, 4, 5])
    """

    def __init__(self, total: int, left_out: NDArray[np.int64] | None = None) -> None:
        self.left_out = left_out = np.zeros(0, np.int64) if left_out is None else left_out
        self.count = total - len(left_out)
        # A row is its number plus the number of rows left out before it.
        skips = torch.as_tensor(left_out, dtype=torch.int64)
        self._from = (skips - torch.arange(len(skips))) if len(skips) else None

    def at(self, numbers: Tensor) -> Tensor:
        """Return the rows of numbers in `[0, count)`, int64 of the same shape."""
        if self._from is None:
            return numbers
        return numbers + torch.searchsorted(self._from, numbers, right=True)


@pickled_by_name
@dataclass(frozen=True)
class RingOrder:
    """Rows of a ring buffer in order of time, one environment after the other.

    Maps positions in that order to row numbers, and back; int64 of any shape. The ring has `steps`
    steps of `width` rows, one for each parallel environment; step `first` comes first.
    """

    steps: int
    first: int = 0
    width: int = 1

    def rows(self, positions: Tensor) -> Tensor:
        """Return the rows at positions."""
        column, step = positions // self.steps, positions % self.steps
        return (step + self.first) % self.steps * self.width + column

    def positions(self, rows: Tensor) -> Tensor:
        """Return the positions of rows."""
        step, column = rows // self.width, rows % self.width
        return column * self.steps + (step - self.first) % self.steps

    def by_row(self, values: Tensor) -> Tensor:
        """Return one value for each position, `[n]`, as one for each row."""
        return values.reshape(self.width, self.steps).T.roll(self.first, 0).reshape(-1)


@pickled_by_name
@dataclass(frozen=True)
class EpisodeIndex:
    """Runs of consecutive rows: the episodes of a storage, or pieces; every row belongs to one."""

    starts: Tensor  # first row of each episode, int64 `[E]`, ascending
    lengths: Tensor  # number of rows of each episode, int64 `[E]`, at least one
    # whether the observation after each episode's last row is known, bool `[E]`; None: for all
    final: Tensor | None = None
    # in which an episode's rows are adjacent, if they are not by number; has `starts` as positions
    order: RingOrder | None = None
    # that each run is a piece of, int64 `[E]`; None: each is of another one
    episode: Tensor | None = None

    def of(self, rows: Tensor) -> Tensor:
        """Return the number of the episode of each row (or position), int64 of the same shape."""
        return torch.searchsorted(self.starts, rows, right=True) - 1


@pickled_by_name
@dataclass(frozen=True)
class Boundaries:
    """Features that separate trajectories, instead of a storage's default ones."""

    trajectory: Key | None  # numbers
    ends: tuple[Key, ...]  # flags; one is set if any of its elements is

    def check_stored(self) -> None:
        """Raise `UsageError` unless the features agree with a dataset's stored episodes."""
        flags = {*self.ends}
        complete = not flags or DONE in flags or {TERMINATED, TRUNCATED} <= flags
        known = flags <= {DONE, TERMINATED, TRUNCATED} and self.trajectory in (None, ("episode",))
        if not (complete and known):
            keys = [key for key in (self.trajectory, *self.ends) if key is not None]
            raise UsageError(
                f"The episodes of a dataset are stored; {', '.join(map(join_key, keys))} cannot "
                "replace them",
                hint="leave traj_key, end_key and end_keys out; to cut episodes by another feature, "
                "copy the rows to a LazyTensorStorage",
            )


class Sampleable(Protocol):
    """Interface of a storage that samplers need."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def rows(self, *, valid_only: bool) -> ValidRows:
        """Return the rows that may be drawn.

        `valid_only` excludes unterminated steps whose next observation is unknown.
        """

    def runs(self) -> EpisodeIndex:
        """Return the runs of consecutive rows: the same object until rows are written."""


class Sampler(Saves):
    """Base class: draws the rows of batches; one instance belongs to one buffer.

    Subclasses implement `sample`, which is called by one thread at a time, in the order of the
    batches, even if batches are prefetched. Their state is that of the generator, or of torch's
    global one, and what they list in `STATE`. Constructors raise `UsageError` for bad arguments.
    """

    STATE: ClassVar = RANDOM_STATE

    keeps_together: bool = False
    """Whether to redraw a prefetched batch if some of its rows are overwritten."""

    ran_out: bool = False
    """Whether the last batch ended an epoch, which stops iteration over the buffer."""

    valid_only: bool = True
    """Whether to leave out steps whose next observation is unknown; see `RandomSampler`."""

    _generator: torch.Generator | None = None  # None: torch's global one

    @property
    def _rng(self) -> torch.Generator | None:
        """The generator; only TorchRL's buffers set it, when they are given this sampler."""
        return self._generator

    @_rng.setter
    def _rng(self, generator: torch.Generator | None) -> NoReturn:  # noqa: ARG002
        raise UsageError(
            f"A {type(self).__name__} of this package draws from storages of this package, and the "
            "buffer is TorchRL's",
            hint="dataset.to_torchrl(sampler=…) takes TorchRL's samplers; offline_data.ReplayBuffer "
            "takes this one",
        )

    _computed: tuple[str, ...] = ()  # attributes that are not pickled

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self._computed}

    @abstractmethod
    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw a batch.

        Returns:
            Rows, int64 `[B]`, a new tensor (`B` may be less than `batch_size` at the end of an
            epoch); and features `[B, …]` by key, which are added to the batch and to the info of
            `buffer.sample(return_info=True)`.

        Raises:
            UsageError: The storage has no such batch.
        """

    def drawable(self, storage: Sampleable) -> int:
        """Return the number of rows that are drawn, alone or in slices."""
        return storage.rows(valid_only=self.valid_only).count if len(storage) else 0

    def sampleable(self, storage: Sampleable, batch_size: int) -> int:  # noqa: ARG002
        """Return the number of rows that a batch of this size may be drawn from."""
        return self.drawable(storage)

    def can_sample(self, storage: Sampleable, batch_size: int) -> bool:
        """Return True if a batch of this size can be drawn now."""
        return self.sampleable(storage, batch_size) > 0

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor | None:  # noqa: ARG002
        """Return the rows that `sample` would draw now, without side effects; None: unknown.

        The prediction is wrong if something else uses the same generator first.
        """
        return None

    def _drawn_by_copy(self, storage: Sampleable, batch_size: int) -> Tensor:
        other = object.__new__(type(self))
        generator = (self._generator or torch.default_generator).clone_state()
        other.__dict__.update(vars(self), _generator=generator)
        return other.sample(storage, batch_size)[0]

    def complete(self, batch: TensorDict, leaves: dict[Any, Tensor]) -> None:
        """Add the features returned by `sample` to the gathered batch.

        If rows are trajectories, `[B, T]`, each step gets the value of its row. Thread-safe for
        different batches.
        """
        for key, leaf in leaves.items():
            batch.set(key, spread(leaf, batch.batch_size))

    def info(self, batch: Any, leaves: dict[Any, Tensor]) -> dict[Any, Tensor]:  # noqa: ARG002
        """Return what `buffer.sample(return_info=True)` returns besides the rows."""
        return leaves

    def extend(self, index: Tensor) -> None:
        """Handle rows written to the storage, int64 `[n]`."""

    def add(self, index: int) -> None:
        """Handle one row written to the storage."""
        self.extend(torch.tensor([index]))

    def empty(self) -> None:
        """Handle that the storage was emptied."""

    def reserve(self, count: int) -> None:
        """Handle that the storage has rows `[0, count)`, which may get priorities."""

    def set_rng(self, generator: torch.Generator) -> None:
        """Use `generator` instead of a seed or the global generator."""
        self._generator = generator

    def update_priority(
        self,
        index: Tensor | int,  # noqa: ARG002
        priority: Tensor | float,  # noqa: ARG002
        *,
        storage: Any = None,  # noqa: ARG002 - TorchRL's signature
    ) -> None:
        """Warn that this sampler has no priorities; overridden by prioritized samplers."""
        warnings.warn(
            f"update_priority was called, but {type(self).__name__} has no priorities: nothing "
            "changes; use offline_data.PrioritizedSampler",
            stacklevel=2,
        )

    def mark_update(self, index: Tensor | int, *, storage: Any = None) -> None:
        """Handle that the values of rows have changed, as TorchRL's buffers report it."""

    def check_state(self, state: Any, above: Any = None) -> None:
        """Refuse the state of another sampler, too, if this one has none of its own."""
        super().check_state(state, above)
        if self.STATE is RANDOM_STATE and (
            unknown := sorted(map(str, state.keys() - RANDOM_STATE))
        ):
            raise UsageError(f"{type(self).__name__} has no state; found {unknown}")


def make_generator(seed: int | None) -> torch.Generator | None:
    """Return a generator with this seed, or None for torch's global one."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def nothing_to_draw(storage: Sampleable) -> UsageError:
    """Return the error for a storage without any row to draw."""
    return UsageError(
        f"None of the {len(storage)} transitions can be sampled: the observation after the "
        "action is not known for any",
        hint="valid_only=False in the sampler includes them",
    )
