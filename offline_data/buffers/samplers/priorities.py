"""The priority of every row, and its weight in a draw: `(priority + eps) ** alpha`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.samplers import sum_tree
from offline_data.buffers.samplers.sum_tree import SumTree
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_NEVER = -1.0
"""Stands for the priority of a row that never got one."""


class Priorities:
    """Priorities of up to `capacity` rows, of which those that are allowed may be drawn.

    Args:
        capacity: Rows, at least one.
        alpha: Exponent, not negative.
        eps: Added to each priority, not negative.
        dtype: float32 or float64: what priorities and weights are rounded to, as TorchRL's are.
        keep: Which priority counts where a row comes again in an update, `"max"` or `"min"`.
        within: Whether the default is the highest priority that some row has now, or that any
            ever had.

    Attributes:
        eps: As given.
        tree: Weights of the rows that are allowed; zero for others.
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float,
        eps: float,
        dtype: torch.dtype,
        keep: str,
        within: bool,
    ) -> None:
        self.tree = SumTree(capacity)
        self._alpha = alpha
        self.eps = eps
        self._dtype = dtype
        self._keep = keep
        self._within = within
        self._values = torch.from_numpy(np.full(capacity, _NEVER))
        self._allowed = torch.zeros(capacity, dtype=torch.bool)
        self._limit = self._greatest(alpha)
        self._highest: float | None = 1.0

    @property
    def default(self) -> float:
        """Priority of new rows: the highest one; 1 if there is none."""
        if self._highest is None:
            top = float(self._values.max())
            self._highest = 1.0 if top == _NEVER else top
        return self._highest

    @property
    def alpha(self) -> float:
        """Exponent."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        limit = self._greatest(alpha)
        row = int(self._values.argmax())
        if self._values[row] > limit:
            raise UsageError(f"alpha={alpha}: the weight of row {row} would not be finite")
        self._alpha, self._limit = alpha, limit
        self._weigh(self._allowed.nonzero().reshape(-1))

    def update(self, rows: Tensor, priorities: Tensor) -> None:
        """Take in new priorities.

        Args:
            rows: int64 `[n]` on the CPU, contiguous.
            priorities: `[n]` likewise, of the dtype, finite and not negative.

        Raises:
            UsageError: A row that is not there, a priority that cannot be; nothing has changed.
        """
        store = self._store_compiled if sum_tree.compiled is not None else self._store
        wrong, after, before = store(rows, priorities)
        if wrong >= 0:
            raise self._refused(int(rows[wrong]), float(priorities[wrong]))
        if self._highest is not None and after >= self._highest:
            self._highest = after
        elif self._within and self._highest is not None and before >= self._highest:
            self._highest = None

    def renew(self, rows: Tensor) -> None:
        """Give the default to rows that were written anew, int64 `[n]`."""
        if (
            self._within
            and len(rows)
            and 0 <= int(rows.min()) <= int(rows.max()) < len(self._values)
        ):
            self._values[rows] = _NEVER  # what was overwritten is no longer the highest
            self._highest = None
        self.update(rows, torch.full(rows.shape, self.default, dtype=self._dtype))

    def fill(self, first: int, stop: int, priority: float) -> None:
        """Give a priority to those of rows `[first, stop)` that never got one."""
        values = self._values[first:stop]
        values.masked_fill_(values == _NEVER, priority)

    def allow(self, mask: Tensor, first: int = 0) -> None:
        """Say which rows, of those that have priorities, may be drawn.

        Args:
            mask: bool `[n]`, for the rows from `first` on; nothing changes for others.
            first: First of them.
        """
        here = self._allowed[first : first + len(mask)]
        changed = (mask != here).nonzero().reshape(-1) + first
        here.copy_(mask)
        self._weigh(changed)

    def forget(self) -> None:
        """Begin again: no row has a priority, none may be drawn, and the default is 1."""
        self.tree = SumTree(len(self._values))
        self._values.fill_(_NEVER)
        self._allowed.fill_(False)
        self._highest = 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as tensors of their own."""
        return {
            "alpha": self._alpha,
            "eps": self.eps,
            "priorities": self._values.to(self._dtype, copy=True),
            "weights": self.tree.weights.to(self._dtype, copy=True),
            "allowed": self._allowed.clone(),
            "highest": self._highest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; raises `UsageError` where it does not fit."""
        if state["priorities"].shape != self._values.shape:
            raise UsageError(
                f"The state has priorities of {len(state['priorities'])} rows, and the sampler "
                f"was made for {len(self._values)}"
            )
        self._alpha, self.eps = state["alpha"], state["eps"]
        self._limit = self._greatest(self._alpha)
        self._values.copy_(state["priorities"])
        self._allowed.copy_(state["allowed"])
        self._highest = state["highest"]
        self.tree.set(torch.arange(len(self._values)), state["weights"].double())

    def _store(self, rows: Tensor, values: Tensor) -> tuple[int, float, float]:
        """Store values as priorities, and their weights.

        Returns:
            The number of the first one that cannot be (then nothing has changed), or -1; the
            greatest priority of `rows` now, and before.
        """
        given = values.double().numpy()
        wrong = sum_tree.unsound(len(self._values), self._limit, rows.numpy(), given)
        if wrong >= 0 or not len(rows):
            return wrong, _NEVER, _NEVER
        before = float(self._values[rows].max())
        ascending = torch.argsort(values, descending=self._keep == "min", stable=True).numpy()
        stored = self._values.numpy()  # numpy stores the last one where a row comes again
        stored[rows.numpy()[ascending]] = given[ascending]
        self._weigh(rows)
        return -1, float(self._values[rows].max()), before

    def _store_compiled(self, rows: Tensor, values: Tensor) -> tuple[int, float, float]:
        """Do what `_store` does, in one call; powers may differ by a rounding."""
        found: tuple[int, float, float] = sum_tree.compiled.update(
            self.tree.packed,
            self._values.data_ptr(),
            self._allowed.data_ptr(),
            self._limit,
            self._keep == "max",
            rows.data_ptr(),
            values.data_ptr(),
            rows.shape[0],
            self._dtype is torch.float64,
            self.eps,
            self._alpha,
        )
        return found

    def _weigh(self, rows: Tensor) -> None:
        """Bring the tree in line with the priorities of `rows`, int64 `[n]`."""
        weights = self._weights_of(self._values[rows].to(self._dtype)).double()
        self.tree.set(rows, weights.mul_(self._allowed[rows]))

    def _weights_of(self, values: Tensor) -> Tensor:
        return values.add(self.eps).pow_(self._alpha)

    def _greatest(self, alpha: float) -> float:
        """Return a priority up to which weights, and the sum of all of them, are finite."""
        top = torch.finfo(self._dtype).max / 4 / len(self._values)
        return float(top ** (1 / max(alpha, 1.0)))

    def _refused(self, row: int, priority: float) -> UsageError:
        if not 0 <= row < len(self._values):
            return UsageError(
                f"Row {row} cannot have a priority: the sampler was made for {len(self._values)}"
            )
        return UsageError(
            f"Row {row} cannot have the priority {priority}: expected 0 or more, and "
            f"at most {self._limit:.3g}, where its power {self._alpha} is a number still",
            hint="the size of a TD error is one: td_error.abs()",
        )
