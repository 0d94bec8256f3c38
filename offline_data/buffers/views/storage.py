"""Some rows of a storage as a storage of their own: every batch is a gather of the whole's."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from offline_data.buffers.samplers.base import RowSet, Runs
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.storage import Storage
    from offline_data.buffers.views.pieces import RowMap


class SubsetStorage:
    """Rows `0, 1, …` of it are the whole's rows `rows.at(0), rows.at(1), …`.

    The leaf `index` of a batch has the whole's rows. Runs are pieces of the whole's: rows that
    follow each other here and there. A pickled one carries what the whole carries, and the rows.

    Args:
        whole: Where the rows are.
        rows: Which they are.
    """

    def __init__(self, whole: Storage, rows: RowMap) -> None:
        self.whole = whole
        self.row_map = rows

    def __reduce__(self) -> tuple[object, ...]:
        """Leave behind what can be computed again."""
        return SubsetStorage, (self.whole, self.row_map)

    def __len__(self) -> int:
        """Return the number of rows, those without a known next observation included."""
        return self.row_map.count

    def rows(self, *, valid_only: bool) -> RowSet:
        """Return the rows that a sampler may draw; see `Sampleable`.

        Raises:
            UsageError: The view has no rows at all.
        """
        of_whole = self.whole.rows(valid_only=valid_only)  # raises if the dataset was deleted
        if not len(self):
            raise UsageError("The view is empty, so there is nothing to sample")
        if not len(of_whole.left_out):
            return self._every
        return self._valid

    @cached_property
    def _every(self) -> RowSet:
        return RowSet(len(self), np.zeros(0, np.int64))

    @cached_property
    def _valid(self) -> RowSet:
        left_out = torch.from_numpy(self.whole.rows(valid_only=True).left_out)
        return RowSet(len(self), self.row_map.left_out(left_out).numpy())

    def runs(self) -> Runs:
        """Return which rows follow each other; see `Sampleable`."""
        return self._runs

    @cached_property
    def _runs(self) -> Runs:
        of_whole = self.whole.runs()
        pieces = self.row_map.cut(of_whole)
        return Runs(pieces.starts[:-1], pieces.lengths, pieces.final(of_whole))

    def only(self, keys: Iterable[KeyLike]) -> SubsetStorage:
        """Return the same rows with some of the leaves; see `Storage`."""
        other = SubsetStorage(self.whole.only(keys), self.row_map)
        other._runs = self._runs
        return other

    @property
    def cold(self) -> bool:
        """Whether batches come from a disk now; see `DatasetStorage.cold`."""
        return bool(getattr(self.whole, "cold", False))

    def expect(self, rows: Tensor) -> None:
        """Take note that rows are gathered soon, where the storage is `cold`."""
        self.whole.expect(self.row_map.at(rows))  # type: ignore[attr-defined]

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the batch of `rows`; see `Storage`; raises `IndexError`."""
        return self.whole.gather(self.row_map.at(rows))
