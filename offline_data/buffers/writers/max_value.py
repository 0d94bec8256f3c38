"""The best rows seen so far, by one of their leaves."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.reduce import check_reduction, reduced
from offline_data.buffers.refusals import refuse
from offline_data.buffers.storages.columns import count_of, stacked
from offline_data.buffers.writers.base import Writer
from offline_data.episodes.fields import REWARD, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class TensorDictMaxValueWriter(Writer):
    """Keeps the `max_size` rows with the highest rank.

    While there is room, every row is kept. Then a row replaces the one with the lowest rank, the
    first of them where several have it, if its own is higher. Rows that are kept do not follow
    each other: to a sampler of slices each is a run of its own, so let rows be whole trajectories
    (`[B, T]`) where they should.

    A write costs `O(B)` and `O(log max_size)` for each row that is kept.

    Args:
        rank_key: Leaf that ranks rows; None: `("next", "reward")`.
        reduction: `"sum"`, `"mean"`, `"max"`, `"min"` or `"median"` of the leaf's values in a row,
            where there are several.
        **torchrl: `compilable` of TorchRL's signature, with its default.

    Raises:
        UsageError: Invalid argument.
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
        """Write the rows that are among the best.

        Returns:
            Where, int64 `[B]`; -1 for rows that are not kept, or not any more after the last.

        Raises:
            UsageError: Data without the leaf that ranks them, or ranks that are no numbers (NaN).
        """
        if isinstance(data, list):
            data = stacked(data)
        count_of(data)
        heap = list(self._heap)
        kept, count = self._choose(self._ranks(data), heap)
        if kept:
            where, which = torch.tensor(list(kept.items())).T
            self.storage.set(where, data[which.to(data.device or "cpu")], linked=False)
        rows = torch.full((len(data),), -1)
        if kept:
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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; see `Writer`."""
        super().load_state_dict(state)
        self._heap = list(zip(state["ranks"].tolist(), state["rows"].tolist(), strict=True))

    def _ranks(self, data: Any) -> Tensor:
        leaf = data.get(self.rank_key, None) if hasattr(data, "batch_dims") else None
        if leaf is None:
            raise UsageError(
                f"Rows are ranked by {join_key(self.rank_key)}, which they do not have",
                hint="TensorDictMaxValueWriter(rank_key=…) ranks them by another leaf",
            )
        ranks = reduced(leaf.detach(), self.reduction).to("cpu", torch.float64)
        if bool(ranks.isnan().any()):
            raise UsageError(f"{join_key(self.rank_key)} is NaN in some rows: they have no rank")
        return ranks

    def _choose(self, ranks: Tensor, heap: list[tuple[float, int]]) -> tuple[dict[int, int], int]:
        """Find which rows of the data go where, and how many were ever kept on the way.

        The lowest rank kept only rises: what does not beat it at the beginning never will, so a
        loop over the others is all it takes.
        """
        room = min(self.storage.max_size - len(heap), len(ranks))
        kept = {len(heap) + number: number for number in range(room)}
        heap.extend(zip(ranks[:room].tolist(), kept, strict=True))
        heapq.heapify(heap)
        count = room
        if count == len(ranks):
            return kept, count
        better = (ranks[room:] > heap[0][0]).nonzero()[:, 0] + room
        for number, rank in zip(better.tolist(), ranks[better].tolist(), strict=True):
            if rank > heap[0][0]:
                row = heap[0][1]
                heapq.heapreplace(heap, (rank, row))
                kept[row] = number
                count += 1
        return kept, count
