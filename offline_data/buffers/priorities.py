"""Priorities that are read from the features of batches."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.buffers.buffer import Buffer
from offline_data.episode.fields import Key, join_key
from offline_data.rows.samplers import Sampler
from offline_data.rows.samplers.reduce import one_per_trajectory
from offline_data.rows.trajectories import MASK

_MASKS = (MASK, ("collector", MASK))  # padding masks of trajectories


class PrioritiesOfLeaves(Buffer[TensorDict]):
    """A `Buffer` that reads priorities from batches."""

    priority_key: Key = ("td_error",)
    """Feature of the priorities; the sampler reduces several values per row to one."""

    def update_tensordict_priority(self, data: Any) -> None:
        """Set priorities from a batch `[B, …]` or `[]`; no effect if the sampler uses none.

        A row that is a trajectory `[T]` has one priority: the sampler's `reduction` over its steps,
        without padding if the batch has a `mask`. Raises `UsageError` for an invalid priority, or
        without `index` or `priority_key`.
        """
        if not self._has_priorities:
            return
        data = data if data.batch_dims else data.unsqueeze(0)
        index = data.get("index", None)
        if index is None or data.get(self.priority_key, None) is None:
            raise UsageError(
                f"Expected index and the priorities in {join_key(self.priority_key)}; found "
                f"{', '.join(map(str, data.keys()))}",
                hint="TensorDictReplayBuffer(priority_key=…) sets the feature of priorities",
            )
        self._take_priority(data, index.reshape(len(index), -1)[:, 0])

    @property
    def _has_priorities(self) -> bool:
        return type(self._sampler).update_priority is not Sampler.update_priority

    def _take_priority(self, data: Any, rows: Tensor) -> None:
        if not self._has_priorities:
            return
        if isinstance(data, list | tuple):
            has = [isinstance(row, TensorDictBase) and self.priority_key in row for row in data]
            data = torch.stack([*data]) if data and all(has) else None
        found = data.get(self.priority_key, None) if hasattr(data, "batch_dims") else None
        if found is None:
            return
        mask = next((one for key in _MASKS if (one := data.get(key, None)) is not None), None)
        reduction = getattr(self._sampler, "reduction", None)
        if mask is not None and reduction and 1 < mask.ndim <= found.ndim:
            found = one_per_trajectory(found, mask, reduction)
        self.update_priority(rows, found)
