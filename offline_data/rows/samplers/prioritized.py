"""Samplers of transitions and slices by priority."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.rows import fields
from offline_data.rows.samplers import sum_tree
from offline_data.rows.samplers.base import (
    Sampleable,
    Sampler,
    make_generator,
    nothing_to_draw,
)
from offline_data.rows.samplers.reduce import check_reduction, one_per_row, one_per_update
from offline_data.rows.samplers.slices import SliceSampler
from offline_data.rows.samplers.sum_tree import SumTree

WEIGHT = "priority_weight"  # key of the importance weights of a batch, as in TorchRL

_FIRST_CAPACITY = 1024  # capacity in rows before any are known

_NEVER = -1.0
_FLOATS = (torch.float32, torch.float64)
_ROUNDING = 1.001  # marks a row without a priority


class PrioritizedSampler(Sampler):
    """Draws row `i` with probability `P(i) = w_i / Σw`, where `w_i = (p_i + eps) ** alpha`.

    Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952), proportional variant;
    draws are independent. Batches have the feature `priority_weight`, `[B]` of `dtype`:
    `(w_i / min w) ** -beta`, which is the paper's `(N · P(i)) ** -beta` divided by its maximum.
    Anneal it by `sampler.beta = …`; `alpha` may also be changed.

    Rows that exist before the first batch have priority 1; rows written later get the highest
    priority so far, at least 1. `buffer.update_priority(batch["index"], …)` sets others. Weights
    are TorchRL's, except that the minimum is over the rows that can be drawn, and that rows of
    priority zero are never drawn.

    Args:
        max_capacity: Capacity in rows; uses about 18 bytes of memory per row. None: grows with the
            storage; then the attribute is the current capacity.
        alpha: Exponent of priorities, at least 0; 0: uniform.
        beta: Exponent of importance weights, at least 0; 1: full bias correction.
        eps: Added to each priority so that every row can be drawn; at least 0.
        dtype: `torch.float32` or `torch.float64`.
        reduction: `"max"`, `"min"`, `"mean"`, `"median"` or `"sum"`; combines several priorities of
            a row in one update (TorchRL uses the last one).
        max_priority_within_buffer: Whether new rows get the highest priority among current rows,
            ignoring overwritten ones; 1 if there is none.
        device: None or the CPU, the only device of priorities.
        seed, valid_only: See `RandomSampler`.

    Example:
        >>> PrioritizedSampler(1000, alpha=0.7, beta=0.5)
        PrioritizedSampler(max_capacity=1000, alpha=0.7, beta=0.5, eps=1e-08, reduction='max')
    """

    STATE: ClassVar = {
        "alpha": fields.NUMBER.at("_alpha"),
        "beta": fields.NUMBER.at("_beta"),
        "eps": fields.NUMBER.at("_eps"),
        "priorities": fields.tensor(_FLOATS, None).at(None),
        "allowed": fields.tensor(torch.bool, None).at(None),
        "weights": fields.tensor(_FLOATS, None).at(None),
        "highest": fields.or_none(fields.NUMBER).at("_highest"),
        **fields.RANDOM_STATE,
    }
    _computed: tuple[str, ...] = ("_followed",)
    _followed: Any = None  # storage state at the last update of drawable rows

    def __init__(
        self,
        max_capacity: int | None,
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
        if max_capacity is not None and max_capacity < 1:
            raise UsageError(f"max_capacity is {max_capacity}; expected at least 1")
        if dtype not in (torch.float32, torch.float64):
            raise UsageError(f"dtype is {dtype}; expected torch.float32 or torch.float64")
        self.device = torch.device("cpu" if device is None else device)
        if self.device.type != "cpu":
            raise UsageError(f"device is {device}; priorities are on the CPU", hint="leave it out")
        self._grows = max_capacity is None
        self.max_capacity = max_capacity or _FIRST_CAPACITY
        self.dtype = dtype
        self.reduction = check_reduction(reduction)
        self.seed = seed
        self.valid_only = valid_only
        self._alpha = _not_negative(alpha, "alpha")
        self._beta = _not_negative(beta, "beta")
        self._eps = _not_negative(eps, "eps")
        self._generator = make_generator(seed)
        self._within = max_priority_within_buffer
        self._allocate(self.max_capacity)
        self._highest: float | None = 1.0
        self._filled = 0  # all rows below this have a priority

    def _allocate(self, capacity: int) -> None:
        self.max_capacity = capacity
        self._limit = self._highest_allowed(self._alpha)
        self._stored = torch.from_numpy(np.full(capacity, _NEVER))
        self._drawable = torch.zeros(capacity, dtype=torch.bool)
        self._tree = SumTree(capacity)  # weights of rows that can be drawn, zero for others

    def reserve(self, count: int) -> None:
        known = self.max_capacity
        if not self._grows or count <= known:
            return
        stored, drawable, weights = self._stored, self._drawable, self._tree.weights
        self._allocate(max(count, 2 * known))  # doubling: amortized O(1) per row
        self._stored[:known], self._drawable[:known] = stored, drawable
        self._tree.set(torch.arange(known), weights.contiguous())

    @property
    def alpha(self) -> float:
        """Exponent of priorities; setting it takes time proportional to the rows."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        limit = self._highest_allowed(_not_negative(alpha, "alpha"))
        row = int(self._stored.argmax())
        if self._stored[row] > limit:
            raise UsageError(f"alpha={alpha}: the weight of row {row} would not be finite")
        self._alpha, self._limit = alpha, limit
        self._weigh(self._drawable.nonzero().reshape(-1))

    @property
    def beta(self) -> float:
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = _not_negative(beta, "beta")

    @property
    def eps(self) -> float:
        return self._eps

    @property
    def default_priority(self) -> float:
        """Priority of new rows: the highest so far; 1 if there is none."""
        if self._highest is None:
            highest = float(self._stored.max())
            self._highest = 1.0 if highest == _NEVER else highest
        return self._highest

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        self._follow(storage)
        rows, weights = self._draw(batch_size)
        return rows, {WEIGHT: weights}

    def update_priority(
        self,
        index: Tensor | int,
        priority: Tensor | float,
        *,
        storage: Any = None,  # noqa: ARG002 - TorchRL's signature
    ) -> None:
        """Set the priorities of rows; `eps` and `alpha` are applied here.

        Args:
            index: Rows: integers of any shape, on any device; or one int.
            priority: One for all; one per row; or several per row in trailing dimensions, combined
                by `reduction`.
            storage: Ignored, for compatibility with TorchRL.

        Raises:
            UsageError: Mismatched shapes; an invalid row; a priority that is negative, infinite or
                NaN. Nothing is changed then.
        """
        if not (
            _is_flat(index, torch.int64)
            and _is_flat(priority, self.dtype)
            and index.shape == priority.shape
        ):
            index = torch.as_tensor(index, device="cpu")
            if index.is_floating_point() or index.dtype is torch.bool:
                raise UsageError(f"Rows are integers; found {index.dtype}")
            values = torch.as_tensor(priority, device="cpu").detach()
            values = one_per_row(values, index.shape, self.reduction).to(self.dtype)
            index, priority = index.reshape(-1).to(torch.int64).contiguous(), values.contiguous()
        if self.reduction not in ("max", "min"):
            index, priority = one_per_update(index, priority, self.reduction)
        self._update(index, priority)

    def mark_update(self, index: Tensor | int, *, storage: Any = None) -> None:  # noqa: ARG002
        self.update_priority(index, self.default_priority)

    def extend(self, index: Tensor) -> None:
        index = index.reshape(-1).to("cpu", torch.int64).contiguous()
        self.reserve(int(index.max()) + 1 if len(index) else 0)
        if self._within and len(index) and 0 <= index.min() <= index.max() < self.max_capacity:
            self._stored[index] = _NEVER  # overwritten rows no longer count
            self._highest = None
        self._update(index, torch.full(index.shape, self.default_priority, dtype=self.dtype))

    def empty(self) -> None:
        self._tree = SumTree(self.max_capacity)
        self._stored.fill_(_NEVER)
        self._drawable.fill_(False)
        self._highest = 1.0
        self._filled, self._followed = 0, None

    def state_dict(self) -> dict[str, Any]:
        priorities, weights = (
            values.to(self.dtype, copy=True) for values in (self._stored, self._tree.weights)
        )
        allowed = self._drawable.clone()
        own = {"priorities": priorities, "weights": weights, "allowed": allowed}
        return {**super().state_dict(), **own}

    def _rules(self, state: Any, above: Any) -> Iterator[fields.Rule]:  # noqa: ARG002
        priorities, allowed = state["priorities"], state["allowed"]
        count, dtype = len(priorities), priorities.dtype
        if count != self.max_capacity and not (self._grows and count):
            raise UsageError(
                f"The state has priorities of {plural(count, 'row')}, but the sampler's "
                f"max_capacity is {self.max_capacity}"
            )
        limit = self._highest_allowed(state["alpha"]) * _ROUNDING
        fits = (priorities >= 0) & (priorities <= limit) | (priorities == _NEVER)
        yield "priorities", fits.all(), f"-1 for none, or 0 to {limit:.3g}"
        fits = allowed.shape == priorities.shape and (priorities[allowed] >= 0).all()
        yield "allowed", fits, "rows that have a priority"
        right = torch.where(allowed, priorities.add(state["eps"]).pow_(state["alpha"]), 0.0)
        fits = state["weights"].dtype is dtype and state["weights"].shape == right.shape
        atol = torch.finfo(dtype).tiny
        fits = fits and torch.isclose(state["weights"], right, _ROUNDING - 1, atol).all()
        yield "weights", fits, "(priority + eps) ** alpha"
        yield "highest", (state["highest"] or 0) <= limit, f"at most {limit:.3g}"

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self._allocate(len(state["priorities"]))
        self._stored.copy_(state["priorities"])
        self._drawable.copy_(state["allowed"])
        # Not computed from priorities: powers of the extension and of torch differ by rounding.
        self._tree.set(torch.arange(self.max_capacity), state["weights"].double())
        self._filled, self._followed = 0, None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(max_capacity={None if self._grows else self.max_capacity}, alpha={self.alpha}, "
            f"beta={self.beta}, eps={self.eps}, reduction={self.reduction!r})"
        )

    def _highest_allowed(self, alpha: float) -> float:
        """Return the priority up to which all weights and their sum are finite."""
        top = torch.finfo(self.dtype).max / 4 / self.max_capacity
        return float(top ** (1 / max(alpha, 1.0)))

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        tree = self._tree
        if not tree.total:
            raise UsageError(
                "No transition can be drawn: all priorities are zero",
                hint="eps keeps them above zero",
            )
        fractions = torch.rand(count, dtype=torch.float64, generator=self._generator)
        rows, weights = tree.draw(fractions)
        return rows, torch.pow(weights.to(self.dtype) / tree.minimum, -self._beta)

    def _update(self, rows: Tensor, priorities: Tensor) -> None:
        """Store priorities `[n]` of the dtype for rows int64 `[n]`, both on the CPU, contiguous."""
        wrong, after, before = self._store(rows, priorities)
        if wrong >= 0:
            row, priority, size = int(rows[wrong]), float(priorities[wrong]), self.max_capacity
            if not 0 <= row < size:
                raise UsageError(
                    f"Row {row} cannot have a priority: the sampler was made for {size}"
                )
            raise UsageError(
                f"Row {row} cannot have the priority {priority}: expected 0 or more, and "
                f"at most {self._limit:.3g}, where its power {self._alpha} is a number still",
                hint="the size of a TD error is one: td_error.abs()",
            )
        if self._highest is not None and after >= self._highest:
            self._highest = after
        elif self._within and self._highest is not None and before >= self._highest:
            self._highest = None

    def _store(self, rows: Tensor, priorities: Tensor) -> tuple[int, float, float]:
        """Store priorities and weights; compiled and numpy powers may differ by rounding.

        Returns the position of the first invalid row or priority (nothing is changed then) or -1,
        and the highest priority of `rows` after and before.
        """
        keep_highest, double = self.reduction != "min", self.dtype is torch.float64
        if sum_tree.compiled is not None:
            own = self._tree.packed, self._stored.data_ptr(), self._drawable.data_ptr()
            given = rows.data_ptr(), priorities.data_ptr(), rows.shape[0]
            found: tuple[int, float, float] = sum_tree.compiled.update(
                *own, self._limit, keep_highest, *given, double, self._eps, self._alpha
            )
            return found
        values = priorities.double().numpy()
        wrong = sum_tree.first_invalid(self.max_capacity, self._limit, rows.numpy(), values)
        if wrong >= 0 or not len(rows):
            return wrong, _NEVER, _NEVER
        before = float(self._stored[rows].max())
        # numpy keeps the last value of a repeated row
        order = torch.argsort(priorities, descending=not keep_highest, stable=True).numpy()
        self._stored.numpy()[rows.numpy()[order]] = values[order]
        self._weigh(rows)
        return -1, float(self._stored[rows].max()), before

    def _weigh(self, rows: Tensor) -> None:
        weights = self._stored[rows].to(self.dtype).add(self._eps).pow_(self._alpha).double()
        self._tree.set(rows, weights.mul_(self._drawable[rows]))

    def _follow(self, storage: Sampleable) -> None:
        rows = storage.rows(valid_only=self.valid_only)
        count, left_out = len(storage), rows.left_out
        known, known_left_out = self._followed or (0, left_out[:0])
        if known == count and _same(left_out, known_left_out):
            return
        self._fill(count)
        if not rows.count:
            raise nothing_to_draw(storage)
        grown = known < count and _same(left_out[left_out < known], known_left_out)
        first = known if grown else 0
        mask = torch.zeros((count if grown else self.max_capacity) - first, dtype=torch.bool)
        mask[: count - first] = True
        mask[torch.from_numpy(left_out[left_out >= first] - first)] = False
        self._allow(mask, first)
        self._followed = (count, left_out)

    def _fill(self, count: int) -> None:
        self.reserve(count)
        if count > self.max_capacity:
            raise UsageError(
                f"The storage has {plural(count, 'transition')}, but the sampler's max_capacity is "
                f"{self.max_capacity}",
                hint=f"max_capacity={count}",
            )
        if count > self._filled:
            new = self._stored[self._filled : count]
            new.masked_fill_(new == _NEVER, self.default_priority if self._filled else 1.0)
            self._filled = count

    def _allow(self, mask: Tensor, first: int = 0) -> None:
        """Set whether rows from `first` on can be drawn, bool `[n]`; all have priorities."""
        drawable = self._drawable[first : first + len(mask)]
        changed = (mask != drawable).nonzero().reshape(-1) + first
        drawable.copy_(mask)
        self._weigh(changed)


class PrioritizedSliceSampler(PrioritizedSampler, SliceSampler):
    """Draws slices that begin at row `i` with probability `w_i / Σw`; see `PrioritizedSampler`.

    The sum is over the rows at which a slice can begin: those with enough rows after them in
    their episode, and with `strict_length=False` the first row of each shorter episode. Priorities
    of other rows have no effect. Every row of a slice has the importance weight of its first row;
    weights are relative to the minimum over rows that can be drawn (in TorchRL over all rows).

    Args:
        max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer, seed: See
            `PrioritizedSampler`.
        num_slices, slice_len, valid_only, slices: See `SliceSampler`; except `over`.

    Example:
        >>> PrioritizedSliceSampler(
        ...     100, alpha=1.0, beta=0.5, slice_len=4, strict_length=False
        ... ).alpha
        1.0
    """

    _computed = (*PrioritizedSampler._computed, *SliceSampler._computed)

    def __init__(
        self,
        max_capacity: int | None,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        max_priority_within_buffer: bool = False,
        seed: int | None = None,
        valid_only: bool = False,
        **slices: Any,
    ) -> None:
        if wrong := slices.keys() & {"over", "replacement"}:
            raise UsageError(
                f"{min(wrong)} is not supported: priorities determine where slices begin"
            )
        span = slices.pop("span", 0)
        behind = span[1] if isinstance(span, list | tuple) else span  # the start has no such option
        SliceSampler.__init__(
            self, num_slices=num_slices, slice_len=slice_len, span=(0, behind), **slices
        )
        PrioritizedSampler.__init__(
            self,
            max_capacity,
            alpha,
            beta,
            eps,
            dtype,
            reduction,
            max_priority_within_buffer,
            seed=seed,
            valid_only=valid_only,
        )

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw slices with a total of `batch_size` rows; see `Sampler.sample`.

        Raises `UsageError` for other sizes, short episodes, or more rows than `max_capacity`.
        """
        count, length = self.slices_of(batch_size)
        starts_at = self.starts_in(storage, length)
        if starts_at is not self._followed:
            self._fill(len(storage))
            self._allow(torch.from_numpy(starts_at.mask(len(storage), self.max_capacity)))
            self._followed = starts_at
        starts, weights = self._draw(count)
        places = starts_at.positions(starts)
        lengths = starts_at.lengths_from(places)
        positions, leaves = self.batch_of(places, lengths, length)
        each = torch.from_numpy(lengths) if len(positions) < batch_size else length
        return starts_at.rows(positions), {**leaves, WEIGHT: weights.repeat_interleave(each)}

    def lookahead(self, storage: Sampleable, batch_size: int) -> None:
        """Return None: priorities may change before the next batch."""


def _not_negative(value: float, name: str) -> float:
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} must be greater or equal to 0, and finite; found {value}")
    return value


def _is_flat(value: Any, dtype: torch.dtype) -> TypeGuard[Tensor]:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is dtype
        and value.ndim == 1
        and value.device.type == "cpu"
        and not value.requires_grad
        and value.is_contiguous()
    )


def _same(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    return one is other or np.array_equal(one, other)
