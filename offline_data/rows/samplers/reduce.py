"""Reductions of several values per row to one."""

from __future__ import annotations

import torch
from torch import Tensor

from offline_data.base.errors import UsageError

REDUCTIONS = ("sum", "mean", "max", "min", "median")


def check_reduction(name: str) -> str:
    """Return `name`; raises `UsageError` if it is not a reduction."""
    if name not in REDUCTIONS:
        raise UsageError(f"reduction is {name!r}; expected one of {', '.join(REDUCTIONS)}")
    return name


def reduce_values(values: Tensor, reduction: str) -> Tensor:
    """Reduce `[B, …]` to `[B]`; the mean of integers is float32, a median the lower middle value."""
    flat = values.flatten(1) if values.ndim > 1 else values[:, None]
    if flat.shape[1] == 1:
        return flat[:, 0]
    if reduction == "mean" and not flat.is_floating_point():
        flat = flat.float()
    result = getattr(flat, check_reduction(reduction))(dim=1)
    one: Tensor = result[0] if isinstance(result, tuple) else result
    return one


def one_per_row(priority: Tensor, shape: torch.Size, reduction: str) -> Tensor:
    """Return one priority per row of the given shape, flattened.

    `priority` is one for all, of this shape, or has trailing dimensions, which are reduced.
    """
    count = shape.numel()
    if priority.numel() == count:
        return priority.reshape(-1)
    if priority.numel() == 1:
        return priority.reshape(1).expand(count)
    if priority.shape[: len(shape)] != shape or not priority.numel():
        raise UsageError(
            f"Priorities of shape {list(priority.shape)} do not match rows of shape {list(shape)}",
            hint="give one number, or one per row",
        )
    return reduce_values(priority.reshape(count, -1), reduction)


def one_per_trajectory(priority: Tensor, mask: Tensor, reduction: str) -> Tensor:
    """Reduce the priorities `[B, T, …]` of the steps of trajectories to one per trajectory, `[B]`.

    `mask`, bool `[B, T]`, is False for padding and True at least once per trajectory.
    """
    count = len(priority)
    values = priority.detach().reshape(*mask.shape, -1).double()
    known = mask.to(values.device)[..., None].expand_as(values).reshape(count, -1)
    values = values.reshape(count, -1)
    if reduction == "median":
        return values.masked_fill(~known, float("nan")).nanmedian(1).values
    if reduction in ("max", "min"):
        nothing = float("-inf" if reduction == "max" else "inf")
        return reduce_values(values.masked_fill(~known, nothing), reduction)
    sums = values.masked_fill(~known, 0.0).sum(1)
    return sums / known.sum(1) if reduction == "mean" else sums


def one_per_update(rows: Tensor, priority: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Reduce the priorities of repeated rows, both `[n]`, to one per row.

    The reduction is `"sum"`, `"mean"`, or `"median"`, the lower middle value.
    """
    once, which, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    if reduction != "median":
        sums = torch.zeros(len(once), dtype=torch.float64).index_add_(0, which, priority.double())
        return once, (sums / counts if reduction == "mean" else sums).to(priority.dtype)
    ascending = torch.argsort(priority, stable=True)
    by_row = ascending[torch.argsort(which[ascending], stable=True)]
    middle = counts.cumsum(0) - counts + (counts - 1) // 2
    return once, priority[by_row[middle]]
