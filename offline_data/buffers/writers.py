"""Writers, which decide where the new rows of a buffer go."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from offline_data.buffers.checkpoint import Saves
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.samplers.reduce import check_reduction, reduced
from offline_data.buffers.storage.rows import part_of, stacked
from offline_data.buffers.unsupported import refuse
from offline_data.episodes.fields import REWARD, join_key
from offline_data.errors import BufferUsageError, ImmutableError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.storage.base import GrowingStorage


class Writer(Saves):
    """Puts rows into a storage; one instance belongs to one buffer.

    `write_count` counts rows since the buffer was made or emptied, those overwritten included.
    """

    def __init__(self) -> None:
        self.write_count = 0
        self._storage: GrowingStorage | None = None

    def register_storage(self, storage: GrowingStorage) -> None:
        """Write to this storage from now on."""
        self._storage = storage

    @abstractmethod
    def add(self, data: Any) -> int | None:
        """Write one row; returns where, or None if it is not kept."""

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write rows, in their order; returns where, int64 `[B]`, -1 for those that are not kept."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Begin again at row 0; the buffer empties the storage."""
        if empty_write_count:
            self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {"write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`; the storage must be as it was."""
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


class RoundRobinWriter(Writer):
    """Writes rows one after the other, from `cursor` on, and after the last one at row 0 again.

    A write that fails leaves the cursor where it was. Of more rows than the storage has, the last
    ones are kept. `**torchrl`: `compilable` and `track_generations`, with their defaults.
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
        """Write steps; returns where, int64 `[B]`: an index twice where `B` is more than all rows."""
        count = self.storage.batch_length(data)
        size = self.storage.steps
        rows = (torch.arange(count) + self.cursor) % size
        room = size - self.cursor
        if count > size:
            self.storage.set(rows[-size:], part_of(data, slice(count - size, None)))
        elif count > room:
            self.storage.set(slice(self.cursor, size), part_of(data, slice(room)))
            self.storage.set(slice(0, count - room), part_of(data, slice(room, None)))
        else:
            self.storage.set(slice(self.cursor, self.cursor + count), data)
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
        """Resume from a state of `state_dict`; see `Writer`."""
        super().load_state_dict(state)
        self.cursor = state["cursor"]

    def _advance(self, count: int) -> None:
        self.cursor = (self.cursor + count) % self.storage.steps
        self.write_count += count * self.storage.width


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The same: batches of every storage have `index`; TorchRL's sets it in the data as well."""


class TensorDictMaxValueWriter(Writer):
    """Keeps the `max_size` rows with the highest rank.

    While there is room, every row is kept. Then a row replaces the one with the lowest rank, the
    first of them where several have it, if its own is higher. To a sampler of slices each row is a
    run of its own, so write whole trajectories (`[B, T]`) as rows for that. A write costs `O(B)`,
    and `O(log max_size)` for each row that is kept.

    Args:
        rank_key: Leaf that ranks rows; None: `("next", "reward")`.
        reduction: `"sum"`, `"mean"`, `"max"`, `"min"` or `"median"` of the leaf's values in a row,
            where there are several.
        **torchrl: `compilable`, with its default; others raise `UsageError`.
    """

    def __init__(
        self, rank_key: KeyLike | None = None, reduction: str = "sum", **torchrl: Any
    ) -> None:
        refuse(type(self).__name__, torchrl, "compilable")
        super().__init__()
        self.rank_key = REWARD if rank_key is None else as_key(rank_key)
        self.reduction = check_reduction(reduction)
        self._heap: list[tuple[float, int]] = []

    def add(self, data: Any) -> int | None:
        """Write one row if it is among the best; returns where, or None."""
        row = int(self.extend(data.unsqueeze(0) if hasattr(data, "unsqueeze") else [data])[0])
        return None if row < 0 else row

    def extend(self, data: Any) -> Tensor:
        """Write the rows that are among the best; returns where, int64 `[B]`, -1 for the others.

        Raises `UsageError` for data without the leaf that ranks them, or ranks that are NaN.
        """
        if isinstance(data, list):
            data = stacked(data)
        ranks = self._ranks(data)
        rows = torch.full((len(ranks),), -1)
        heap = list(self._heap)
        # The lowest rank kept only rises: a row that does not beat it at first never will.
        count = min(self.storage.max_size - len(heap), len(ranks))
        kept = {len(heap) + number: number for number in range(count)}
        heap.extend(zip(ranks[:count].tolist(), kept, strict=True))
        heapq.heapify(heap)
        better = (ranks[count:] > heap[0][0]).nonzero()[:, 0] + count if heap else ranks[:0].long()
        for number, rank in zip(better.tolist(), ranks[better].tolist(), strict=True):
            if rank > heap[0][0]:
                row = heap[0][1]
                heapq.heapreplace(heap, (rank, row))
                kept[row] = number
                count += 1
        if kept:
            where, which = torch.tensor(list(kept.items())).T
            self.storage.set(where, data[which.to(data.device or "cpu")], linked=False)
            rows[which] = where
        self._heap = heap
        self.write_count += count
        return rows

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget all ranks; see `Writer`."""
        super().empty(empty_write_count)
        self._heap = []

    def state_dict(self) -> dict[str, Any]:
        """Return the rank of every row, and the count."""
        ranks = torch.tensor([rank for rank, _ in self._heap], dtype=torch.float64)
        rows = torch.tensor([row for _, row in self._heap], dtype=torch.int64)
        return {**super().state_dict(), "ranks": ranks, "rows": rows}

    def register_storage(self, storage: GrowingStorage) -> None:
        """Write to this storage; raises `UsageError` if its steps have several rows."""
        if storage.ndim > 1:
            raise UsageError(
                f"{type(self).__name__} keeps single rows, and the storage has ndim={storage.ndim}"
            )
        super().register_storage(storage)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`; see `Writer`."""
        super().load_state_dict(state)
        self._heap = list(zip(state["ranks"].tolist(), state["rows"].tolist(), strict=True))

    def _ranks(self, data: Any) -> Tensor:
        leaf = data.get(self.rank_key, None) if hasattr(data, "batch_dims") else None
        if leaf is None:
            raise BufferUsageError(
                f"Rows are ranked by {join_key(self.rank_key)}, which they do not have",
                hint="TensorDictMaxValueWriter(rank_key=…) ranks them by another leaf",
            )
        ranks = reduced(leaf.detach(), self.reduction).to("cpu", torch.float64)
        if bool(ranks.isnan().any()):
            raise UsageError(f"{join_key(self.rank_key)} is NaN in some rows: they have no rank")
        return ranks


class ImmutableDatasetWriter(Writer):
    """Refuses every change of a dataset: raises `ImmutableError`."""

    def add(self, data: Any) -> NoReturn:  # noqa: ARG002 - TorchRL's signature
        """Raise `ImmutableError`."""
        raise immutable("add")

    def extend(self, data: Any) -> NoReturn:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise immutable("extend")

    def empty(self, empty_write_count: bool = True) -> NoReturn:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise immutable("empty")

    def __repr__(self) -> str:
        return "ImmutableDatasetWriter()"


def immutable(what: str) -> ImmutableError:
    """Return the error for an attempt to change a dataset by `what`."""
    return ImmutableError(
        f"A dataset is immutable: {what} would change it",
        hint="change batches on the way out with transform=…, or copy rows into memory that is "
        "yours: buffer[:1000].clone()",
    )
