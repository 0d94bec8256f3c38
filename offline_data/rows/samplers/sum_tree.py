"""A sum tree: weighted sampling of rows, with the sum and minimum of all weights.

```
level 2    [                 sum                ]          one node
level 1    [  sum  |  sum  | … 8 of them        ]
level 0    [  8 w. |  8 w. | …                  ]          leaves: one weight per row
```

A node is the sum of its 8 children, in float64, recomputed in a fixed order whenever one of them
changes, so that no error accumulates. A second tree has the minimum of the non-zero weights.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_data.base.pickles import pickled_by_name
from offline_data.rows.gather.native import extension

_WIDTH, _SHIFT, _MAX_LEVELS = 8, 3, 16

compiled = extension("offline_data.rows.samplers._sum_tree")
"""The extension module, or None: numpy is then used, with bitwise equal results."""


@pickled_by_name
class SumTree:
    """Weights of `capacity` rows, initially zero; `packed` is the `Tree` of `_sum_tree.c`.

    Example:
        >>> tree = SumTree(100)
        >>> tree.set(torch.tensor([3, 70]), torch.tensor([1.0, 3.0], dtype=torch.float64))
        -1
        >>> tree.total, tree.minimum
        (4.0, 1.0)
        >>> tree.draw(torch.tensor([0.0, 0.2, 0.25, 0.9], dtype=torch.float64))[0].tolist()
        [3, 3, 70, 70]
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        sizes = [_whole_nodes(capacity)]
        while sizes[-1] > _WIDTH:
            sizes.append(_whole_nodes(sizes[-1] // _WIDTH))
        sizes.append(1)
        self._first = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._sums = np.zeros(self._first[-1])
        self._minima = np.full(self._first[-1] - sizes[0], np.inf)
        self.packed = self._pack()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "packed": None}  # contains addresses

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.packed = self._pack()

    @property
    def weights(self) -> Tensor:
        """All weights, float64 `[capacity]`, a view."""
        return torch.from_numpy(self._sums[: self.capacity])

    @property
    def total(self) -> float:
        return float(self._sums[-1])

    @property
    def minimum(self) -> float:
        """The minimum of the non-zero weights; infinite if all are zero."""
        return float(self._minima[-1])

    def set(self, rows: Tensor, weights: Tensor) -> int:
        """Set the weights of rows: int64 and float64 `[n]` on the CPU, contiguous.

        For repeated rows, the last weight counts. Returns the position in `[0, n)` of the first row
        out of range or weight that is negative or not finite (nothing is changed then), or -1.
        """
        if compiled is not None:
            args = rows.data_ptr(), weights.data_ptr(), rows.shape[0]
            return int(compiled.set(self.packed, *args))
        leaves, values = rows.numpy(), weights.numpy()
        wrong = first_invalid(self.capacity, sys.float_info.max, leaves, values)
        if wrong >= 0:
            return wrong
        self._sums[leaves] = values
        for level in range(1, len(self._first) - 1):
            self._renew(level, leaves)
        return -1

    def draw(self, fractions: Tensor) -> tuple[Tensor, Tensor]:
        """Draw rows with probability weight / total; never one of weight zero.

        `fractions` are uniform, float64 `[n]` in `[0, 1)`; some weight must be non-zero. Returns
        rows, int64 `[n]`, and their weights, float64 `[n]`.
        """
        if compiled is not None:
            count = fractions.shape[0]
            rows, weights = torch.empty(count, dtype=torch.int64), torch.empty_like(fractions)
            compiled.draw(
                self.packed, fractions.data_ptr(), count, rows.data_ptr(), weights.data_ptr()
            )
            return rows, weights
        # From the top down; `mass` is the remaining part of each draw's share of the sum.
        at, draws = np.zeros(len(fractions), np.int64), np.arange(len(fractions))
        mass = fractions.numpy() * self.total
        for level in range(len(self._first) - 2, 0, -1):
            below = self._sums[self._first[level - 1] : self._first[level]].reshape(-1, _WIDTH)[at]
            upto = np.cumsum(below, axis=1)
            chosen = (upto <= mass[:, None]).sum(1)
            beyond = chosen == _WIDTH  # due to rounding: use the last with a weight
            if beyond.any():
                chosen[beyond] = _WIDTH - 1 - (below[beyond, ::-1] > 0).argmax(1)
            mass = mass - np.where(chosen > 0, upto[draws, chosen - 1], 0.0)
            at = at * _WIDTH + chosen
        return torch.from_numpy(at), torch.from_numpy(self._sums[at])

    def _renew(self, level: int, rows: NDArray[np.int64]) -> None:
        """Recompute a level from the one below it, where leaves `rows` have changed."""
        below, start = self._first[level - 1], self._first[level]
        nodes, count = rows >> (_SHIFT * level), (start - below) // _WIDTH
        if count <= len(rows):
            nodes = np.arange(count)
        sums = self._sums[below:start].reshape(-1, _WIDTH)[nodes]
        lane = sums[:, :4] + sums[:, 4:]  # the summation order of the SIMD code
        self._sums[start + nodes] = (lane[:, 0] + lane[:, 1]) + (lane[:, 2] + lane[:, 3])
        if level == 1:
            least = np.where(sums > 0, sums, np.inf)
        else:
            low, high = below - self._first[1], start - self._first[1]
            least = self._minima[low:high].reshape(-1, _WIDTH)[nodes]
        self._minima[start - self._first[1] + nodes] = least.min(1)

    def _pack(self) -> bytes:
        first = [*self._first, *[0] * (_MAX_LEVELS + 1 - len(self._first))]
        addresses = self._sums.ctypes.data, self._minima.ctypes.data
        return struct.pack(
            f"={5 + _MAX_LEVELS}q", *addresses, self.capacity, len(self._first) - 1, *first
        )


def first_invalid(
    capacity: int, limit: float, rows: NDArray[np.int64], values: NDArray[np.float64]
) -> int:
    """Return the position of the first row or value out of range, or -1."""
    fine = (rows >= 0) & (rows < capacity) & (values >= 0) & (values <= limit)
    return -1 if fine.all() else int(fine.argmin())


def _whole_nodes(count: int) -> int:
    return -(-count // _WIDTH) * _WIDTH
