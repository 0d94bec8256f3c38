"""Mean and spread of leaves, number by number, over the rows of a storage."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from offline_data.buffers.storage import Storage

CHUNK_ITEMS = 1 << 20
"""Numbers of all leaves that are looked at together."""


class Scale:
    """Mean and standard deviation of one leaf; equal where they are.

    Attributes:
        mean: float64, in the shape of a row of the leaf or one that broadcasts to it.
        std: The same.
    """

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean = torch.as_tensor(mean, dtype=torch.float64, device="cpu").detach().clone()
        self.std = torch.as_tensor(std, dtype=torch.float64, device="cpu").detach().clone()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scale):
            return NotImplemented
        return self.mean.equal(other.mean) and self.std.equal(other.std)

    def __hash__(self) -> int:
        return hash((tuple(self.mean.flatten().tolist()), tuple(self.std.flatten().tolist())))

    def __repr__(self) -> str:
        return f"({self.mean.tolist()}, {self.std.tolist()})"


class _Moments:
    """Count, mean and sum of squared distances from it of each number of a leaf, finite ones."""

    def __init__(self) -> None:
        self.count: Tensor | float = 0.0
        self.mean: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, values: Tensor) -> None:
        """Take in rows `[n, *shape]` (Chan, Golub and LeVeque, 1979)."""
        finite = values.isfinite()
        count = finite.sum(0).double()
        values = torch.where(finite, values, 0).double()
        mean = values.sum(0) / count.clamp_min(1)
        distance = torch.where(finite, values - mean, 0)
        total = self.count + count
        share = count / total.clamp_min(1)
        delta = mean - self.mean
        self.squares += distance.square().sum(0) + delta.square() * self.count * share
        self.mean += delta * share
        self.count = total

    def scale(self, key: Key) -> Scale:
        """Return mean and standard deviation (of the population, as `numpy.std`)."""
        count = torch.as_tensor(self.count)
        if not bool((count > 0).all()):
            raise UsageError(
                f"{join_key(key)!r} has no finite value to take a mean of",
                hint="normalize(…, statistics={key: (mean, std)}) takes one from elsewhere",
            )
        return Scale(self.mean, (self.squares / count).sqrt())


def scales_of(storage: Storage, keys: Sequence[Key]) -> Mapping[Key, Scale]:
    """Compute mean and standard deviation of leaves in one pass over all rows, in bounded memory.

    Root leaves count each transition once. Values that are not finite are left out, number by
    number.

    Raises:
        UsageError: A leaf is not there, or has no finite value.
    """
    stored, moments = storage.only(keys), {key: _Moments() for key in keys}
    row = stored.gather(torch.arange(min(1, len(storage))))
    width = sum(prod(row.get(key).shape[1:]) for key in keys)
    step = max(1, CHUNK_ITEMS // max(1, width))
    for begin in range(0, len(storage), step):
        rows = stored.gather(torch.arange(begin, min(begin + step, len(storage))))
        for key in keys:
            moments[key].add(rows.get(key).cpu())
    return {key: moments[key].scale(key) for key in keys}
