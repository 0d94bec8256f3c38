"""A storage in memory whose leaves are those of the first rows that are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.refusals import refuse
from offline_data.buffers.storages.base import GrowingStorage, capacity
from offline_data.buffers.storages.tensor import TensorStorage

if TYPE_CHECKING:
    from torch import Tensor


class LazyTensorStorage(TensorStorage):
    """Up to `max_size` rows of tensors in memory, reserved when the first row is written.

    The leaves, shapes and dtypes of the first rows are those of all rows. Otherwise a
    `TensorStorage`, which says how batches differ from TorchRL's.

    Args:
        max_size: How many rows there can be.
        device: Device of the rows; `"auto"`: that of the first ones.
        **torchrl: `ndim`, `compilable`, `consolidated`, `shared_init` and `cleanup_memmap` of
            TorchRL's signature, with their defaults.

    Raises:
        UsageError: Invalid argument.

    Example:
        >>> storage = LazyTensorStorage(10)
        >>> storage.set(slice(0, 2), torch.tensor([[5.0], [6.0]]))
        >>> len(storage), storage.get(1)
        (2, tensor([6.]))
    """

    def __init__(
        self, max_size: int, *, device: torch.device | str | int = "cpu", **torchrl: Any
    ) -> None:
        known = "ndim compilable consolidated shared_init cleanup_memmap"
        refuse(type(self).__name__, torchrl, known)
        GrowingStorage.__init__(self, capacity(max_size))
        self._columns = None
        self._wanted = None if device == "auto" else torch.device(device)
        self._shared = False

    @property
    def device(self) -> torch.device | None:
        """Device of the rows; None: that of the first ones."""
        return self._wanted if self._columns is None else self._columns.device

    def share_memory_(self) -> LazyTensorStorage:
        """Keep rows in shared memory, also those to come; see `TensorStorage.share_memory_`."""
        self._shared = True
        if self._columns is not None:
            super().share_memory_()
        return self

    def _room(self, leaf: Tensor) -> Tensor:
        room = super()._room(leaf.to(self._wanted) if self._wanted else leaf)
        if self._shared:
            room.share_memory_()  # type: ignore[no-untyped-call]
        return room
