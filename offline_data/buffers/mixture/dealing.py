"""Which member each row of a batch comes from: drawn row by row, or dealt in exact proportions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor


class PerRow:
    """Each row's member is drawn by itself: numbers in a batch vary as coin tosses do."""

    def __init__(self) -> None:
        self._weights: tuple[float, ...] = ()
        self._edges = torch.zeros(0, dtype=torch.float64)

    def deal(self, weights: Sequence[float], size: int, generator: Generator | None) -> Tensor:
        """Return the member of each row, int64 `[size]`."""
        if self._weights != weights:
            edges = torch.tensor(weights, dtype=torch.float64).cumsum(0)
            # The last edge is 1 to the bit, and numbers are below it: none is beyond the members.
            self._edges, self._weights = edges / edges[-1], tuple(weights)
        numbers = torch.rand(size, dtype=torch.float64, generator=generator)
        return torch.searchsorted(self._edges, numbers, right=True)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no memory of earlier batches."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""


class Exact:
    """Each batch has as many rows of each member as its share says, to the nearest row.

    Fractions that a batch rounds away are carried over to the next ones (largest remainder, first come first
    served), so that the sum over batches stays within a few rows of the exact proportion, for good.

    ```
    shares .5 .3 .2, batches of 4:   2.0 1.2 0.8   2.0 1.4 0.6   2.0 1.6 0.4   …
                                      2   1   1     2   1   1     2   2   0
    ```
    """

    def __init__(self) -> None:
        self._owed: list[float] = []

    def deal(self, weights: Sequence[float], size: int, generator: Generator | None) -> Tensor:
        """Return the member of each row, int64 `[size]`, in random order."""
        counts = self._counts(weights, size)
        dealt = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return dealt[torch.randperm(size, generator=generator)]

    def _counts(self, weights: Sequence[float], size: int) -> list[int]:
        total = math.fsum(weights)
        owed = self._owed or [0.0] * len(weights)
        due = [debt + size * weight / total for debt, weight in zip(owed, weights, strict=True)]
        counts = [max(0, math.floor(part)) for part in due]
        while sum(counts) != size:
            step = 1 if sum(counts) < size else -1
            some = [m for m, weight in enumerate(weights) if (weight if step > 0 else counts[m])]
            best = max(some, key=lambda m: step * (due[m] - counts[m]))
            counts[best] += step
        self._owed = [part - count for part, count in zip(due, counts, strict=True)]
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Return what is owed to each member."""
        return {"owed": list(self._owed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; raises `UsageError` where it is of another kind."""
        if "owed" not in state:
            raise UsageError("The state is of a mixture whose proportions were not exact")
        self._owed = list(state["owed"])
