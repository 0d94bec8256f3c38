"""`n_step`: n-step returns, with the observation after the last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offline_data.episode.fields import DONE, REWARD, TERMINATED, TRUNCATED, Key
from offline_data.rows.derived.base import (
    STEPS,
    CachedLeaf,
    check_leaves,
    check_rows,
    check_stored,
    episode_bounds,
    has_leaf,
    leaf_keys,
    widen,
    within,
)
from offline_data.rows.indexing import positive
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict


GAMMA: Key = ("gamma",)  # feature: the discount `γ^m` after `m` steps
ORIGINAL_REWARD = "original_reward"  # feature under `next`: the reward of the first step


def n_step(n: int, gamma: float = 0.99) -> NStep:
    """Replace the transitions of a batch by n-step transitions.

    ```
    row            t                             t+1    t+2        n = 3
    observation    s_t
    action         a_t
    next reward    r_t + γ·r_t+1 + γ²·r_t+2                        r_t is the reward of a_t
    next …                                              s_t+3, and everything else of row t+2
    ```

    A transition covers `m <= n` steps: up to the end of its episode, or to the first row that is
    `terminated` or `truncated`. An episode's last row without a known next observation is excluded,
    unless it is terminated or is the transition itself.

    - `("next", "reward")` is `Σ γ^k r_t+k` over the `m` steps, summed in float64, returned in the
      dtype of the reward (float32 for integers); `("next", "original_reward")` is `r_t`;
    - everything else under `next`, including flags, is from row `t + m - 1`;
    - `steps_to_next_obs` is `m`, int64 `[B]`; `gamma` is `γ^m`, float32 `[B]`: a target is
      `reward + gamma * ~terminated * V(next observation)`.

    Names and values are those of TorchRL's `MultiStep`, except that its flags are those of row `t`,
    so that a target bootstraps from a terminal state inside the window, and that there is no
    feature `nonterminal`. Must be first in `derived`; cannot be combined with `relabel`.

    Args:
        n: Maximum number of steps, at least 1.
        gamma: Discount γ of one step, from 0 to 1.

    Raises:
        UsageError: Invalid argument; or, on the first batch, no reward, rows that are whole
            episodes, or features under `next` that were changed before.

    Example:
        >>> n_step(3)
        NStep(n=3, gamma=0.99)
    """
    return NStep(positive(n, "n"), within(gamma, "gamma", 0, 1))


@dataclass(frozen=True)
class NStep(CachedLeaf):
    """Result of `n_step`, which documents the fields."""

    n: int
    gamma: float

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        after, ahead = self._memory.recall(
            storage, "leaves", lambda: self._check(batch, rows, storage)
        )
        rewards, steps = self._window(rows, storage, ahead)
        at_end: Any = self._memory.only(storage, after).gather(rows + steps - 1)
        following = at_end.get("next") if after else batch.get("next").empty()
        following.set(ORIGINAL_REWARD, batch.get(REWARD))
        used = widen(torch.arange(self.n) < steps[:, None], rewards)
        weights = widen(self.gamma ** torch.arange(self.n)[None].double(), rewards)
        total = torch.where(used, rewards.double() * weights, 0).sum(1)
        dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
        following.set(REWARD[1], total.to(dtype))
        batch.set("next", following)
        batch.set(STEPS, steps.to(rewards.device))
        batch.set(GAMMA, (self.gamma ** steps.double()).float().to(rewards.device))
        return batch

    def _check(
        self, batch: TensorDict, rows: Tensor, storage: Storage
    ) -> tuple[tuple[Key, ...], Storage]:
        """Return the keys under `next` except the reward, and the storage of rewards and flags."""
        check_rows("n_step", batch)
        check_leaves("n_step", batch, [REWARD])
        under = tuple(key for key in leaf_keys(batch) if key[0] == "next")
        check_stored("n_step", batch, rows, storage, under)
        every = [key for key in leaf_keys(batch, text=True) if key[0] == "next"]
        after = tuple(key for key in every if key != REWARD)
        flags = [key for key in (DONE, TERMINATED, TRUNCATED) if has_leaf(storage, key)]
        ends = [DONE] if DONE in flags else flags  # `done` is the or of the two others
        return after, storage.only((REWARD, *ends))

    def _window(self, rows: Tensor, storage: Storage, ahead: Storage) -> tuple[Tensor, Tensor]:
        """Return rewards `[B, n, …]` from each row on, and the number of steps used, `[B]`."""
        spans = episode_bounds(storage, rows)
        wanted = rows[:, None] + torch.arange(self.n)
        last = torch.maximum(spans.last - (~spans.valid).long(), rows)[:, None]
        used = wanted <= last
        window: Any = ahead.gather(torch.minimum(wanted, last).reshape(-1)).get("next")
        for name, leaf in window.items():
            if name != REWARD[1]:
                over = leaf.cpu().reshape(len(rows), self.n, -1).any(-1)
                used[:, 1:] &= ~over[:, :-1]
        rewards = window.get(REWARD[1]).unflatten(0, (len(rows), self.n))
        return rewards, used.long().cumprod(1).sum(1)
