"""Writers that choose where new rows of a growing storage are written."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.base.plurals import plural
from offline_data.buffers.writers import Writer
from offline_data.episode.fields import REWARD, join_key
from offline_data.rows import fields
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.samplers.reduce import check_reduction, reduce_values
from offline_data.rows.unsupported import refuse
from offline_data.torchrl.storages import GrowingStorage
from offline_data.torchrl.storages.leaves import part_of, stack_rows


class RoundRobinWriter(Writer):
    """Writes rows at `cursor`, which wraps around to row 0 after the last one.

    A failed write does not move the cursor. If more rows are written than fit, the last ones are
    kept. `**torchrl`: `compilable` and `track_generations`; only the defaults are accepted.
    """

    STATE: ClassVar = {**Writer.STATE, "cursor": fields.COUNT}

    def __init__(self, **torchrl: Any) -> None:
        refuse(type(self).__name__, torchrl, "compilable track_generations")
        super().__init__()
        self.cursor = 0

    def add(self, data: Any) -> int:
        row = self.cursor
        self.storage.set(row, data)
        self._advance(1)
        return row

    def extend(self, data: Any) -> Tensor:
        """Write steps; returns their numbers, int64 `[B]`, with repeats above the capacity."""
        count = self.storage.batch_length(data)
        size = self.storage.steps
        rows: Tensor = (torch.arange(count) + self.cursor) % size
        left = size - self.cursor
        if count > size:
            self.storage.set(rows[-size:], part_of(data, slice(count - size, None)))
        elif count > left:
            self.storage.set(slice(self.cursor, size), part_of(data, slice(left)))
            self.storage.set(slice(0, count - left), part_of(data, slice(left, None)))
        else:
            self.storage.set(slice(self.cursor, self.cursor + count), data)
        self._advance(count)
        return rows

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self.cursor = 0

    def _rules(self, state: Any, above: Any) -> Iterator[fields.Rule]:
        known, size = self._steps(above)
        last = fields.integer(high=min(known, size - 1))
        yield "cursor", last.holds(state["cursor"]), last.expected

    def _advance(self, count: int) -> None:
        self.cursor = (self.cursor + count) % self.storage.steps
        self.write_count += count * self.storage.width


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """A `RoundRobinWriter`; rows and batches have `index` (TorchRL's also writes it to the data)."""

    indexes = True


class TensorDictMaxValueWriter(Writer):
    """Keeps the `max_size` rows with the highest rank.

    Until the storage is full, every row is kept. Then a row with a higher rank replaces the (first)
    one with the lowest. For a slice sampler each row is a separate run, so write whole trajectories
    (`[B, T]`) as rows. Writing takes `O(B)`, plus `O(log max_size)` per row kept.

    Args:
        rank_key: Feature to rank rows by; None: `("next", "reward")`.
        reduction: `"sum"`, `"mean"`, `"max"`, `"min"` or `"median"`; combines several values of the
            feature in a row.
    """

    STATE: ClassVar = {
        **Writer.STATE,
        "ranks": fields.tensor(torch.float64, None).at(None),
        "rows": fields.tensor(torch.int64, None).at(None),
    }
    indexes = True

    def __init__(
        self, rank_key: KeyLike | None = None, reduction: str = "sum", **torchrl: Any
    ) -> None:
        refuse(type(self).__name__, torchrl, "compilable")
        super().__init__()
        self.rank_key = REWARD if rank_key is None else as_key(rank_key)
        self.reduction = check_reduction(reduction)
        self._heap: list[tuple[float, int]] = []

    def add(self, data: Any) -> int | None:
        row = int(self.extend(data.unsqueeze(0) if hasattr(data, "unsqueeze") else [data])[0])
        return None if row < 0 else row

    def extend(self, data: Any) -> Tensor:
        """Write the rows that are among the best; returns their numbers, int64 `[B]`, -1 for others.

        Raises `UsageError` if the data lack the feature, or ranks are NaN.
        """
        if isinstance(data, list):
            data = stack_rows(data)
        ranks = self._ranks(data)
        rows = torch.full((len(ranks),), -1)
        heap = list(self._heap)
        # The lowest rank kept only rises: a row below it now will never be kept.
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
            rows_kept, numbers = torch.tensor(list(kept.items())).T
            self.storage.set(rows_kept, data[numbers.to(data.device or "cpu")], linked=False)
            rows[numbers] = rows_kept
        self._heap = heap
        self.write_count += count
        return rows

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._heap = []

    def state_dict(self) -> dict[str, Any]:
        ranks = torch.tensor([rank for rank, _ in self._heap], dtype=torch.float64)
        rows = torch.tensor([row for _, row in self._heap], dtype=torch.int64)
        return {**super().state_dict(), "ranks": ranks, "rows": rows}

    def _rules(self, state: Any, above: Any) -> Iterator[fields.Rule]:
        ranks, known = state["ranks"], fields.row_numbers(self._steps(above)[0])
        yield "rows", known.holds(state["rows"]), known.expected
        rows = state["rows"].tolist()
        yield "rows", len({*rows}) == len(rows), "every row once"
        fits = len(ranks) == len(rows) and not bool(ranks.isnan().any())
        yield "ranks", fits, f"numbers of {plural(len(rows), 'row')}"

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self._heap = list(zip(state["ranks"].tolist(), state["rows"].tolist(), strict=True))

    def register_storage(self, storage: GrowingStorage) -> None:
        if storage.ndim > 1:
            raise UsageError(
                f"{type(self).__name__} is not compatible with storages with more than one dimension: "
                f"it keeps single rows, and the storage has ndim={storage.ndim}",
                hint="a storage with ndim=1 takes trajectories [B, T] as rows",
            )
        super().register_storage(storage)

    def _ranks(self, data: Any) -> Tensor:
        if not is_tensor_collection(data):
            raise BufferUsageError(
                f"{type(self).__name__} expects data to be a tensor collection, a TensorDict or a "
                f"tensorclass; found a {type(data).__name__}",
                hint="a RoundRobinWriter writes rows of any kind",
            )
        leaf = data.get(self.rank_key, None)
        if leaf is None:
            raise BufferUsageError(
                f"Rows are ranked by {join_key(self.rank_key)}, which they do not have",
                hint="TensorDictMaxValueWriter(rank_key=…) ranks them by another feature",
            )
        ranks = reduce_values(leaf.detach(), self.reduction).to("cpu", torch.float64)
        if bool(ranks.isnan().any()):
            raise UsageError(
                f"{join_key(self.rank_key)} is NaN in some rows, which therefore have no rank"
            )
        return ranks
