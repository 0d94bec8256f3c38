"""Features of the previous or next row of the same episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.episode.fields import REWARD, Key
from offline_data.rows.derived.base import CachedLeaf, episode_bounds, widen
from offline_data.rows.storage import Storage
from offline_data.rows.trajectories import MASK

if TYPE_CHECKING:
    from tensordict import TensorDict


ROOT_REWARD: Key = ("reward",)
NEXT_INFO: Key = ("next", "info")


@dataclass(frozen=True)
class Neighbour(CachedLeaf):
    """Sets `target` to `source` of the row at offset `step`; zeros beyond the episode.

    Either key may be a parent of features, and rows whole episodes `[E, T]`. `optional`: whether
    rows without the source, such as new ones next to a dataset, stay as they are.
    """

    target: Key
    source: Key
    step: int
    optional: bool = False

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        stored = self._memory.recall(storage, "source", lambda: self._source_of(storage))
        if stored is None:
            return batch
        if batch.batch_dims == 2:
            steps = torch.arange(batch.shape[1]) + self.step
            there = (steps >= 0) & (steps < len(steps))
            found: Any = stored.gather(rows).get(self.source)[:, torch.where(there, steps, 0)]
            inside = batch.get(MASK) & there.to(batch.get(MASK).device)
        else:
            spans, others = episode_bounds(storage, rows), rows + self.step
            inside = (others >= spans.first) & (others <= spans.last)
            found = stored.gather(torch.where(inside, others, rows)).get(self.source)
        if isinstance(found, torch.Tensor):
            return batch.set(self.target, _or_zeros(found, inside))
        return batch.set(self.target, found.apply(lambda leaf: _or_zeros(leaf, inside)))

    def _source_of(self, storage: Storage) -> Storage | None:
        try:
            only = storage.only((self.source,))
            only.gather(torch.arange(1))
        except (KeyError, UsageError):
            if self.optional:
                return None
            raise
        return only


def _or_zeros(leaf: Tensor, inside: Tensor) -> Tensor:
    return leaf.masked_fill(~widen(inside, leaf), 0)


def leaves_of_torchrl(keys: list[Key]) -> tuple[list[Key], list[Neighbour]]:
    """Return the stored keys, and functions that derive the others.

    TorchRL's classes have the root `reward`, that of the previous row, and `("next", "info")`, the
    info of the next row; here the row is always of the same episode.
    """
    stored, derived = [], []
    for key in keys:
        if key == ROOT_REWARD:
            derived.append(Neighbour(key, REWARD, -1))
        elif key[:2] == NEXT_INFO:
            derived.append(Neighbour(key, key[1:], 1))
        else:
            stored.append(key)
    return stored, derived
