"""The contract of a writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.storages.base import GrowingStorage


class Writer(ABC):
    """Puts rows into a storage; one instance belongs to one buffer.

    Attributes:
        write_count: How many rows were written since the buffer was made or emptied, those that
            were written over included.
    """

    def __init__(self) -> None:
        self.write_count = 0
        self._storage: GrowingStorage | None = None

    def register_storage(self, storage: GrowingStorage) -> None:
        """Write to this storage from now on."""
        self._storage = storage

    @abstractmethod
    def add(self, data: Any) -> int | None:
        """Write one row; returns where, or None where it is not kept."""

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write rows, in their order; returns where, int64 `[B]`, -1 for those that are not kept."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Begin again at row 0; the buffer empties the storage."""
        if empty_write_count:
            self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that `load_state_dict` resumes from."""
        return {"write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; the storage must be as it was."""
        self.write_count = state["write_count"]

    @property
    def storage(self) -> GrowingStorage:
        """Storage of the rows; raises `UsageError` if the writer is in no buffer."""
        if self._storage is None:
            raise UsageError(
                f"This {type(self).__name__} has no storage",
                hint="ReplayBuffer(storage=…, writer=writer), or writer.register_storage(storage)",
            )
        return self._storage

    def __repr__(self) -> str:
        return f"{type(self).__name__}(write_count={self.write_count})"
