"""`relabel`: hindsight goals in place of the original ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.episode.fields import (
    DONE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.rows.derived.base import (
    STEPS,
    CachedLeaf,
    Spans,
    check_leaves,
    check_rows,
    check_stored,
    episode_bounds,
    leaf_keys,
    one_of,
    widen,
    within,
)
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict


Distribution: TypeAlias = Literal["current", "final", "future", "geometric", "episode", "random"]
"""Name of a distribution of goals; see `relabel`."""

Rewards: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""Maps achieved values and goals, both `[B, …]`, to rewards, `[B]` or `[B, 1]`."""


def relabel(
    strategy: Distribution | Mapping[Distribution, float] = "future",
    p: float = 0.8,
    *,
    goal_key: KeyLike = ("observation", "desired_goal"),
    achieved_key: KeyLike = ("observation", "achieved_goal"),
    achieved_part: slice = slice(None),
    reward_fn: Rewards | None = None,
    threshold: float = 0.0,
    terminate: bool = False,
    gamma: float = 0.99,
    seed: int | None = None,
) -> Relabel:
    """Relabel transitions of a batch with hindsight goals and the resulting rewards.

    ```
    row                  first  …  t    t+1  …  last         of an episode
    state after it                 s_t+1        s_last+1     "achieved" is a part of the state
    ```

    A goal is the achieved value of a state drawn independently for each transition `t`:

    - `final`: the episode's last state, `s_last+1`;
    - `future`: uniform over `s_t+1`, …, `s_last+1`;
    - `geometric`: `s_t+Δ`, with `P(Δ = d) = (1 - γ) γ^(d-1)` for d = 1, 2, …, at most `s_last+1`;
    - `episode`: uniform over `s_first+1`, …, `s_last+1`;
    - `random`: the state after any transition of the storage that samplers may draw;
    - `current`: `s_t`, the state before the action.

    `final`, `future`, `episode` are those of Hindsight Experience Replay (Andrychowicz et al.,
    2017); a mixture of `current`, `geometric` and `random` matches OGBench's `GCDataset`
    (`p_curgoal`, `p_trajgoal`, `p_randomgoal`), except that it tests the state before the action
    against the goal; here, as in gymnasium's `GoalEnv`, it is the state after it.

    The goal is written at the root and under `next`; the reward, and with `terminate` the flags,
    are computed from the next state. Transitions that keep their goal also keep reward and flags,
    so with `p < 1` `reward_fn` should be that of the dataset. A transition whose next state is
    unknown keeps its goal; if the storage has no goals, it gets its own state and keeps its reward.
    A storage without rewards (OGBench) gets them; then `p` must be 1, and only that transition's
    reward is NaN.

    Goals depend only on the seed and the ordered rows of a batch: equal rows in the same order get
    equal goals in every thread and process.

    Args:
        strategy: A distribution, or several with their probabilities, which sum to 1.
        p: Probability of relabeling a transition, from 0 to 1.
        goal_key: Feature of the goal; added if batches have none (then `p` must be 1).
        achieved_key: Feature of achieved values, in the shape of a goal; `observation` if a goal is
            a whole state.
        achieved_part: Elements of its last dimension that are the achieved value: `slice(2)` of
            `observation` is the position of D4RL's ant, with the `goal_key` `("info", "goal")`.
        reward_fn: Maps next achieved values and goals, both `[B, …]`, to rewards `[B]`; a
            module-level function can be pickled. None: 0 if the goal is reached, else -1.
        threshold: Maximum Euclidean distance at which a goal counts as reached; 0: equal.
        terminate: Whether a relabeled transition is terminated if and only if its goal is reached;
            False: flags are unchanged.
        gamma: γ of `geometric`, at least 0, less than 1.
        seed: At least 0; None: drawn now from torch's global generator. It is not part of a
            buffer's state: give one to resume with the same goals.

    Raises:
        UsageError: Invalid argument; or, on the first batch, a feature that is missing, has another
            shape or was changed before, rows that are whole episodes, or an earlier `n_step`.

    Example:
        >>> relabel({"future": 0.5, "random": 0.5}, p=1, seed=0).distributions
        (('future', 0.5), ('random', 0.5))
    """
    if within(gamma, "gamma", 0, 1) == 1:
        raise UsageError(
            "gamma is 1; expected less than 1 for a geometric distribution",
            hint="use 'final' for the last step of an episode",
        )
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}; expected an integer from 0 to 2^63 - 1")
    shares = {strategy: 1.0} if isinstance(strategy, str) else dict(strategy)
    for name, share in shares.items():
        one_of(name, "strategy", get_args(Distribution))
        within(share, f"The probability of {name!r}", 0, 1)
    total = math.fsum(shares.values())
    if not math.isclose(total, 1):
        raise UsageError(f"The probabilities add up to {total:.6g}; expected 1")
    return Relabel(
        tuple((name, float(share)) for name, share in shares.items()),
        within(p, "p", 0, 1),
        as_key(goal_key),
        as_key(achieved_key),
        (achieved_part.start, achieved_part.stop, achieved_part.step),
        reward_fn,
        within(threshold, "threshold", 0, math.inf),
        terminate,
        gamma,
        seed,
    )


@dataclass(frozen=True)
class Relabel(CachedLeaf):
    """Result of `relabel`, which documents the fields."""

    distributions: tuple[tuple[str, float], ...]
    p: float
    goal_key: Key
    achieved_key: Key
    achieved_part: tuple[int | None, int | None, int | None]  # a slice cannot be hashed before 3.12
    reward_fn: Rewards | None
    threshold: float
    terminate: bool
    gamma: float
    seed: int

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        self._memory.recall(storage, "checked", lambda: self._check(batch, rows, storage))
        relabel_draw, which_draw, row_draw = random_numbers(self.seed, rows, 3)
        spans = episode_bounds(storage, rows)
        spans = spans._replace(last=spans.last - (~spans.known).long())  # the next state is known
        chosen = (relabel_draw < self.p) & (rows <= spans.last)
        shares = torch.tensor([share for _, share in self.distributions], dtype=torch.float64)
        which = torch.searchsorted(shares.cumsum(0), which_draw, right=True).clamp_max(
            len(shares) - 1
        )
        at, current = rows, torch.zeros_like(chosen)
        for place, (name, _) in enumerate(self.distributions):
            if name == "current":
                current = which == place
            else:
                drawn = self._rows(name, rows, spans, row_draw, storage)
                at = torch.where((which == place) & chosen, drawn, at)
        after = next_of(self.achieved_key)
        later = self._part(self._memory.only(storage, (after,)).gather(at.clone()).get(after))
        own_state = self._part(batch.get(self.achieved_key))
        own = batch.get(self.goal_key, own_state)
        goals = torch.where(widen(current, later), own_state, later).to(own.dtype)
        for key, leaf in (
            (self.goal_key, own),
            (next_of(self.goal_key), batch.get(next_of(self.goal_key), own)),
        ):
            batch.set(key, torch.where(widen(chosen, goals), goals, leaf))
        self._set_outcome(batch, chosen)
        return batch

    def _check(self, batch: TensorDict, rows: Tensor, storage: Storage) -> bool:
        check_rows("relabel", batch)
        known = leaf_keys(batch)
        if STEPS in known:
            raise UsageError(
                "relabel cannot be combined with n_step: rewards of relabeled goals would have to be "
                "summed over every step"
            )
        needed = [self.achieved_key, next_of(self.achieved_key)]
        needed += [REWARD] if self.p < 1 or REWARD in known else []
        needed += [TERMINATED, TRUNCATED] if self.terminate else []
        if self.p < 1 or self.goal_key in known:
            needed.append(self.goal_key)
        check_leaves("relabel", batch, needed)
        check_stored("relabel", batch, rows, storage, tuple(needed))
        if self.goal_key in known:
            goal, achieved = batch.get(self.goal_key), self._part(batch.get(self.achieved_key))
            same = goal.dtype == achieved.dtype or (
                goal.is_floating_point() and achieved.is_floating_point()
            )
            if goal.shape != achieved.shape or not same:
                raise UsageError(
                    f"{join_key(self.goal_key)!r} is {goal.dtype} {list(goal.shape[1:])}, and "
                    f"{join_key(self.achieved_key)!r} is {achieved.dtype} "
                    f"{list(achieved.shape[1:])}; expected the same",
                    hint="achieved_part=slice(2) compares the first two dimensions only",
                )
        return True

    def _part(self, achieved: Tensor) -> Tensor:
        part = slice(*self.achieved_part)
        return achieved if part == slice(None) else achieved[..., part]

    def _rows(
        self, name: str, rows: Tensor, spans: Spans, number: Tensor, storage: Storage
    ) -> Tensor:
        """Return the rows whose next states are the goals, selected by a number in [0, 1) each."""
        if name == "final":
            return spans.last
        if name == "random":
            every = storage.rows(valid_only=True)
            return every.at((number * every.count).long().clamp_max(every.count - 1))
        if name == "geometric" and self.gamma == 0:
            return rows
        if name == "geometric":  # inverts P(steps <= d) = 1 - γ^d for d = 1, 2, …
            more = (torch.log1p(-number) / math.log(self.gamma)).floor()
            # Compared before conversion to integer: with γ near 1 it may exceed the range of int64.
            return rows + torch.minimum(more, (spans.last - rows).double()).long()
        low = spans.first if name == "episode" else rows
        count = spans.last - low + 1
        return low + (number * count).long().clamp_max(count - 1)

    def _set_outcome(self, batch: TensorDict, chosen: Tensor) -> None:
        goals = batch.get(next_of(self.goal_key))
        achieved = self._part(batch.get(next_of(self.achieved_key))).to(goals.dtype)
        stored = batch.get(REWARD, None)
        if stored is None:
            stored = torch.full((len(goals), 1), math.nan, device=goals.device)
        rewards = self._rewards(achieved, goals, stored)
        batch.set(REWARD, torch.where(widen(chosen, stored), rewards, stored.to(rewards.dtype)))
        if self.terminate:
            flag = batch.get(TERMINATED)
            reached = _is_reached(achieved, goals, self.threshold).view(flag.shape)
            terminated = torch.where(widen(chosen, flag), reached, flag)
            batch.set(TERMINATED, terminated)
            batch.set(DONE, terminated | batch.get(TRUNCATED))

    def _rewards(self, achieved: Tensor, goals: Tensor, stored: Tensor) -> Tensor:
        """Return rewards in the shape of those stored, and in their dtype if it is floating-point."""
        if self.reward_fn is None:
            rewards = _is_reached(achieved, goals, self.threshold).float() - 1
        else:
            rewards = self.reward_fn(achieved, goals)
        if rewards.numel() != stored.numel():
            raise UsageError(
                f"reward_fn returned {list(rewards.shape)} for "
                f"{plural(len(stored), 'transition')}; expected "
                f"{[len(stored)]}"
            )
        exact = not stored.is_floating_point()
        dtype = torch.promote_types(stored.dtype, rewards.dtype) if exact else stored.dtype
        return rewards.reshape(stored.shape).to(dtype)


def random_numbers(seed: int, rows: Tensor, count: int) -> Tensor:
    """Return float64 `[count, B]` in [0, 1), determined by the seed and the ordered rows."""
    content = rows.contiguous().numpy()
    digest = blake2b(content.data, digest_size=8, key=seed.to_bytes(8, "little")).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.rand((count, len(rows)), generator=generator, dtype=torch.float64)


def _is_reached(achieved: Tensor, goals: Tensor, threshold: float) -> Tensor:
    achieved, goals = (values.unsqueeze(-1).flatten(1) for values in (achieved, goals))
    if threshold == 0:
        return (achieved == goals).all(1)
    distance = torch.linalg.vector_norm(achieved.double() - goals.double(), dim=1)
    near: Tensor = distance <= threshold
    return near
