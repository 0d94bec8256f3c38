"""A storage made of tensors that are there already."""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.indexing import Index, rows_of
from offline_data.buffers.keys import KeyLike, select_keys
from offline_data.buffers.refusals import refuse
from offline_data.buffers.storages.base import GrowingStorage
from offline_data.buffers.storages.columns import Columns, Leaves, leaves_of, stacked
from offline_data.buffers.storages.links import Marks, alone, marks_of, place_of
from offline_data.buffers.storages.selection import Selection
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from offline_data.buffers.storage import Storage
    from offline_data.episodes import Key


class TensorStorage(GrowingStorage):
    """Rows of a TensorDict, tensorclass or tensor, which is used as it is and not copied.

    All rows are there from the beginning; a writer begins to write over them at row 0. Batches are
    TensorDicts on the device of the
    data (or tensors), each leaf contiguous and in memory of its own, with
    `index`. Differs from TorchRL's: nested TensorDicts of a batch have the batch size of the root;
    batches of a tensorclass are TensorDicts; rows whose leaves are not those of the others are
    refused (there leaves that are missing keep what an older row had); a leaf `index` is not
    stored, but made.

    Args:
        storage: `[rows, …]`. A TensorDict's batch dimensions beyond the first belong to a row.
        max_size: None, or the number of rows.
        **torchrl: `ndim` and `compilable` of TorchRL's signature, with their defaults.

    Raises:
        UsageError: No rows, something that is no tensor, or an invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> storage = TensorStorage(TensorDict({"action": torch.arange(3)}, batch_size=[3]))
        >>> storage.gather(torch.tensor([2, 0]))["action"]
        tensor([2, 0])
    """

    def __init__(self, storage: Any, max_size: int | None = None, **torchrl: Any) -> None:
        refuse(type(self).__name__, torchrl, "ndim compilable")
        columns = _columns(leaves_of(storage), storage)
        count = len(next(iter(columns.leaves.values())))
        if not count or max_size not in {None, count}:
            raise UsageError(f"The tensors have {count} rows; expected {max_size or 'some'}")
        super().__init__(count)
        self._columns: Columns | None = columns
        self._count = count
        marks = alone(count) if columns.shape else marks_of(columns.leaves, count)
        marks = marks._replace(place=place_of(storage, count))
        self._links.wrote(slice(0, count), marks, linked=True)

    @property
    def device(self) -> torch.device | None:
        """Device of the rows; None before the first one."""
        return None if self._columns is None else self._columns.device

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows`; see `Storage`."""
        return self._known().take(rows)

    def get(self, index: Index) -> Any:
        """Return rows, copied; see `rows_of` for the index and the shape that it gives."""
        rows = rows_of(index, len(self))
        batch = self.gather(rows.reshape(-1))
        return batch.reshape(rows.shape + batch.shape[1:])

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows, as they will be, with some of the leaves; see `Storage`."""
        known = [key for key in self._known().leaves if key]
        return Selection(self, select_keys(known, keys), self._take)

    def share_memory_(self) -> TensorStorage:
        """Move all rows to shared memory: other processes see what is written to them.

        They may set values of rows by `storage[rows] = …`; new rows are written by one process. How
        many rows there are, and how they follow each other, they know as of when they got the
        storage. Returns the storage.
        """
        for leaf in self._known().leaves.values():
            leaf.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Take rows along that have been written, and those only.

        Memory that is shared stays so; to a process that is being spawned it always is.
        """
        state, columns = super().__getstate__(), self._columns
        if columns is None or self._shares or get_spawning_popen() is not None:
            return state
        written = {key: leaf.clone() for key, leaf in columns.first(len(self)).items()}
        return {**state, "_columns": (written, columns.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["_columns"], tuple):
            leaves, shape = state["_columns"]
            self._columns = None
            self._reserve(leaves, shape)
            self._known().put(slice(0, len(self)), leaves, len(self))
        super().__setstate__({})

    def _write(self, index: slice | Tensor, data: Any, *, single: bool) -> Marks:
        data = stacked(list(data)) if isinstance(data, list | tuple) else data
        leaves = leaves_of(data)
        if single:
            leaves = {key: leaf.unsqueeze(0) for key, leaf in leaves.items()}
        shape = getattr(data, "batch_size", (0,))[0 if single else 1 :] if () not in leaves else ()
        count = index.stop - index.start if isinstance(index, slice) else len(index)
        if self._columns is None:
            self._reserve(leaves, shape)
        if tuple(shape) != self._known().shape:
            raise UsageError(
                f"A row has batch size {list(shape)}; expected {list(self._known().shape)}"
            )
        self._known().put(index, leaves, count)
        marks = alone(count) if shape else marks_of(leaves, count)
        return marks._replace(place=place_of(data, count))

    def _reserve(self, leaves: Leaves, shape: tuple[int, ...]) -> None:
        """Make room for `max_size` rows like these."""
        self._columns = Columns({key: self._room(leaf) for key, leaf in leaves.items()}, shape)

    def _room(self, leaf: Tensor) -> Tensor:
        """Make room for `max_size` rows of one leaf."""
        return torch.empty((self.max_size, *leaf.shape[1:]), dtype=leaf.dtype, device=leaf.device)

    @property
    def _shares(self) -> bool:
        if self._columns is None:
            return False
        leaves = self._columns.leaves.values()
        return any(leaf.is_shared() for leaf in leaves)  # type: ignore[no-untyped-call]

    @property
    def _of_trajectories(self) -> bool:
        return bool(self._known().shape)

    def _leaf(self, key: Key) -> Tensor | None:
        leaf = self._known().leaves.get(key)
        return None if leaf is None else leaf[: len(self)]

    def _content(self) -> Any:
        if self._columns is None:
            return None
        leaves = self._columns.first(len(self))
        return {"leaves": leaves, "shape": self._columns.shape}

    def _restore(self, content: Any, count: int) -> None:
        if content is None or not count:
            return
        if self._columns is None:
            self._reserve(content["leaves"], content["shape"])
        self._known().put(slice(0, count), content["leaves"], count)

    def _known(self) -> Columns:
        if self._columns is None:
            raise UsageError(
                "The storage is empty, and its leaves are not known before the first row is written"
            )
        return self._columns

    def _take(self, rows: Tensor, keys: tuple[Any, ...]) -> Any:
        return self._known().take(rows, keys)


def _columns(leaves: Leaves, data: Any) -> Columns:
    return Columns(leaves, getattr(data, "batch_size", (0,))[1:])
