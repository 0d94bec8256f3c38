"""Whether goals are reached, and the rewards that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Rewards: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""From what was achieved and the goal, both `[B, …]`, to rewards, `[B]` or `[B, 1]`."""


def reached(achieved: Tensor, goals: Tensor, threshold: float) -> Tensor:
    """Tell of each row whether its goal is at most `threshold` away, bool `[B]`.

    Example:
        >>> reached(torch.tensor([[0.0, 3.0], [1.0, 0.0]]), torch.zeros(2, 2), 1.0)
        tensor([False,  True])
    """
    achieved, goals = (values.unsqueeze(-1).flatten(1) for values in (achieved, goals))
    if threshold == 0:
        return (achieved == goals).all(1)
    distance = torch.linalg.vector_norm(achieved.double() - goals.double(), dim=1)
    near: Tensor = distance <= threshold
    return near


def rewards_of(
    reward_fn: Rewards | None, threshold: float, achieved: Tensor, goals: Tensor, stored: Tensor
) -> Tensor:
    """Compute rewards in the shape of those stored, and in their dtype where that is floating.

    Raises:
        UsageError: `reward_fn` does not give one for each row.
    """
    if reward_fn is None:
        made = reached(achieved, goals, threshold).float() - 1
    else:
        made = reward_fn(achieved, goals)
    if made.numel() != stored.numel():
        raise UsageError(
            f"reward_fn gave {list(made.shape)} for {len(stored)} transitions; expected "
            f"{[len(stored)]}"
        )
    exact = not stored.is_floating_point()
    dtype = torch.promote_types(stored.dtype, made.dtype) if exact else stored.dtype
    return made.reshape(stored.shape).to(dtype)
