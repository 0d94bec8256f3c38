"""The face of an ensemble that reads: sub-batches of its members, and their rows by index."""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.ensembles.indexing import is_all, members_at, split_index
from offline_data.buffers.ensembles.stacking import INDEX, MEMBER, labelled, stacked
from offline_data.buffers.ensembles.together import gather_together
from offline_data.buffers.ensembles.writer import WriterEnsemble
from offline_data.buffers.mixture.texts import check_texts, differing_texts
from offline_data.buffers.prefetch import Draw, Prefetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from typing_extensions import Self

    from offline_data.buffers.ensembles.sampler import SamplerEnsemble
    from offline_data.buffers.ensembles.storage import StorageEnsemble
    from offline_data.episodes import Key


class EnsembleReading(ReplayBuffer):
    """Batches of several members; `ReplayBufferEnsemble` says what the parts are."""

    members: list[ReplayBuffer]
    _storage: StorageEnsemble
    _sampler: SamplerEnsemble
    _collate_fns: Sequence[Callable[[Any], Any]] | None
    _differing: dict[Key, tuple[int, int]] | None = None

    @property
    def storage(self) -> StorageEnsemble:
        """The storages of the members."""
        return self._storage

    @property
    def sampler(self) -> SamplerEnsemble:
        """The samplers of the members, and which members are drawn."""
        return self._sampler

    def __len__(self) -> int:
        """Return the number of members, as TorchRL's does."""
        return len(self.members)

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: Rows of all sub-batches together, `B`; None: the ensemble's.
            return_info: Whether to return `(batch, info)`.

        Returns:
            A batch `[K, B / K]`, or what transforms made of it; `info` is a TensorDict of the same
            batch size, with the rows of the members' storages and the members in
            `("index", "index")` and `("index", "buffer_ids")`, and what samplers said of them.

        Raises:
            UsageError: No batch size, one that does not fit, or one that is not the one
                prefetched; a member that cannot be sampled.
        """
        if not return_info:
            return super().sample(batch_size)
        batch, leaves = super().sample(batch_size, return_info=True)
        rows = leaves.pop(INDEX)
        parts = [
            TensorDict({**leaves.get(number, {}), INDEX: index}, index.shape)
            for number, index in enumerate(rows[INDEX].unbind(0))
        ]
        return batch, stacked(parts, rows[MEMBER])

    def __getitem__(self, index: Any) -> Any:
        """Return members, or their rows; `ReplayBufferEnsemble` lists the forms.

        Rows of several members are stacked and transformed as batches are, and where one number
        was given `[K]`. Rows of one member are as the member gives them.

        Raises:
            IndexError: A member, or a row, that is not there.
            UsageError: Something that is no index, or rows that cannot be stacked.
        """
        which, rows = split_index(index)
        if is_all(which) and not rows:
            return self
        numbers = members_at(which, len(self))
        if isinstance(numbers, int):
            return self.members[numbers][rows[0]] if rows else self.members[numbers]
        if not rows:
            return self._part(numbers)
        parts = [self.members[number][rows[0]] for number in numbers]
        return self._transformed(self._joined(parts, torch.tensor(numbers)))

    def __repr__(self) -> str:
        members = "".join(f"\n    {member!r}," for member in self.members)
        return (
            f"{type(self).__name__}({members}\n    sampler={self._sampler!r},\n"
            f"    batch_size={self._batch_size},\n)"
        )

    def _draw(self, size: int) -> Draw:
        with ExitStack() as held:
            growing = [member for member in self.members if member._grows]
            for member in sorted(growing, key=id):  # in one order: no two threads wait in a ring
                held.enter_context(member._lock)
            for number, member in enumerate(self.members):  # which may have got other parts
                self._storage.storages[number] = member.storage
                self._sampler.samplers[number] = member.sampler
            return super()._draw(size)

    def _gather(self, rows: Any) -> Any:
        """Return nothing: members gather, each under its own lock, when their part is made."""

    def _finish(self, draw: Draw, gathered: Any) -> Any:  # noqa: ARG002 - see `_gather`
        rows: Any = draw.rows
        numbers, index = rows[MEMBER], rows[INDEX]
        bare = not (draw.info or self._collates or self._collate_fns or self._texts)
        if bare and self._plain:
            batch = gather_together(self._storage.storages, numbers, index)
            if batch is not None:
                return self._transformed(batch)
        drawn = zip(numbers.tolist(), index.unbind(0), strict=True)
        parts = [
            self.members[number].batch_of(rows, draw.info.get(part, {}))
            for part, (number, rows) in enumerate(drawn)
        ]
        return self._transformed(self._joined(parts, numbers))

    @property
    def _texts(self) -> dict[Key, tuple[int, int]]:
        """Text leaves whose codes mean other texts in other members; see `differing_texts`."""
        if self._differing is None:
            self._differing = differing_texts(self.members, [None] * len(self))
        return self._differing

    @property
    def _plain(self) -> bool:
        """Whether batches of members are what their storages gather, with nothing done to them."""
        return not any(
            member._derived or member._first or member._chain.outward or member._pin
            for member in self.members
        )

    def _joined(self, parts: list[Any], numbers: Tensor) -> Any:
        """Collate sub-batches, and stack them unless the ensemble's `collate_fn` will."""
        if self._collate_fns is not None:
            pairs = zip(numbers.tolist(), parts, strict=True)
            parts = [self._collate_fns[number](part) for number, part in pairs]
        if not self._collates:
            batch = stacked(parts, numbers)
            if self._texts and isinstance(batch, TensorDictBase):
                coded = {k for k in self._texts if isinstance(batch.get(k, None), torch.Tensor)}
                check_texts(self._texts, coded)
            return batch
        pairs = zip(numbers.tolist(), parts, strict=True)
        return [labelled(part, number) for number, part in pairs]

    def _part(self, numbers: list[int]) -> Self:
        """Return an ensemble of some members, which shares all else with this one."""
        part = copy(self)
        part.members = [self.members[number] for number in numbers]
        part._storage = self._storage[numbers]
        part._sampler = self._sampler[numbers]
        part._writer = WriterEnsemble(*(member.writer for member in part.members))
        if self._collate_fns is not None:
            part._collate_fns = [self._collate_fns[number] for number in numbers]
        part._ahead = Prefetcher(self._prefetch or 0)
        part._ended = False
        part._differing = None
        return part
