"""Storages that grow while they are sampled."""

from offline_data.torchrl.storages.growing import GrowingStorage
from offline_data.torchrl.storages.lists import LazyStackStorage, ListStorage
from offline_data.torchrl.storages.tensors import (
    LazyMemmapStorage,
    LazyTensorStorage,
    TensorStorage,
)

__all__ = [
    "GrowingStorage",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "TensorStorage",
]
