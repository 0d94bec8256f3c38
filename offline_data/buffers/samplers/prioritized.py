"""Transitions drawn by their priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler, drawable
from offline_data.buffers.samplers.priorities import Priorities
from offline_data.buffers.samplers.prioritized_arguments import (
    check_prioritized,
    not_negative,
    plain,
)
from offline_data.buffers.samplers.reductions import one_per_row, one_per_update
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


WEIGHT = "priority_weight"
"""Key of the importance weights of a batch, as in TorchRL."""


class PrioritizedSampler(Sampler):
    r"""Draws row `i` with probability `P(i) = w_i / Σw`, where `w_i = (p_i + eps) ** alpha`.

    Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952), proportional variant.
    Every draw is on its own. Batches have the leaf `priority_weight`, of the sampler's dtype,
    `[B]`: `(w_i / min w) ** -beta`, which is the paper's `(N · P(i)) ** -beta` divided by the
    greatest there can be. It uses `beta` as it is at the draw: anneal it by `sampler.beta = …`.

    Rows that were there before the first batch have priority 1; rows that are written later get
    the highest that any row ever had, 1 at least. `update_priority` (of the buffer, with
    `batch["index"]`) sets others.

    Weights and importance weights are TorchRL's, numbers of `dtype`. Unlike there, sums are
    float64, so that no row of priority zero is drawn; a set that was there before the sampler can
    be sampled at once; where an update has a row twice `reduction` decides (there the last one
    counts); `alpha` may be changed at any time, also from 0; priorities that are no numbers are
    refused; and the minimum is over the rows that can be drawn.

    Args:
        max_capacity: Rows that the storage may have; memory is about 18 bytes for each.
        alpha: How much priorities count, not negative; 0: not at all.
        beta: How much of the bias importance weights take back, not negative; 1: all of it.
        eps: Added to each priority, so that none is never drawn; not negative.
        dtype: `torch.float32` or `torch.float64`.
        reduction: `"max"`, `"min"`, `"mean"`, `"median"` or `"sum"`: which priority a row gets
            that an update has several for.
        max_priority_within_buffer: Whether the default is the highest priority that some row
            has now, not one that was overwritten since; 1 where there is none.
        device: None or the CPU, where priorities are.
        seed: Seed of a generator of its own; None: torch's global one (`torch.manual_seed`).
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated.

    Raises:
        UsageError: Invalid argument.

    Example:
        >>> PrioritizedSampler(1000, alpha=0.7, beta=0.5)
        PrioritizedSampler(max_capacity=1000, alpha=0.7, beta=0.5, eps=1e-08, reduction='max')
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: torch.device | str | None = None,
        *,
        seed: int | None = None,
        valid_only: bool = True,
    ) -> None:
        check_prioritized(max_capacity, eps, dtype, reduction, device)
        self.max_capacity = max_capacity
        self.dtype = dtype
        self.reduction = reduction
        self.seed = seed
        self.valid_only = valid_only
        self._beta = not_negative(beta, "beta")
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._priorities = Priorities(
            max_capacity,
            alpha=not_negative(alpha, "alpha"),
            eps=eps,
            dtype=dtype,
            keep="min" if reduction == "min" else "max",
            within=max_priority_within_buffer,
        )
        self._filled = 0  # rows that all have a priority
        self._followed: tuple[int, NDArray[np.int64]] | None = None

    @property
    def alpha(self) -> float:
        """How much priorities count; setting it takes time in proportion to the rows."""
        return self._priorities.alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        self._priorities.alpha = not_negative(alpha, "alpha")

    @property
    def beta(self) -> float:
        """How much of the bias importance weights take back."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = not_negative(beta, "beta")

    @property
    def eps(self) -> float:
        """Added to each priority."""
        return self._priorities.eps

    @property
    def default_priority(self) -> float:
        """Priority of new rows."""
        return self._priorities.default

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw `batch_size` rows and their importance weights; see `Sampler.sample`.

        Raises:
            UsageError: A storage of more rows than `max_capacity`; none that can be drawn.
        """
        self._follow(storage)
        rows, weights = self._draw(batch_size)
        return rows, {WEIGHT: weights}

    def update_priority(self, rows: Tensor | int, priority: Tensor | float) -> None:
        """Set the priorities of rows, as they are: `eps` and `alpha` are applied here.

        Args:
            rows: Integers of any shape, on any device; one number.
            priority: A number for all; or as many as there are rows, or several for each, in
                dimensions after those of `rows`, of which `reduction` makes one.

        Raises:
            UsageError: Shapes that do not fit; a row that is not there; a priority that is
                negative, infinite or no number. Nothing has changed then.
        """
        if not (plain(rows, torch.int64) and plain(priority, self.dtype, len(rows))):
            rows, priority = self._madeplain(rows, priority)
        if self.reduction not in ("max", "min"):
            rows, priority = one_per_update(rows, priority, self.reduction)
        self._priorities.update(rows, priority)

    def extend(self, rows: Tensor) -> None:
        """Give the default priority to rows that were written; see `Sampler.extend`."""
        self._priorities.renew(rows.reshape(-1).to("cpu", torch.int64).contiguous())

    def empty(self) -> None:
        """Forget all priorities; see `Sampler.empty`."""
        self._priorities.forget()
        self._filled, self._followed = 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return priorities, exponents and the state of its own generator, if it has one."""
        own = {} if self._generator is None else {"generator": self._generator.get_state()}
        return {"beta": self._beta, **self._priorities.state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; raises `UsageError` where it does not fit."""
        self._priorities.load_state_dict(state)
        self._beta = state["beta"]
        self._filled, self._followed = 0, None
        if self._generator is not None and "generator" in state:
            self._generator.set_state(state["generator"])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(max_capacity={self.max_capacity}, alpha={self.alpha}, "
            f"beta={self.beta}, eps={self.eps}, reduction={self.reduction!r})"
        )

    def _madeplain(self, rows: Any, priority: Any) -> tuple[Tensor, Tensor]:
        """Return rows, int64 `[n]`, and priorities `[n]`, both on the CPU and contiguous."""
        rows = torch.as_tensor(rows, device="cpu")
        if rows.is_floating_point() or rows.dtype is torch.bool:
            raise UsageError(f"Rows are integers; found {rows.dtype}")
        priority = torch.as_tensor(priority, device="cpu").detach()
        values = one_per_row(priority, rows.shape, self.reduction).to(self.dtype)
        return rows.reshape(-1).to(torch.int64).contiguous(), values.contiguous()

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw rows `[count]`, and their importance weights."""
        tree = self._priorities.tree
        if not tree.total:
            raise UsageError(
                "No transition can be drawn: all priorities are zero",
                hint="eps keeps them above zero",
            )
        fractions = torch.rand(count, dtype=torch.float64, generator=self._generator)
        rows, weights = tree.draw(fractions)
        return rows, torch.pow(weights.to(self.dtype) / tree.minimum, -self._beta)

    def _follow(self, storage: Sampleable) -> None:
        """Bring what may be drawn in line with the storage."""
        count, left_out = len(storage), storage.rows(valid_only=self.valid_only).left_out
        known, known_left_out = self._followed or (0, left_out[:0])
        if known == count and _same(left_out, known_left_out):
            return
        self._fill(count)
        drawable(storage, valid_only=self.valid_only)
        grown = known < count and _same(left_out[left_out < known], known_left_out)
        first = known if grown else 0
        mask = torch.zeros((count if grown else self.max_capacity) - first, dtype=torch.bool)
        mask[: count - first] = True
        mask[torch.from_numpy(left_out[left_out >= first] - first)] = False
        self._priorities.allow(mask, first)
        self._followed = (count, left_out)

    def _fill(self, count: int) -> None:
        """Give rows that are there, and never got a priority, one."""
        if count > self.max_capacity:
            raise UsageError(
                f"The storage has {count} transitions, and the sampler was made for "
                f"{self.max_capacity}",
                hint=f"max_capacity={count}",
            )
        if count > self._filled:
            priority = self.default_priority if self._filled else 1.0
            self._priorities.fill(self._filled, count, priority)
            self._filled = count


def _same(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    return one is other or np.array_equal(one, other)
