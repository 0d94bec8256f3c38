"""Whole episodes as rows: padded to the longest one, made for every batch and not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from offline_data.buffers.samplers.base import RowSet, Runs
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.storage import DatasetStorage
    from offline_data.episodes import Key

MASK = "mask"
TRAJ_IDS = "traj_ids"
DATASET_INDEX = "dataset_index"


class TrajectoryStorage:
    """The episodes of a dataset, each a row `[T]`, where `T` is the length of the longest.

    The same as TorchRL's `split_trajectories`: `mask` says which steps are there, `traj_ids` which
    episode they are of, and everything else is zero where the mask is False (text: -1). The
    transition whose next observation is unknown is in. `index` has the number of the episode at
    every step, as rows of this storage are episodes, and `dataset_index` the transition.

    Args:
        steps: The dataset's transitions.
        texts: Text leaves.
    """

    def __init__(self, steps: DatasetStorage, texts: Collection[Key] = ()) -> None:
        own = [name for name in (MASK, TRAJ_IDS, DATASET_INDEX) if (name,) in steps.keys]
        if own:
            raise UsageError(f"split_trajs=True would overwrite the leaf {' and '.join(own)}")
        self._steps = steps
        self._texts = tuple(texts)
        self._starts = torch.from_numpy(steps.reader.starts)
        self._lengths = torch.from_numpy(steps.reader.lengths)

    def __len__(self) -> int:
        """Return `E`."""
        return len(self._lengths)

    def rows(self, *, valid_only: bool) -> RowSet:  # noqa: ARG002 - whole episodes are whole
        """Return all episodes."""
        return RowSet(len(self), np.zeros(0, np.int64))

    def only(self, keys: Iterable[KeyLike]) -> TrajectoryStorage:
        """Return the same episodes with some of the leaves; see `Storage`."""
        return TrajectoryStorage(self._steps.only(keys), self._texts)

    def runs(self) -> Runs:
        """Return every row as a run of its own: nothing follows a whole episode."""
        count = torch.arange(len(self))
        return Runs(count, torch.ones_like(count))

    @property
    def steps(self) -> DatasetStorage:
        """The dataset's transitions."""
        return self._steps

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the episodes `rows`, `[B, T]`."""
        longest = int(self._lengths.max())
        steps, mask = padded_rows(self._starts[rows], self._lengths[rows], longest)
        mask = mask.to(self._steps.device)
        batch = self._steps.gather(steps.reshape(-1)).reshape(mask.shape)
        for key in batch.keys(include_nested=True, leaves_only=True):
            fill(batch.get(key), mask, -1 if key in self._texts else 0)
        batch.set(DATASET_INDEX, batch.get("index"))
        batch.set("index", rows.to(mask.device)[:, None].expand(mask.shape).contiguous())
        batch.set(MASK, mask)
        batch.set(TRAJ_IDS, torch.where(mask, rows.to(mask.device)[:, None], 0))
        return batch


def padded_rows(starts: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Lay runs of rows out side by side, each filled up by its last row.

    Args:
        starts: First row of each run, int64 `[R]`.
        lengths: Rows of each run, int64 `[R]`, at least one.
        width: Columns; at least as many as the longest run has rows.

    Returns:
        Rows, int64 `[R, width]`, and which of them are there, bool `[R, width]`.

    Example:
        >>> padded_rows(torch.tensor([0, 3]), torch.tensor([3, 1]), 3)[0].tolist()
        [[0, 1, 2], [3, 3, 3]]
    """
    time = torch.arange(width, device=starts.device)
    rows = starts[:, None] + torch.minimum(time, lengths[:, None] - 1)
    return rows, time < lengths[:, None]


def fill(leaf: Tensor, mask: Tensor, value: int) -> None:
    """Overwrite a leaf `[R, T, …]` where the mask `[R, T]` is False."""
    leaf.masked_fill_(~mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim)), value)
