"""Storages: immutable datasets, and storages that grow while they are sampled."""

from offline_data.buffers.storage.base import GrowingStorage, Storage
from offline_data.buffers.storage.dataset import DatasetStorage
from offline_data.buffers.storage.lists import LazyStackStorage, ListStorage
from offline_data.buffers.storage.tensors import LazyMemmapStorage, LazyTensorStorage, TensorStorage

__all__ = [
    "DatasetStorage",
    "GrowingStorage",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "Storage",
    "TensorStorage",
]
