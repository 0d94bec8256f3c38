"""Buffers of TensorDicts with priorities among their features, or with a `PrioritizedSampler`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.priorities import PrioritiesOfLeaves
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.samplers import PrioritizedSampler, Sampler
from offline_data.rows.storage import Storage
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.parts import as_storage
from offline_data.torchrl.writers import TensorDictRoundRobinWriter

StorageLike: TypeAlias = "Storage | Callable[[], Storage] | None"


class TensorDictReplayBuffer(PrioritiesOfLeaves, ReplayBuffer[TensorDict]):
    """A `ReplayBuffer` that reads priorities from the data.

    `priority_key` is the feature of priorities in written data and in the argument of
    `update_tensordict_priority`; the sampler reduces several values per row to one. The default
    writer is a `TensorDictRoundRobinWriter`.
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

    def _has_index(self) -> bool:
        return True

    def add(self, data: Any) -> Any:
        row = super().add(data)
        if isinstance(row, int) and self._has_priorities:
            self._take_priority([data], torch.tensor([row]))
        elif isinstance(row, torch.Tensor) and row.numel():
            self._take_priority(data, row)
        return row

    def extend(self, tensordicts: Any, *, update_priority: bool | None = None) -> Tensor:
        """Write rows, and unless `update_priority=False` their priorities; see `ReplayBuffer`."""
        rows = super().extend(tensordicts)
        if update_priority is not False and len(rows):
            self._take_priority(tensordicts, rows)
        return rows


TensorDictReplayBuffer.register(Dataset)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` with a `PrioritizedSampler` of the storage's capacity.

    Args:
        alpha, beta, eps, dtype: See `PrioritizedSampler`.
        storage: See `ReplayBuffer`, also for other arguments.
        sampler: Replaces the `PrioritizedSampler`.
        sampler_device: None or the CPU, the only device of priorities.
        sync: Must be True.

    Example:
        >>> from offline_data.torchrl.storages import LazyTensorStorage
        >>> buffer = PrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(10))
        >>> _ = buffer.extend(torch.arange(3.0))
        >>> buffer.update_priority(torch.arange(3), torch.tensor([0.0, 0.0, 5.0]))
        >>> buffer.sample(2)
        tensor([2., 2.])
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        storage: StorageLike = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        sampler_device: torch.device | str | None = None,
        sync: bool = True,
        **options: Any,
    ) -> None:
        rows = as_storage(storage)
        own = _sampler(rows, sync, alpha, beta, eps, dtype, device=sampler_device)
        super().__init__(rows, sampler=own if sampler is None else sampler, **options)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` with a `PrioritizedSampler`; see `PrioritizedReplayBuffer`.

    `reduction` combines several priorities of a row into one; `priority_key` is their feature.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: KeyLike = "td_error",
        eps: float = 1e-8,
        storage: StorageLike = None,
        sampler_device: torch.device | str | None = None,
        sync: bool = True,
        reduction: str = "max",
        **options: Any,
    ) -> None:
        rows = as_storage(storage)
        own = _sampler(rows, sync, alpha, beta, eps, reduction=reduction, device=sampler_device)
        super().__init__(rows, sampler=own, priority_key=priority_key, **options)


def _sampler(storage: Any, sync: bool, *arguments: Any, **options: Any) -> PrioritizedSampler:
    if not sync:
        raise UsageError(
            "sync=False, for several processes that write to one buffer, is not supported",
            hint="write in one process; others read a LazyMemmapStorage, or after share_memory_()",
        )
    # Steps of several rows round up `max_size` once their number is known.
    capacity = storage.max_size * (1 if getattr(storage, "ndim", 1) == 1 else 2)
    return PrioritizedSampler(capacity, *arguments, **options)
