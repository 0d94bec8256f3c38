"""The next batch's rows, read from a disk while this one is made and used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers.base import Sampler
    from offline_data.buffers.storage import DatasetStorage
    from offline_data.buffers.views.storage import SubsetStorage

MISSES = 2
"""Batches in a row that were not the foreseen ones, after which none is foreseen any more."""


class Foresight:
    """Tells a storage which rows are likely to come next.

    The sampler is asked what it would draw now, which changes nothing: batches are the same with
    and without this, and whether the data are in memory does not show in them. If something else
    draws from the sampler's generator between two batches, others come than were foreseen; that
    costs reads for nothing, so it is noticed.
    """

    def __init__(self) -> None:
        self._foreseen: Tensor | None = None
        self._misses = 0

    def look(
        self, sampler: Sampler, storage: DatasetStorage | SubsetStorage, rows: Tensor, size: int
    ) -> None:
        """Have the rows read that follow a batch.

        Args:
            sampler: Sampler that draws them.
            storage: Storage that holds them.
            rows: Those of the batch that was drawn just now, int64 `[B]`.
            size: Batch size that the sampler was asked for.
        """
        if self._foreseen is not None:
            right = torch.equal(self._foreseen, rows)
            self._misses = 0 if right else self._misses + 1
        gave_up = self._misses >= MISSES
        self._foreseen = None if gave_up else sampler.foresee(storage, size)
        if self._foreseen is not None:
            storage.expect(self._foreseen)
