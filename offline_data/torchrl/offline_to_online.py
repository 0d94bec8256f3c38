"""Offline-to-online training: mixed batches of a dataset and new experience, and prefilling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.mixtures.leaves import INDEX, SOURCE_KEY, with_member
from offline_data.buffers.mixtures.members import members_and_rows, update_priorities
from offline_data.episode.fields import DONE, TRUNCATED, join_key
from offline_data.rows.derived.normalize import Normalizer
from offline_data.rows.indexing import positive
from offline_data.rows.keys import path_of
from offline_data.rows.samplers import Sampler
from offline_data.rows.storage import Storage
from offline_data.rows.transforms import Transform
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import LazyTensorStorage


@pickled_by_name
class OfflineToOnlineReplayBuffer:
    """Batches with a fixed fraction of a dataset's rows; the rest are newly written rows.

    A batch of `B` rows starts with exactly `round(offline_fraction * B)` rows of the dataset, or
    all of them as long as nothing was written. Unlike in TorchRL's, features may be missing in one
    of the two: batches have the features common to both. Under `index`, int64 `[B]`, `buffer_ids`
    is 0 for rows of the dataset and 1 for new ones, and `index` their row there.

    `derived` functions of the dataset are applied to new rows, too: `normalize` with the dataset's
    statistics, `n_step` and others along the episodes as they are written.

    Args:
        offline_dataset: A buffer, or an id for `load_dataset` (optionally prefixed
            `offline_data:`).
        online_storage: Storage of new rows; or:
        online_capacity: Capacity of a `LazyTensorStorage` for them.
        online_sampler: Sampler of new rows, or a function that returns one; None: a
            `RandomSampler`.
        offline_fraction: Between 0 and 1, exclusive.
        batch_size: Default number of rows in a batch; required for a dataset given by id.
        transform: Called with every batch.
        dataset_kwargs: Options of `load_dataset`, for an id.

    Raises:
        UsageError: Invalid argument; or, on the first batch of both, new rows that lack a feature
            which a derived function needs, or a feature that only one of the two samplers adds.

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
        online_sampler: Sampler | Callable[[], Sampler] | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Transform | None = None,
        **dataset_kwargs: Any,
    ) -> None:
        if (online_storage is None) == (online_capacity is None):
            raise UsageError(
                "Give one of online_storage and online_capacity, not both; found "
                f"{'neither' if online_storage is None else 'both'}"
            )
        if not 0 < offline_fraction < 1:
            raise UsageError(f"offline_fraction is {offline_fraction}; expected between 0 and 1")
        if isinstance(offline_dataset, str):
            size = dataset_kwargs.pop("batch_size", batch_size)
            if size is None:
                raise UsageError(
                    "batch_size must be provided for a dataset that is named by its id"
                )
            offline_dataset = _dataset(offline_dataset, size, **dataset_kwargs)
        elif dataset_kwargs:
            raise UsageError(
                f"{', '.join(dataset_kwargs)} would be ignored: options of load_dataset are only "
                "forwarded when offline_dataset is an id, and it is a buffer"
            )
        if online_capacity is not None:
            online_storage = LazyTensorStorage(positive(online_capacity, "online_capacity"))
        self.offline_buffer = offline_dataset
        if any(
            getattr(member, "_derived", ()) for member in getattr(offline_dataset, "sources", ())
        ):
            raise UsageError(
                "The members of the mixture have derived functions, which new rows would not get",
                hint="give them to the mixture: DatasetMixture(…, derived=…)",
            )
        derived = getattr(offline_dataset, "_derived", ())
        self.online_buffer = ReplayBuffer(online_storage, sampler=online_sampler, derived=derived)
        self.offline_fraction = self._fraction_at_first = offline_fraction
        self.batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._transform = transform

    def extend(self, data: Any) -> Tensor:
        return self.online_buffer.extend(data)

    def sample(self, batch_size: int | None = None) -> Any:
        """Return a random batch `[B]`; see the class. Raises `UsageError` without a batch size."""
        size = self.batch_size if batch_size is None else positive(batch_size, "batch_size")
        if size is None:
            raise BufferUsageError(
                "batch_size must be provided: give one to the buffer, or to sample(batch_size)"
            )
        offline = round(self.offline_fraction * size) if len(self.online_buffer) else size
        counts = offline, size - offline
        parts, leaves = {}, {}
        for number, buffer in enumerate((self.offline_buffer, self.online_buffer)):
            if counts[number]:
                batch, info = buffer.sample(counts[number], return_info=True)
                parts[number], leaves[number] = _label_index(batch, info, number), {*info.keys()}
        if len(parts) == 2 and all(isinstance(part, TensorDictBase) for part in parts.values()):
            keys = [{*part.keys(True, True)} for part in parts.values()]
            self._check(keys, {*leaves[0], *leaves[1]} - {INDEX, *SOURCE_KEY})
            parts = {number: part.select(*(keys[0] & keys[1])) for number, part in parts.items()}
        batch = torch.cat([*parts.values()]) if len(parts) == 2 else next(iter(parts.values()))
        return batch if self._transform is None else self._transform(batch)

    def _check(self, keys: Sequence[set[Any]], drawn: set[Any]) -> None:
        for key in sorted(drawn & (keys[0] ^ keys[1]), key=str):
            raise UsageError(
                f"{join_key(path_of(key))!r}, which a sampler adds, is only in rows of the "
                f"{'dataset' if key in keys[0] else 'online buffer'}",
                hint="online_sampler=… takes a sampler of the same kind",
            )
        along = [d for d in self.online_buffer._derived if not isinstance(d, Normalizer)]
        if along and TRUNCATED in keys[0] and not keys[1] & {TRUNCATED, DONE}:
            raise UsageError(
                f"New rows lack {join_key(TRUNCATED)!r}, so that {along[0]} would cross from one "
                "episode into the next",
                hint="write next/truncated or next/done, like the dataset",
            )

    def update_priority(self, index: TensorDict, priority: Tensor | float) -> None:
        """Update priorities of rows `batch["index"]` in those of the two with a prioritized sampler."""
        buffers = self.offline_buffer, self.online_buffer
        update_priorities(buffers, *members_and_rows(index), priority)

    def anneal(self, step: int, total_steps: int) -> None:
        """Decrease `offline_fraction` linearly from its initial value to 0 at `total_steps`."""
        self.offline_fraction = self._fraction_at_first * max(0.0, 1 - step / total_steps)

    def __len__(self) -> int:
        return len(self.offline_buffer) + len(self.online_buffer)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.offline_buffer)} offline rows, "
            f"{len(self.online_buffer)} online, offline_fraction={self.offline_fraction:.3f}, "
            f"batch_size={self.batch_size})"
        )


def _label_index(batch: Any, info: Any, number: int) -> Any:
    """Set `index` of a batch `[B]` to the buffer and the rows that it is from, if they are known."""
    if not isinstance(batch, TensorDictBase) or batch.batch_dims != 1:
        return batch
    own = batch.get(INDEX, None)
    rows = own if isinstance(own, torch.Tensor) else info.get(INDEX, None)
    if isinstance(rows, torch.Tensor) and rows.shape == batch.batch_size:
        batch.set(INDEX, with_member(number, rows, batch.device))
    return batch


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
    order, without the feature `index`.
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
