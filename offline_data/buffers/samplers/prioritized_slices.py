"""Pieces of episodes whose first rows are drawn by their priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.samplers.prioritized import WEIGHT, PrioritizedSampler
from offline_data.buffers.samplers.slice_arguments import slices_of
from offline_data.buffers.samplers.slices import SliceSampler
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.samplers.base import Sampleable
    from offline_data.buffers.samplers.windows import Windows


class PrioritizedSliceSampler(PrioritizedSampler):
    """Draws slices that begin at row `i` with probability `w_i / Σw`; see `PrioritizedSampler`.

    The sum is over the rows at which a slice can begin: those with enough rows after them in
    their episode, and with `strict_length=False` the first row of each episode that is shorter.
    The priorities of other rows are kept and change no draw, so let a row's priority speak for
    what follows it. Every row of a slice has the importance weight of the slice's first row.

    As in TorchRL, but that weights are relative to the least weight of a row that can be drawn
    (there of any row), that finding these rows takes time when episodes are added and not for
    each batch, and what `PrioritizedSampler` and `SliceSampler` say.

    Args:
        max_capacity: Rows that the storage may have.
        alpha: How much priorities count, not negative.
        beta: How much of the bias importance weights take back, not negative.
        eps: Added to each priority.
        dtype: `torch.float32` or `torch.float64`.
        reduction: Which priority a row gets that an update has several for.
        num_slices: Slices of a batch; its size must be a multiple.
        slice_len: Rows of a slice; exclusive with `num_slices`, and the same must hold.
        max_priority_within_buffer: See `PrioritizedSampler`.
        seed: Seed of a generator of its own; None: torch's global one.
        valid_only: See `SliceSampler`.
        slices: Other options of `SliceSampler`, but `over`.

    Raises:
        UsageError: Invalid argument, or one without a counterpart here.

    Example:
        >>> PrioritizedSliceSampler(
        ...     100, alpha=1.0, beta=0.5, slice_len=4, strict_length=False
        ... ).alpha
        1.0
    """

    keeps_together = True

    def __init__(
        self,
        max_capacity: int,
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
        if "over" in slices:
            raise UsageError("Priorities decide where slices begin: leave over out")
        super().__init__(
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
        self.num_slices = num_slices
        self.slice_len = slice_len
        self._slices = SliceSampler(
            num_slices=num_slices, slice_len=slice_len, valid_only=valid_only, **slices
        )
        self._begins: Windows | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what the storage tells again."""
        return {**vars(self), "_begins": None}

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw slices of together `batch_size` rows; see `Sampler.sample`.

        Raises:
            UsageError: A batch size that does not fit; no episode that is long enough; a storage
                of more rows than `max_capacity`.
        """
        count, length = slices_of(batch_size, self.num_slices, self.slice_len)
        where = self._slices.windows_in(storage, length)
        if where is not self._begins:
            self._fill(len(storage))
            self._priorities.allow(torch.from_numpy(where.mask(self.max_capacity)))
            self._begins = where
        starts, weights = self._draw(count)
        lengths = where.lengths_from(starts.numpy())
        rows, leaves = self._slices.batch_of(starts.numpy(), lengths, length)
        each = torch.from_numpy(lengths) if len(rows) < batch_size else length
        return rows, {**leaves, WEIGHT: weights.repeat_interleave(each)}

    def sampleable(self, storage: Sampleable, batch_size: int) -> int:
        """Count the rows at which a slice of a batch may begin; see `Sampler.sampleable`."""
        return self._slices.sampleable(storage, batch_size)

    def complete(self, batch: TensorDict, leaves: dict[Any, Tensor]) -> None:
        """Add the marks of slices to the batch's flags; see `SliceSampler.complete`."""
        self._slices.complete(batch, leaves)

    def empty(self) -> None:
        """Forget all priorities; see `Sampler.empty`."""
        super().empty()
        self._begins = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; raises `UsageError` where it does not fit."""
        super().load_state_dict(state)
        self._begins = None
