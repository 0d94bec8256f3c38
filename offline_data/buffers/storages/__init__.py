"""Storages that grow while they are sampled, beside the datasets that never change: one a file."""

from offline_data.buffers.storages.base import GrowingStorage
from offline_data.buffers.storages.lazy import LazyTensorStorage
from offline_data.buffers.storages.lists import ListStorage
from offline_data.buffers.storages.memmap import LazyMemmapStorage
from offline_data.buffers.storages.tensor import TensorStorage

__all__ = [
    "GrowingStorage",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "TensorStorage",
]
