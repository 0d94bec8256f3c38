"""Several numbers of a row as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

REDUCTIONS = ("sum", "mean", "max", "min", "median")


def check_reduction(name: str) -> str:
    """Return `name` if it is a reduction; raises `UsageError`."""
    if name not in REDUCTIONS:
        raise UsageError(f"reduction is {name!r}; expected one of {', '.join(REDUCTIONS)}")
    return name


def reduced(values: Tensor, reduction: str) -> Tensor:
    """Reduce all dimensions but the first.

    Args:
        values: `[B, …]`, at least one number a row.
        reduction: One of `REDUCTIONS`; the median of an even count is the lower of the two.

    Returns:
        `[B]`; of integers the mean is a float32.

    Example:
        >>> import torch
        >>> reduced(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "sum")
        tensor([3., 7.])
    """
    flat = values.flatten(1) if values.ndim > 1 else values[:, None]
    if flat.shape[1] == 1:
        return flat[:, 0]
    if reduction == "mean" and not flat.is_floating_point():
        flat = flat.float()
    result = getattr(flat, check_reduction(reduction))(dim=1)
    one: Tensor = result[0] if isinstance(result, tuple) else result
    return one
