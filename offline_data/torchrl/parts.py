"""Storages and writers as arguments of growing buffers: this package's, or TorchRL's converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offline_data.buffers.arguments import as_immutable_writer, foreign
from offline_data.buffers.bridges.parts import is_torchrls, of_torchrl
from offline_data.buffers.writers import Writer
from offline_data.rows.storage import Storage
from offline_data.torchrl import writers
from offline_data.torchrl.storages import GrowingStorage, ListStorage, TensorStorage

_DEFAULT_ROWS = 1000  # capacity of the default storage, as in TorchRL

_ARGUMENTS = {  # arguments of TorchRL's writers that those of the same name have here
    "RoundRobinWriter": (),
    "TensorDictRoundRobinWriter": (),
    "TensorDictMaxValueWriter": ("rank_key", "reduction"),
}


def as_storage(storage: Storage | Callable[[], Storage] | None) -> Storage:
    """Return `storage`, or the result of calling it; None: a `ListStorage` of 1000 rows."""
    made: Any = ListStorage(_DEFAULT_ROWS) if storage is None else storage
    if isinstance(made, type) or (not hasattr(made, "gather") and callable(made)):
        made = made()
    made = _storage_of_torchrl(made)
    if not all(hasattr(made, name) for name in ("gather", "rows", "runs")):
        raise foreign(
            made,
            "a storage",
            "LazyTensorStorage and the other storages",
            why=": of TorchRL's, only full ones of tensors can be converted",
        )
    found: Storage = made
    return found


def as_writer(
    writer: Writer | Callable[[], Writer] | None, storage: Storage, default: Callable[[], Writer]
) -> Writer:
    """Return `writer`, or the result of calling it, as a writer for `storage`.

    None: `default()` if the storage grows. A dataset always gets an `ImmutableDatasetWriter`.
    """
    if not isinstance(storage, GrowingStorage):
        return as_immutable_writer(writer)
    made: Any = default() if writer is None else writer
    if not isinstance(made, Writer) and callable(made):
        made = made()
    made = of_torchrl(made, _ARGUMENTS, writers)
    if not isinstance(made, Writer):
        raise foreign(made, "a writer", "RoundRobinWriter and the other writers")
    made.register_storage(storage)
    found: Writer = made
    return found


def _storage_of_torchrl(storage: Any) -> Any:
    """Return a full TorchRL storage of tensors as a `TensorStorage` of them, anything else unchanged."""
    kinds = ("TensorStorage", "LazyTensorStorage", "LazyMemmapStorage")
    rows = getattr(storage, "_storage", None)
    if not is_torchrls(storage, kinds) or rows is None or len(storage) < storage.max_size:
        return storage
    return TensorStorage(rows, ndim=storage.ndim)
