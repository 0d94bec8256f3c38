"""`n_step`: rewards of several steps added up, and what stands at their end as what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.arguments import positive
from offline_data.buffers.derived.base import (
    STEPS,
    Cached,
    check_leaves,
    check_rows,
    check_stored,
    episode_bounds,
    has_leaf,
    leaf_keys,
    widen,
    within,
)
from offline_data.episodes.fields import DONE, REWARD, TERMINATED, TRUNCATED, Key

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.storage import Storage

GAMMA: Key = ("gamma",)
"""Leaf: the discount of what comes after these steps."""
ORIGINAL_REWARD = "original_reward"
"""Leaf under `next`: the reward of the first step."""


def n_step(n: int, gamma: float = 0.99) -> NStep:
    """Make every transition of a batch one of up to `n` steps.

    ```
    row            t                             t+1    t+2        n = 3
    observation    s_t
    action         a_t
    next reward    r_t + γ·r_t+1 + γ²·r_t+2                        where a_t gave r_t
    next …                                              s_t+3, and everything else of row t+2
    ```

    A transition gets `m <= n` steps: up to the end of its episode, or to the first row that is
    `terminated` or `truncated`. An episode's last row whose next observation is not known is left
    out unless it is terminated, or the transition itself. Then

    - `("next", "reward")` is `Σ γ^k r_t+k` over the `m` steps, added up in float64, in the dtype
      of the reward (float32 for integers); `("next", "original_reward")` is `r_t`;
    - everything else under `next` is that of row `t + m - 1`, flags too;
    - `steps_to_next_obs` is `m`, int64 `[B]`; `gamma` is `γ^m`, float32 `[B]`: a target is
      `reward + gamma * ~terminated * V(next observation)`.

    Names and values are those of TorchRL's `MultiStep`, except that flags there stay those of row
    `t`, so that a target bootstraps from a terminal state inside the window, and that there is no
    leaf `nonterminal`. It comes first among what is derived, and does not go with `relabel`.

    Args:
        n: Steps at most, at least 1.
        gamma: Discount γ of one step, from 0 to 1.

    Raises:
        UsageError: Invalid argument; and from the first batch, if it has no reward, its rows are
            whole episodes, or what is under `next` was changed before.

    Example:
        >>> n_step(3)
        NStep(n=3, gamma=0.99)
    """
    return NStep(positive(n, "n"), within(gamma, "gamma", 0, 1))


@dataclass(frozen=True)
class NStep(Cached):
    """Result of `n_step`, which describes the fields."""

    n: int
    gamma: float

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        """Make the batch one of `n` steps; see `Derived`."""
        after, ahead = self._memory.recall(
            storage, "leaves", lambda: self._check(batch, rows, storage)
        )
        rewards, steps = self._window(rows, storage, ahead)
        at_end: Any = self._memory.only(storage, after).gather(rows + steps - 1)
        following = at_end.get("next") if after else batch.get("next").empty()
        following.set(ORIGINAL_REWARD, batch.get(REWARD))
        taken = widen(torch.arange(self.n) < steps[:, None], rewards)
        weights = widen(self.gamma ** torch.arange(self.n)[None].double(), rewards)
        total = torch.where(taken, rewards.double() * weights, 0).sum(1)
        dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
        following.set(REWARD[1], total.to(dtype))
        batch.set("next", following)
        batch.set(STEPS, steps.to(rewards.device))
        batch.set(GAMMA, (self.gamma ** steps.double()).float().to(rewards.device))
        return batch

    def _check(
        self, batch: TensorDict, rows: Tensor, storage: Storage
    ) -> tuple[tuple[Key, ...], Storage]:
        """Return what is under `next` besides the reward, and the storage of rewards and flags."""
        check_rows("n_step", batch)
        check_leaves("n_step", batch, [REWARD])
        under = tuple(key for key in leaf_keys(batch) if key[0] == "next")
        check_stored("n_step", batch, rows, storage, under)
        after = tuple(key for key in under if key != REWARD)
        flags = [key for key in (DONE, TERMINATED, TRUNCATED) if has_leaf(storage, key)]
        ends = [DONE] if DONE in flags else flags  # `done` is made of the two others
        return after, storage.only((REWARD, *ends))

    def _window(self, rows: Tensor, storage: Storage, ahead: Storage) -> tuple[Tensor, Tensor]:
        """Return rewards `[B, n, …]` from each row on, and the steps that are taken, `[B]`."""
        spans = episode_bounds(storage, rows)
        wanted = rows[:, None] + torch.arange(self.n)
        last = torch.maximum(spans.last - (~spans.valid).long(), rows)[:, None]
        taken = wanted <= last
        window: Any = ahead.gather(torch.minimum(wanted, last).reshape(-1)).get("next")
        for name, leaf in window.items():
            if name != REWARD[1]:
                over = leaf.cpu().reshape(len(rows), self.n, -1).any(-1)
                taken[:, 1:] &= ~over[:, :-1]
        rewards = window.get(REWARD[1]).unflatten(0, (len(rows), self.n))
        return rewards, taken.long().cumprod(1).sum(1)
