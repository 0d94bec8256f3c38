"""Which members a batch has sub-batches of, and which rows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from offline_data.buffers.arguments import as_sampler, positive
from offline_data.buffers.assemble import Node, assemble
from offline_data.buffers.ensembles.filling import draw_exactly
from offline_data.buffers.ensembles.indexing import is_all, members_at, split_index
from offline_data.buffers.ensembles.shares import Shares, normalised, sampleable
from offline_data.buffers.ensembles.stacking import INDEX, MEMBER
from offline_data.buffers.ensembles.storage import StorageEnsemble
from offline_data.buffers.samplers import Sampler
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.samplers.base import Sampleable

_ROWS = Node(((MEMBER, 0), (INDEX, 1)), ())
_CPU = torch.device("cpu")


class SamplerEnsemble(Sampler):
    """Draws members, then rows of each: a batch of `B` rows is `K` sub-batches of `B / K`.

    TorchRL's law: **whole sub-batches** come from one member, each member drawn on its own, with
    replacement, so a batch may have several sub-batches of one member and none of another. And
    without `p` every member has the same share, whether it has 10 rows or a million. For rows
    mixed one by one, by steps, episodes or weights, see `offline_data.DatasetMixture`.

    Each sub-batch is a draw of its sampler, of `B / K` rows, of its own (in TorchRL a member's
    sub-batches are one draw that is cut up, so that `num_slices` gives longer slices the more
    sub-batches a member has). If an epoch of a sampler without replacement ends within a
    sub-batch, the next one begins in it.

    Args:
        samplers: One for each member, in order.
        p: Shares of the members, not negative, not all 0: divided by their sum. Or `"sampleable"`:
            by what each could draw from at the time, rows or starts of slices, so that a member
            that is still empty is left out. None: the same for all.
        sample_from_all: One sub-batch of each member, in order; excludes `p`.
        num_buffer_sampled: `K`; None: as many as there are members. With `sample_from_all` it has
            no effect.
        seed: Seed of a generator of its own, which members are drawn by; None: torch's global one.

    Attributes:
        samplers: As given.
        sample_from_all: As given.

    Raises:
        UsageError: No sampler, something that is none, or arguments that exclude each other.

    Example:
        >>> from offline_data.buffers.samplers import RandomSampler
        >>> samplers = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[1, 3])
        >>> samplers.p, samplers.num_buffer_sampled, samplers[0]
        (tensor([0.2500, 0.7500]), 2, RandomSampler(seed=None, valid_only=True))
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Shares = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        seed: int | None = None,
    ) -> None:
        if not samplers:
            raise UsageError("A SamplerEnsemble has one sampler or more; none was given")
        self.samplers = [as_sampler(sampler) for sampler in samplers]
        self.sample_from_all = sample_from_all
        if num_buffer_sampled is not None:
            positive(num_buffer_sampled, "num_buffer_sampled")
        self._count = num_buffer_sampled
        self._p: Tensor | Literal["sampleable"] | None = None
        self.p = p
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    @property
    def p(self) -> Any:
        """Shares that sum to 1, `"sampleable"`, or None; can be set at any time."""
        return self._p

    @p.setter
    def p(self, p: Any) -> None:
        if p is not None and self.sample_from_all:
            raise UsageError(
                "p cannot be combined with sample_from_all, which samples every member"
            )
        self._p = normalised(p, len(self.samplers))

    @property
    def num_buffer_sampled(self) -> int:
        """How many sub-batches a batch has."""
        if self._count is None or self.sample_from_all:
            return len(self.samplers)
        return self._count

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw the rows of a batch.

        Args:
            storage: A `StorageEnsemble` with as many members.
            batch_size: `B`, a multiple of `K`.

        Returns:
            A TensorDict `[K]`, with `buffer_ids` int64 `[K]` and `index` int64 `[K, B / K]`; and
            by the number of the sub-batch what its sampler said of it, where it did.

        Raises:
            UsageError: Another storage; a batch that cannot be cut into `K`; a member whose
                sampler gives too few rows, or none.
        """
        storages = self._storages(storage)
        size = self._size(batch_size)
        members = self._draw_members(storages, size)
        draws = [self._draw(member, storages[member], size) for member in members.tolist()]
        index = torch.stack([rows for rows, _ in draws])
        rows: TensorDict = assemble(_ROWS, [members, index], members.shape, _CPU)
        return rows, {number: leaves for number, (_, leaves) in enumerate(draws) if leaves}

    def complete(self, batch: TensorDict, leaves: dict[Any, Any]) -> None:  # noqa: ARG002
        """Raise `UsageError`: what the samplers say belongs to sub-batches, not to the batch."""
        raise UsageError(
            "A SamplerEnsemble draws for a ReplayBufferEnsemble, not for another buffer",
            hint="ReplayBufferEnsemble(storages=…, samplers=…)",
        )

    def set_rng(self, generator: torch.Generator) -> None:
        """Take randomness from `generator` from now on, for members and for their rows."""
        self._generator = generator
        for sampler in self.samplers:
            sampler.set_rng(generator)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each sampler, by its number, and of a generator of its own."""
        states = {str(number): one.state_dict() for number, one in enumerate(self.samplers)}
        if self._generator is None:
            return states
        return {**states, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        for number, sampler in enumerate(self.samplers):
            sampler.load_state_dict(state[str(number)])
        if self._generator is not None and "generator" in state:
            self._generator.set_state(state["generator"])

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self.samplers)

    def __getitem__(self, index: Any) -> Any:
        """Return a sampler, or an ensemble of some, with their shares of `p`; see `members_at`.

        It has as many sub-batches as it has members, unless `num_buffer_sampled` was given (in
        TorchRL it has as many as the whole ensemble).
        """
        which, _ = split_index(index, rows=False)
        if is_all(which):
            return self
        numbers = members_at(which, len(self))
        if isinstance(numbers, int):
            return self.samplers[numbers]
        part = SamplerEnsemble(
            *(self.samplers[number] for number in numbers),
            p=self._p[numbers] if isinstance(self._p, torch.Tensor) else self._p,
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=self._count,
        )
        part._generator = self._generator
        return part

    def __repr__(self) -> str:
        shares = self._p.tolist() if isinstance(self._p, torch.Tensor) else self._p
        return (
            f"SamplerEnsemble({', '.join(map(repr, self.samplers))}, p={shares!r}, "
            f"sample_from_all={self.sample_from_all}, num_buffer_sampled={self.num_buffer_sampled})"
        )

    def _storages(self, storage: Any) -> list[Any]:
        if not isinstance(storage, StorageEnsemble) or len(storage) != len(self):
            raise UsageError(
                f"A SamplerEnsemble of {len(self)} samplers draws from a StorageEnsemble of as "
                f"many storages; found {storage!r}"
            )
        return storage.storages

    def _size(self, batch_size: int) -> int:
        count = self.num_buffer_sampled
        if batch_size % count:
            raise UsageError(
                f"A batch of {batch_size} cannot be cut into {count} sub-batches of the same size",
                hint=f"{max(batch_size // count, 1) * count} can; offline_data.DatasetMixture "
                "takes any size",
            )
        return batch_size // count

    def _draw_members(self, storages: list[Any], size: int) -> Tensor:
        if self.sample_from_all:
            return torch.arange(len(self.samplers))
        count, generator = self.num_buffer_sampled, self._generator
        if self._p is None:
            return torch.randint(len(self.samplers), (count,), generator=generator)
        shares = self._p
        if isinstance(shares, str):
            shares = sampleable(self.samplers, storages, size)
        return torch.multinomial(shares, count, replacement=True, generator=generator)

    def _draw(self, member: int, storage: Any, size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        try:
            return draw_exactly(self.samplers[member], storage, size)
        except UsageError as error:
            raise UsageError(f"Member {member}: {error.message}", hint=error.hint) from error
