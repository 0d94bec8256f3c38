"""A ring: when all rows are used, the oldest are written over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.refusals import refuse
from offline_data.buffers.storages.columns import count_of
from offline_data.buffers.writers.base import Writer

if TYPE_CHECKING:
    from torch import Tensor


class RoundRobinWriter(Writer):
    """Writes rows one behind the other, and after the last one at row 0 again.

    A write that fails leaves the cursor where it was. Of more rows than the storage has, the last
    ones are kept (TorchRL writes some rows several times there, in no order that is promised).

    Args:
        **torchrl: `compilable` and `track_generations` of TorchRL's signature, with their defaults.

    Attributes:
        cursor: The row that is written next.
    """

    def __init__(self, **torchrl: Any) -> None:
        refuse(type(self).__name__, torchrl, "compilable track_generations")
        super().__init__()
        self.cursor = 0

    def add(self, data: Any) -> int:
        """Write one row; returns where."""
        row = self.cursor
        self.storage.set(row, data)
        self._advance(1)
        return row

    def extend(self, data: Any) -> Tensor:
        """Write rows; returns where, int64 `[B]`: an index twice where `B` is more than all rows."""
        count, size = count_of(data), self.storage.max_size
        rows = (torch.arange(count) + self.cursor) % size
        room = min(count, size - self.cursor)
        if count > size:
            self.storage.set(rows[-size:], data[count - size :])
        elif room == count:
            self.storage.set(slice(self.cursor, self.cursor + count), data)
        else:
            self.storage.set(slice(self.cursor, size), data[:room])
            self.storage.set(slice(0, count - room), data[room:])
        self._advance(count)
        return rows

    def empty(self, empty_write_count: bool = True) -> None:
        """Begin again at row 0; see `Writer`."""
        super().empty(empty_write_count)
        self.cursor = 0

    def state_dict(self) -> dict[str, Any]:
        """Return cursor and count."""
        return {**super().state_dict(), "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; see `Writer`."""
        super().load_state_dict(state)
        self.cursor = state["cursor"]

    def _advance(self, count: int) -> None:
        self.cursor = (self.cursor + count) % self.storage.max_size
        self.write_count += count


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The same: batches of every storage here have a leaf `index` that says where rows are.

    TorchRL's sets that leaf in what it is given to write, which is left alone here.
    """
