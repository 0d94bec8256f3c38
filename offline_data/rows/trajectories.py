"""Padded trajectories as rows of a storage."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode import Key
from offline_data.rows.keys import KeyLike
from offline_data.rows.samplers.base import EpisodeIndex, ValidRows
from offline_data.rows.storage import DatasetStorage

if TYPE_CHECKING:
    from tensordict import TensorDict


MASK = "mask"
TRAJ_IDS = "traj_ids"
DATASET_INDEX = "dataset_index"


@pickled_by_name
class TrajectoryStorage:
    """The episodes of a dataset as rows `[T]`, padded to the longest episode.

    As in TorchRL's `split_trajectories`, `mask` is True for real steps, `traj_ids` is the episode's
    number, and other features are zero where the mask is False (text features in `texts`: -1). The
    transition whose next observation is unknown is included. `index` is the episode's number at
    every step, `dataset_index` the row of the transition in `steps`.
    """

    def __init__(self, steps: DatasetStorage, texts: Collection[Key] = ()) -> None:
        own = [name for name in (MASK, TRAJ_IDS, DATASET_INDEX) if (name,) in steps.keys]
        if own:
            raise UsageError(f"split_trajs=True would overwrite the feature {' and '.join(own)}")
        self.steps = steps
        self._texts = tuple(texts)
        self._starts = torch.from_numpy(steps.reader.starts)
        self._lengths = torch.from_numpy(steps.reader.lengths)

    def __len__(self) -> int:
        return len(self._lengths)

    def rows(self, *, valid_only: bool) -> ValidRows:  # noqa: ARG002 - all episodes are valid
        return ValidRows(len(self))

    def only(self, keys: Iterable[KeyLike]) -> TrajectoryStorage:
        return TrajectoryStorage(self.steps.only(keys), self._texts)

    def to(self, device: torch.device | str | int) -> TrajectoryStorage:
        return TrajectoryStorage(self.steps.to(device), self._texts)

    def runs(self) -> EpisodeIndex:
        """Return each row as a separate run: no row continues another."""
        count = torch.arange(len(self))
        return EpisodeIndex(count, torch.ones_like(count))

    def gather(self, rows: Tensor) -> TensorDict:
        longest = int(self._lengths.max())
        steps, mask = pad_rows(self._starts[rows], self._lengths[rows], longest)
        mask = mask.to(self.steps.device)
        batch = self.steps.gather(steps.reshape(-1)).reshape(mask.shape)
        for key in batch.keys(include_nested=True, leaves_only=True):
            fill(batch.get(key), mask, -1 if key in self._texts else 0)
        batch.set(DATASET_INDEX, batch.get("index"))
        batch.set("index", rows.to(mask.device)[:, None].expand(mask.shape).contiguous())
        batch.set(MASK, mask)
        batch.set(TRAJ_IDS, torch.where(mask, rows.to(mask.device)[:, None], 0))
        return batch


def pad_rows(starts: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return rows and mask of padded runs, `[R, width]`; padding repeats the last row of a run."""
    time = torch.arange(width, device=starts.device)
    rows = starts[:, None] + torch.minimum(time, lengths[:, None] - 1)
    return rows, time < lengths[:, None]


def fill(leaf: Tensor, mask: Tensor, value: int) -> None:
    """Set a feature `[R, T, …]` to `value` where the mask `[R, T]` is False."""
    leaf.masked_fill_(~mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim)), value)
