"""The interface of writers, and the writer of datasets, which refuses every write."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Any, ClassVar, NoReturn

from torch import Tensor

from offline_data.base.errors import ImmutableError, OfflineDataError, UsageError
from offline_data.rows import fields
from offline_data.rows.state import Saves


def immutable(action: str) -> ImmutableError:
    """Return the error for an attempt to change a dataset."""
    return ImmutableError(
        f"A dataset is immutable: {action} would change it",
        hint="change batches with transform=…, or copy rows to memory: buffer[:1000].clone()",
    )


def refusing(error: type[OfflineDataError], message: str, hint: str) -> Any:
    """Return a method that raises an error."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise error(message, hint=hint)

    return refuse


def refused(action: str) -> Any:
    """Return a method that raises `ImmutableError` for `action`."""
    error = immutable(action)
    return refusing(ImmutableError, error.message, str(error.shell_hint))


class Writer(Saves):
    """Base class: writes rows to a storage; one instance belongs to one buffer.

    `write_count` counts the rows written since it was created or emptied, overwritten ones too.
    """

    STATE: ClassVar = {"write_count": fields.COUNT}
    indexes = False
    """Whether TensorDicts that are read from the storage have the feature `index`."""

    def __init__(self) -> None:
        self.write_count = 0
        self._storage: Any | None = None

    def register_storage(self, storage: Any) -> None:
        """Set the storage to write to; raises `UsageError` for one of TorchRL's."""
        if not hasattr(storage, "batch_length"):
            raise UsageError(
                f"A {type(self).__name__} of this package writes to storages of this package; found "
                f"a {type(storage).__name__}",
                hint="torchrl.data.ReplayBuffer takes TorchRL's writers, offline_data.ReplayBuffer "
                "this one; dataset.to_torchrl() is TorchRL's buffer over a dataset",
            )
        self._storage = storage
        storage.indexed = self.indexes

    @abstractmethod
    def add(self, data: Any) -> int | None:
        """Write one row; returns its number, or None if it is not kept."""

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write rows in order; returns their numbers, int64 `[B]`, -1 for rows that are not kept."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Restart at row 0; the buffer empties the storage."""
        if empty_write_count:
            self.write_count = 0

    def _steps(self, above: Any) -> tuple[int, int]:
        """Return the steps in the storage, or in that of a state, and its capacity."""
        storage = self._storage
        if storage is None:  # of any size
            return sys.maxsize, sys.maxsize
        if above is not None:
            found: tuple[int, int] = storage.steps_in(above["storage"])
            return found
        return len(storage) // storage.width, storage.steps

    @property
    def storage(self) -> Any:
        """The storage; raises `UsageError` if the writer belongs to no buffer."""
        if self._storage is None:
            raise UsageError(
                f"This {type(self).__name__} has no storage",
                hint="ReplayBuffer(storage=…, writer=writer), or writer.register_storage(storage)",
            )
        return self._storage

    def __repr__(self) -> str:
        return f"{type(self).__name__}(write_count={self.write_count})"


class ImmutableDatasetWriter(Writer):
    """The writer of datasets; every write raises `ImmutableError`."""

    add: Any = refused("add")
    extend: Any = refused("extend")
    empty: Any = refused("empty")

    def __repr__(self) -> str:
        return "ImmutableDatasetWriter()"
