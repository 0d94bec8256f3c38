"""Storages: immutable datasets, and storages that grow while they are sampled."""

from offline_data.rows.storage.base import GrowingStorage, Storage
from offline_data.rows.storage.dataset import DatasetStorage
from offline_data.rows.storage.lists import LazyStackStorage, ListStorage
from offline_data.rows.storage.tensors import LazyMemmapStorage, LazyTensorStorage, TensorStorage

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
