"""`ReplayBuffer`: a storage, a sampler, a writer and transforms, under TorchRL's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from offline_data.buffers.arguments import (
    as_sampler,
    as_storage,
    as_writer,
    either,
    pinnable,
    positive,
)
from offline_data.buffers.chain import Chain, Transform
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.prefetch import Prefetcher
from offline_data.buffers.refusals import refuse
from offline_data.buffers.samplers import Sampler
from offline_data.buffers.samplers.reductions import one_per_trajectory
from offline_data.buffers.saving import Saving
from offline_data.buffers.trajectories import MASK
from offline_data.buffers.writers import RoundRobinWriter, TensorDictRoundRobinWriter, Writer
from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.storage import Storage

__all__ = ["ReplayBuffer", "TensorDictReplayBuffer", "Transform"]

_MASKS = (MASK, ("collector", MASK))
"""Key of the mask that separates steps from padding in padded trajectories."""

_TORCHRL = (
    "sample_unit dim_extend checkpointer consume_after_n_samples shared compilable delayed_init "
    "service_backend service_backend_options transport transport_options"
)


class ReplayBuffer(Saving):
    """Batches of rows: of a dataset that never changes, or of a storage that grows meanwhile.

    A batch is gathered, gets what is derived, then what the sampler says of it; then `collate_fn`
    and the transforms see it. Whatever they make of `index` and `priority_weight`, these two are
    set again afterwards, so that `update_tensordict_priority(batch)` finds its rows. Only a
    transform that gives another batch size, or another order of rows, takes `index` and the
    weights along itself, as indexing, reshaping and stacking do. Several threads may use a buffer
    that grows.

    Args:
        storage: Storage that batches come from, or a class or function that makes it; None: a
            `ListStorage` of 1000 rows.
        sampler: Which rows they have (or what makes the sampler); None: a `RandomSampler`.
        writer: Writer of new rows (or a class or function that makes it); None: a
            `RoundRobinWriter` where the storage grows, and an `ImmutableDatasetWriter`, the only one it takes, for a dataset.
        collate_fn: Called with every batch, before `transform`; with the list of rows where the
            storage is a `ListStorage`.
        batch_size: Rows of a batch where `sample` is not told; iteration needs it.
        prefetch: Batches made ahead, by as many threads; rows and their order stay the same. Pays
            where transforms are slow, or data are not in memory. Rows that are written are in
            batches drawn later, up to `prefetch` batches after the next one.
        transform: Called with every batch; see `append_transform`. More can be appended.
        transform_factory: Makes the transform, instead.
        pin_memory: Whether batches are put into page-locked memory, after all transforms.
        generator: Random generator of the sampler, instead of its own.
        derived: Leaves computed for a batch from other rows of the storage, in this order, before
            anything else is done to it.
        **torchrl: Other arguments of TorchRL's signature, with their defaults.

    Raises:
        UsageError: Invalid or unsupported argument.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from offline_data.buffers.storages import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
        >>> buffer.extend(TensorDict({"action": torch.tensor([7.0, 8.0, 9.0])}, [3]))
        tensor([0, 1, 2])
        >>> buffer[-1]["action"], buffer.sample()["action"].shape
        (tensor(9.), torch.Size([2]))
    """

    _default_writer: Callable[[], Writer] = RoundRobinWriter

    def __init__(
        self,
        storage: Storage | Callable[[], Storage] | None = None,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        transform_factory: Callable[[], Transform] | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
        derived: Iterable[Derived] = (),
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, _TORCHRL)
        self._storage = as_storage(storage)
        self._sampler = as_sampler(sampler)
        if generator is not None:
            self._sampler.set_rng(generator)
        self._writer = as_writer(writer, self._storage, self._default_writer)
        self._derived = tuple(derived)
        self._collates = collate_fn is not None
        self._first += () if collate_fn is None else (collate_fn,)
        self._chain = Chain()
        self._pin = pinnable(pin_memory)
        self._batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._prefetch = positive(prefetch, "prefetch") if prefetch else None
        self._ahead = Prefetcher(self._prefetch or 0)
        self._ended = False
        self._lock = self._new_lock()
        self._check_parts()
        first = either(transform, transform_factory, "transform")
        if first is not None:
            self.append_transform(first)

    def _check_parts(self) -> None:
        if self._prefetch and self._batch_size is None:
            raise UsageError("prefetch needs a batch_size: batches are made ahead of time")
        if self._lists and self._derived:
            raise UsageError(
                "derived=… needs batches of tensors, and collate_fn gets lists of rows"
            )


class TensorDictReplayBuffer(ReplayBuffer):
    """The same, with priorities in the data: every buffer here gives TensorDicts with `index`.

    Args:
        storage: See `ReplayBuffer`, also for all other arguments.
        priority_key: Leaf that has priorities, in what is written and in what
            `update_tensordict_priority` gets; of several numbers in a row the sampler makes one.
        **options: See `ReplayBuffer`; the writer by default is a `TensorDictRoundRobinWriter`.

    Raises:
        UsageError: See `ReplayBuffer`.
    """

    _default_writer = TensorDictRoundRobinWriter

    def __init__(
        self,
        storage: Storage | Callable[[], Storage] | None = None,
        *,
        priority_key: KeyLike = "td_error",
        **options: Any,
    ) -> None:
        super().__init__(storage, **options)
        self.priority_key = as_key(priority_key)

    def add(self, data: Any) -> Any:
        """Write one row, with its priority if it has one; see `ReplayBuffer.add`."""
        row = super().add(data)
        if isinstance(row, int) and self._prioritized:
            self._take_priority([data], torch.tensor([row]))
        return row

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Tensor:
        """Write rows, with their priorities if they have some; see `ReplayBuffer.extend`.

        Args:
            data: `[B]` rows.
            update_priority: False: whatever they have, rows get the priority of new ones.
        """
        rows = super().extend(data)
        if update_priority is not False and len(rows):
            self._take_priority(data, rows)
        return rows

    def update_tensordict_priority(self, data: Any) -> None:
        """Tell the sampler the priorities of a batch; nothing where it has no use for them.

        A row that is a trajectory `[T]` has one priority: the sampler's `reduction` makes it of
        those of its steps, padding left out where the batch has a `mask`.

        Args:
            data: `[B, …]` or `[]`, with `index` and `priority_key`.

        Raises:
            UsageError: One of the two is missing, or a priority that cannot be.
        """
        if not self._prioritized:
            return
        data = data if data.batch_dims else data.unsqueeze(0)
        index = data.get("index", None)
        if index is None or data.get(self.priority_key, None) is None:
            raise UsageError(
                f"Priorities are in the leaf {join_key(self.priority_key)}, beside index; found "
                f"{', '.join(map(str, data.keys()))}",
                hint="TensorDictReplayBuffer(priority_key=…) names the leaf",
            )
        self._take_priority(data, index.reshape(len(index), -1)[:, 0])

    @property
    def _prioritized(self) -> bool:
        return type(self._sampler).update_priority is not Sampler.update_priority

    def _take_priority(self, data: Any, rows: Tensor) -> None:
        if not self._prioritized:
            return
        if isinstance(data, list | tuple):
            has = [isinstance(row, TensorDictBase) and self.priority_key in row for row in data]
            data = torch.stack([*data]) if data and all(has) else None
        found = data.get(self.priority_key, None) if hasattr(data, "batch_dims") else None
        if found is None:
            return
        mask = next((one for key in _MASKS if (one := data.get(key, None)) is not None), None)
        reduction = getattr(self._sampler, "reduction", None)
        if mask is not None and reduction and 1 < mask.ndim <= found.ndim:
            found = one_per_trajectory(found, mask, reduction)
        self.update_priority(rows, found)
