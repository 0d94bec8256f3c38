"""Masks of rows in the shape of leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def widen(mask: Tensor, leaf: Tensor) -> Tensor:
    """Shape a mask `[B]` or `[B, k]` so that it goes with a leaf `[B, k, …]`, and lies beside it.

    Example:
        >>> import torch
        >>> widen(torch.tensor([True, False]), torch.zeros(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    return mask.to(leaf.device).view(*mask.shape, *(1,) * (leaf.ndim - mask.ndim))
