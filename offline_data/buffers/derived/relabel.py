"""`relabel`: goals that were or could be reached, in place of the intended ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.derived.base import widen
from offline_data.buffers.derived.checks import (
    check_leaves,
    check_rows,
    check_stored,
    leaf_keys,
    within,
)
from offline_data.buffers.derived.goals import LAWS, Draw, draw_of, laws_of, numbers_for
from offline_data.buffers.derived.memory import Memory
from offline_data.buffers.derived.n_step import STEPS
from offline_data.buffers.derived.reach import reached, rewards_of
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.episodes.fields import (
    DONE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.derived.goals import Law
    from offline_data.buffers.derived.reach import Rewards
    from offline_data.buffers.storage import Storage


def relabel(
    strategy: Law | Mapping[Law, float] = "future",
    p: float = 0.8,
    *,
    goal_key: KeyLike = ("observation", "desired_goal"),
    achieved_key: KeyLike = ("observation", "achieved_goal"),
    reward_fn: Rewards | None = None,
    threshold: float = 0.0,
    terminate: bool = False,
    gamma: float = 0.99,
    seed: int | None = None,
) -> Relabel:
    """Give transitions of a batch other goals in hindsight, and the rewards that go with them.

    ```
    row                  first  …  t    t+1  …  last         of an episode
    state after it                 s_t+1        s_last+1     "achieved" is a part of the state
    ```

    A goal is what was achieved in a state that a law chooses for each transition `t` on its own:

    - `final`: the episode's last state, `s_last+1`;
    - `future`: one of `s_t+1`, …, `s_last+1`, each with the same probability;
    - `geometric`: `s_t+Δ`, where `P(Δ = d) = (1 - γ) γ^(d-1)` for d = 1, 2, …; the episode's last
      state where that is beyond it;
    - `episode`: one of `s_first+1`, …, `s_last+1`, each with the same probability;
    - `random`: the state after any transition of the storage that samplers may draw;
    - `current`: `s_t`, the state before the action.

    `final`, `future`, `episode` are those of Hindsight Experience Replay (Andrychowicz et al.,
    2017); a mixture of `current`, `geometric` and `random` is how OGBench's `GCDataset` draws goals
    (`p_curgoal`, `p_trajgoal`, `p_randomgoal`), but for rewards: there, a goal is reached in the
    state before the action, here, as in gymnasium's `GoalEnv`, in the one after it.

    The goal is written at the root and under `next`; reward, and flags if asked, are computed from
    what is achieved in the next state. Transitions that keep their goal keep reward and flags too,
    so `reward_fn` should be that of the dataset where `p < 1`. A transition whose next state is not
    known keeps its goal; if the storage has no goals, it gets its own state and keeps its reward.

    Goals follow from the seed and the rows of a batch in their order: the same batch of rows has
    the same goals, in every thread and process. So batches of one row, and batches that come again
    in the same order, do not get new goals each time.

    Args:
        strategy: A law, or laws with their probabilities, which add up to 1.
        p: Probability that a transition gets another goal, from 0 to 1.
        goal_key: Leaf of the goal; where batches have none, it is made (then `p` is 1).
        achieved_key: Leaf that goals are taken from, in the shape of a goal; `observation` where
            a goal is a whole state.
        reward_fn: From what was achieved next and the goal, both `[B, …]`, to rewards `[B]`; a
            function of a module, so that it can be pickled. None: 0 where the goal is reached,
            else -1.
        threshold: Euclidean distance up to which a goal is reached; 0: it is equal.
        terminate: Whether a transition with another goal is terminated where that is reached, and
            else not; False: flags stay.
        gamma: γ of the law `geometric`, at least 0, less than 1.
        seed: At least 0; None: drawn now from torch's global generator.

    Raises:
        UsageError: Invalid argument; and from the first batch, where a leaf is not
            there, has another shape or was changed before, rows are whole episodes, or rewards were
            added up by `n_step`.

    Example:
        >>> relabel({"future": 0.5, "random": 0.5}, p=1, seed=0).laws
        (('future', 0.5), ('random', 0.5))
    """
    if within(gamma, "gamma", 0, 1) == 1:
        raise UsageError(
            "gamma is 1; a geometric distribution needs gamma below 1",
            hint="use 'final' for the last step of an episode",
        )
    return Relabel(
        laws_of(strategy),
        within(p, "p", 0, 1),
        as_key(goal_key),
        as_key(achieved_key),
        reward_fn,
        within(threshold, "threshold", 0, math.inf),
        terminate,
        gamma,
        _seed_of(seed),
    )


@dataclass(frozen=True, repr=False)
class Relabel:
    """Result of `relabel`."""

    laws: tuple[tuple[str, float], ...]
    """Laws with their probabilities."""
    p: float
    """Probability of another goal."""
    goal_key: Key
    """Leaf of the goal."""
    achieved_key: Key
    """Leaf that goals are taken from."""
    reward_fn: Rewards | None
    """Rewards from what was achieved and the goal."""
    threshold: float
    """Distance up to which a goal is reached."""
    terminate: bool
    """Whether to make flags too."""
    gamma: float
    """Of the geometric law."""
    seed: int
    """Seed of the goals, together with the rows."""
    _memory: Memory = field(default_factory=Memory, init=False, compare=False)

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        """Give the batch other goals; see `Derived`."""
        self._memory.recall(storage, "checked", lambda: self._check(batch, rows, storage))
        number = numbers_for(self.seed, rows, 3)
        draw = draw_of(storage, rows, number[2], self.gamma)
        chosen = (number[0] < self.p) & (rows <= draw.last)
        self._set_goals(batch, self._goals(batch, draw, number[1], chosen), chosen)
        self._set_reward(batch, chosen)
        if self.terminate:
            self._set_flags(batch, chosen)
        return batch

    def __repr__(self) -> str:
        strategy = self.laws[0][0] if len(self.laws) == 1 else dict(self.laws)
        return (
            f"relabel({strategy!r}, {self.p}, goal_key={join_key(self.goal_key)!r}, "
            f"achieved_key={join_key(self.achieved_key)!r}, reward_fn={self.reward_fn!r}, "
            f"threshold={self.threshold}, terminate={self.terminate}, gamma={self.gamma}, "
            f"seed={self.seed})"
        )

    def _check(self, batch: TensorDict, rows: Tensor, storage: Storage) -> bool:
        check_rows("relabel", batch)
        known = leaf_keys(batch)
        if STEPS in known:
            raise UsageError(
                "relabel and n_step do not go together: rewards of other goals would have to be "
                "added up for every step"
            )
        needed = [self.achieved_key, next_of(self.achieved_key), REWARD]
        needed += [TERMINATED, TRUNCATED] if self.terminate else []
        if self.p < 1 or self.goal_key in known:
            needed.append(self.goal_key)
        check_leaves("relabel", batch, needed)
        check_stored("relabel", batch, rows, storage, tuple(needed))
        if self.goal_key in known:
            self._check_shape(batch.get(self.goal_key), batch.get(self.achieved_key))
        return True

    def _check_shape(self, goal: Tensor, achieved: Tensor) -> None:
        if (goal.shape, goal.dtype) != (achieved.shape, achieved.dtype):
            raise UsageError(
                f"{join_key(self.goal_key)!r} is {goal.dtype} {list(goal.shape[1:])}, and "
                f"{join_key(self.achieved_key)!r} is {achieved.dtype} {list(achieved.shape[1:])}; "
                "expected the same"
            )

    def _goals(self, batch: TensorDict, draw: Draw, number: Tensor, chosen: Tensor) -> Tensor:
        """Return the goal that the law drawn for each row chooses; any where none is chosen."""
        shares = torch.tensor([share for _, share in self.laws], dtype=torch.float64)
        law = torch.searchsorted(shares.cumsum(0), number, right=True).clamp_max(len(shares) - 1)
        at, current = draw.rows, torch.zeros_like(chosen)
        for place, (name, _) in enumerate(self.laws):
            if name == "current":
                current = law == place
            else:
                at = torch.where((law == place) & chosen, LAWS[name](draw), at)
        after = next_of(self.achieved_key)
        later = self._memory.only(draw.storage, (after,)).gather(at.clone()).get(after)
        return torch.where(widen(current, later), batch.get(self.achieved_key), later)

    def _set_goals(self, batch: TensorDict, goals: Tensor, chosen: Tensor) -> None:
        own = batch.get(self.goal_key, None)
        own = batch.get(self.achieved_key) if own is None else own
        after = batch.get(next_of(self.goal_key), None)
        after = own if after is None else after
        batch.set(self.goal_key, torch.where(widen(chosen, goals), goals, own))
        batch.set(next_of(self.goal_key), torch.where(widen(chosen, goals), goals, after))

    def _set_reward(self, batch: TensorDict, chosen: Tensor) -> None:
        stored = batch.get(REWARD)
        made = rewards_of(self.reward_fn, self.threshold, *self._outcome(batch), stored)
        batch.set(REWARD, torch.where(widen(chosen, stored), made, stored.to(made.dtype)))

    def _set_flags(self, batch: TensorDict, chosen: Tensor) -> None:
        stored = batch.get(TERMINATED)
        there = reached(*self._outcome(batch), self.threshold).view(stored.shape)
        terminated = torch.where(widen(chosen, stored), there, stored)
        batch.set(TERMINATED, terminated)
        batch.set(DONE, terminated | batch.get(TRUNCATED))

    def _outcome(self, batch: TensorDict) -> tuple[Any, Any]:
        """Return what was achieved in the next state, and the goal."""
        return batch.get(next_of(self.achieved_key)), batch.get(next_of(self.goal_key))


def _seed_of(seed: int | None) -> int:
    if seed is None:
        return int(torch.randint(2**62, ()))
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}; expected an integer from 0 to 2^63 - 1")
    return seed
