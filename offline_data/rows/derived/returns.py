"""`return_to_go`: the discounted return from each step on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.episode.discount import discount_rewards
from offline_data.episode.fields import REWARD, Key
from offline_data.rows.derived.base import CachedLeaf, check_rows, has_leaf, keys_first, within
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict


CHUNK = 1 << 20  # number of rows summed at once; an episode may be longer


def return_to_go(
    key: KeyLike | float = "return_to_go", gamma: float | KeyLike | None = None
) -> ReturnsToGo:
    """Add to a batch the discounted sum of rewards from each step to its episode's end.

    `Σ_{k≥0} γ^k r_t+k` over the stored rewards, including its own: a truncated episode is not
    extrapolated, and the reward of a last step counts even if the next observation is unknown.

    Returns of all rows are summed in float64 at the first batch, and again after a write: one pass
    over the rewards, which takes 8 bytes of memory per reward value.

    Args:
        key: Key of the feature: float32, in the shape of the reward. May be omitted.
        gamma: Discount γ of one step, from 0 to 1; None: 1. May also come first.

    Raises:
        UsageError: Invalid argument; or, on the first batch, no reward in the storage, or rows that
            are whole episodes.

    Example:
        >>> return_to_go(gamma=0.99)
        ReturnsToGo(gamma=0.99, key=('return_to_go',))
    """
    name, discount = keys_first(key, gamma, "return_to_go")
    return ReturnsToGo(within(1 if discount is None else discount, "gamma", 0, 1), as_key(name))


@dataclass(frozen=True)
class ReturnsToGo(CachedLeaf):
    """Result of `return_to_go`, which documents the fields."""

    gamma: float
    key: Key

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        check_rows("return_to_go", batch)
        memory = self._memory
        returns = memory.recall(storage, "returns", lambda: self._all(storage), storage.runs)
        batch.set(self.key, returns[rows].float().to(batch.device))
        return batch

    def _all(self, storage: Storage) -> Tensor:
        """Return the returns of all rows, float64 `[N, …]`."""
        if not has_leaf(storage, REWARD):
            raise UsageError(
                "return_to_go needs the feature 'next/reward', which the storage lacks"
            )
        stored, runs = self._memory.only(storage, (REWARD,)), storage.runs()
        done = runs.lengths.cumsum(0)  # chunks of whole runs, of at least `CHUNK` rows
        marks = torch.arange(CHUNK, int(done[-1]) + CHUNK, CHUNK)
        stops = dict.fromkeys((torch.searchsorted(done, marks) + 1).clamp_max(len(done)).tolist())
        parts = []
        for first, stop in itertools.pairwise([0, *stops]):
            begin, end = int(runs.starts[first]), int(done[stop - 1])
            rewards = stored.gather(torch.arange(begin, end)).get(REWARD).cpu().double()
            lengths = runs.lengths[first:stop].numpy()
            parts.append(torch.from_numpy(discount_rewards(rewards.numpy(), lengths, self.gamma)))
        return torch.cat(parts)
