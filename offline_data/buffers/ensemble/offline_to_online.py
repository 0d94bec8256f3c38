"""Offline-to-online training: mixed batches of a dataset and new experience, and prefilling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.arguments import positive
from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.storage import LazyTensorStorage
from offline_data.errors import BufferUsageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from offline_data.buffers.storage import Storage
    from offline_data.buffers.transforms import Transform


class OfflineToOnlineReplayBuffer:
    """Batches with a fixed fraction of a dataset's rows; the rest are newly written rows.

    A batch of `B` rows starts with exactly `round(offline_fraction * B)` rows of the dataset, or
    all of them as long as nothing was written. Batches have the leaves common to both. Unlike
    TorchRL's, `index` and other leaves may be missing in one of them.

    Args:
        offline_dataset: A buffer, or an id for `load_dataset` (optionally prefixed `offline_data:`).
        online_storage: Storage of new rows; or:
        online_capacity: Capacity of a `LazyTensorStorage` for them.
        offline_fraction: Between 0 and 1, exclusive.
        batch_size: Default number of rows in a batch; required for a dataset given by id.
        transform: Called with every batch.
        dataset_kwargs: Options of `load_dataset`, for an id.

    Raises:
        UsageError: Invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> offline = ReplayBuffer(LazyTensorStorage(10))
        >>> _ = offline.extend(TensorDict({"action": torch.zeros(10)}, [10]))
        >>> both = OfflineToOnlineReplayBuffer(offline, online_capacity=10, offline_fraction=0.25)
        >>> _ = both.extend(TensorDict({"action": torch.ones(3)}, [3]))
        >>> both.sample(8)["action"].sum(), len(both)
        (tensor(6.), 13)
    """

    def __init__(
        self,
        offline_dataset: Any,
        *,
        online_storage: Storage | Callable[[], Storage] | None = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Transform | None = None,
        **dataset_kwargs: Any,
    ) -> None:
        if (online_storage is None) == (online_capacity is None):
            raise UsageError("Give either online_storage or online_capacity")
        if not 0 < offline_fraction < 1:
            raise UsageError(f"offline_fraction is {offline_fraction}; expected between 0 and 1")
        if isinstance(offline_dataset, str):
            size = dataset_kwargs.pop("batch_size", batch_size)
            if size is None:
                raise UsageError("A dataset that is named by its id needs a batch_size")
            offline_dataset = _dataset(offline_dataset, size, **dataset_kwargs)
        elif dataset_kwargs:
            raise UsageError(
                f"{', '.join(dataset_kwargs)} is for a dataset named by its id; found a buffer"
            )
        if online_capacity is not None:
            online_storage = LazyTensorStorage(positive(online_capacity, "online_capacity"))
        self.offline_buffer = offline_dataset
        self.online_buffer = ReplayBuffer(online_storage)
        self.offline_fraction = self._fraction_at_first = offline_fraction
        self.batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._transform = transform

    def extend(self, data: Any) -> Tensor:
        """Write new rows; see `ReplayBuffer.extend`."""
        return self.online_buffer.extend(data)

    def sample(self, batch_size: int | None = None) -> Any:
        """Return a random batch `[B]`; see the class. Raises `UsageError` without a batch size."""
        size = self.batch_size if batch_size is None else positive(batch_size, "batch_size")
        if size is None:
            raise BufferUsageError("No batch size: give one to the buffer or to sample(batch_size)")
        offline = round(self.offline_fraction * size) if len(self.online_buffer) else size
        parts = [
            buffer.sample(count)
            for buffer, count in (
                (self.offline_buffer, offline),
                (self.online_buffer, size - offline),
            )
            if count
        ]
        if len(parts) == 2 and hasattr(parts[0], "keys"):
            shared = {*parts[0].keys(True, True)} & {*parts[1].keys(True, True)}
            parts = [part.select(*shared) for part in parts]
        batch = torch.cat(parts) if len(parts) == 2 else parts[0]
        return batch if self._transform is None else self._transform(batch)

    def anneal(self, step: int, total_steps: int) -> None:
        """Decrease `offline_fraction` linearly from its initial value to 0 at `total_steps`."""
        self.offline_fraction = self._fraction_at_first * max(0.0, 1 - step / total_steps)

    def __len__(self) -> int:
        """Return the number of rows of both buffers."""
        return len(self.offline_buffer) + len(self.online_buffer)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.offline_buffer)} offline rows, "
            f"{len(self.online_buffer)} online, offline_fraction={self.offline_fraction:.3f}, "
            f"batch_size={self.batch_size})"
        )


def prefill_replay_buffer(
    rb: ReplayBuffer, dataset: Any, n_samples: int | None = None, chunk_size: int = 1000
) -> ReplayBuffer:
    """Write rows of a dataset to a buffer; returns the buffer.

    Args:
        rb: A growing buffer.
        dataset: A buffer, or an id for `load_dataset`.
        n_samples: Maximum number of rows; None: all.
        chunk_size: Number of rows per write.

    Unlike TorchRL's, which draws rows with replacement, it writes all rows, or the first ones, in
    order, without the leaf `index`.
    """
    if isinstance(dataset, str):
        dataset = _dataset(dataset, positive(chunk_size, "chunk_size"))
    total = len(dataset) if n_samples is None else min(n_samples, len(dataset))
    for start in range(0, total, chunk_size):
        rows = dataset[start : min(start + chunk_size, total)]
        rb.extend(rows.exclude("index") if hasattr(rows, "exclude") else rows)
    return rb


def _dataset(id: str, batch_size: int, **options: Any) -> Any:
    from offline_data.buffers.load import load_dataset

    return load_dataset(id.removeprefix("offline_data:"), batch_size, **options)
