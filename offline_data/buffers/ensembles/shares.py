"""How often each member is drawn: given shares, or what its sampler could draw now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.samplers.base import Sampleable

Shares: TypeAlias = "Tensor | Sequence[float] | Literal['sampleable'] | None"
"""Types of `p`; see `SamplerEnsemble`."""


def normalised(p: Any, count: int) -> Tensor | Literal["sampleable"] | None:
    """Return shares that sum to 1, float `[count]`; None and `"sampleable"` as they are.

    Raises:
        UsageError: Another word, another number of shares, or shares that cannot be.

    Example:
        >>> normalised([1, 3], 2)
        tensor([0.2500, 0.7500])
    """
    if p is None:
        return None
    if isinstance(p, str):
        if p == "sampleable":
            return "sampleable"
        raise UsageError(f"p is {p!r}; the only accepted text is 'sampleable'")
    shares = torch.as_tensor(p).detach().cpu()
    shares = shares if shares.is_floating_point() else shares.to(torch.get_default_dtype())
    if shares.shape != (count,):
        raise UsageError(
            f"p has the shape {list(shares.shape)}, and there are {count} members",
            hint="give one share for each member",
        )
    total = shares.sum()
    if not (bool((shares >= 0).all()) and bool(total > 0) and bool(total.isfinite())):
        raise UsageError(f"p is {shares.tolist()}; expected shares from 0 on, not all of them 0")
    return shares / total


def sampleable(samplers: Sequence[Sampler], storages: Sequence[Sampleable], size: int) -> Tensor:
    """Return how much each member would draw from, float64 `[members]`; 0: it cannot draw now.

    Args:
        samplers: The members' samplers.
        storages: Their storages.
        size: Rows of a sub-batch.

    Raises:
        UsageError: No member can draw.
    """
    counts = [
        sampler.sampleable(storage, size)
        for sampler, storage in zip(samplers, storages, strict=True)
    ]
    if not any(counts):
        raise UsageError(f"No member of the ensemble can draw a sub-batch of {size} rows now")
    return torch.tensor(counts, dtype=torch.float64)
