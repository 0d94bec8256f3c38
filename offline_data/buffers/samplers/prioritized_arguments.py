"""Arguments of prioritized samplers, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.reduce import check_reduction
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from typing import TypeGuard

    from torch import Tensor


def plain(value: Any, dtype: torch.dtype, size: int | None = None) -> TypeGuard[Tensor]:
    """Return True if a value is what `Priorities` takes: most are, and looking is quick."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is dtype
        and value.ndim == 1
        and (size is None or value.shape[0] == size)
        and value.device.type == "cpu"
        and not value.requires_grad
        and value.is_contiguous()
    )


def check_prioritized(
    capacity: int,
    eps: float,
    dtype: torch.dtype,
    reduction: str,
    device: torch.device | str | None,
) -> None:
    """Raise `UsageError` for what a `PrioritizedSampler` cannot be made with."""
    if capacity < 1:
        raise UsageError(f"max_capacity is {capacity}; expected at least 1")
    not_negative(eps, "eps")
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(f"dtype is {dtype}; expected torch.float32 or torch.float64")
    check_reduction(reduction)
    if device is not None and torch.device(device).type != "cpu":
        raise UsageError(f"device is {device}; priorities are on the CPU", hint="leave it out")


def not_negative(value: float, name: str) -> float:
    """Return `value` if it is a finite number and not negative; raises `UsageError`."""
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} is {value}; expected a finite number, 0 or more")
    return value
