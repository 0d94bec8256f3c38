"""Transitions drawn uniformly, with and without replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler, drawable, seeded
from offline_data.buffers.samplers.epochs import EpochSampler
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class RandomSampler(Sampler):
    """Draws every valid transition with the same probability, with replacement.

    Iteration over a buffer with it never ends.

    Args:
        seed: Seed of a generator of its own; None: torch's global one (`torch.manual_seed`).
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated.
        replacement: False makes a `SamplerWithoutReplacement`, with `options` as its arguments.

    Example:
        >>> isinstance(RandomSampler(replacement=False), SamplerWithoutReplacement)
        True
    """

    def __new__(cls, *, replacement: bool = True, **options: Any) -> Any:
        """Make the sampler that `replacement` asks for."""
        return super().__new__(cls) if replacement else SamplerWithoutReplacement(**options)

    def __init__(
        self,
        *,
        seed: int | None = None,
        valid_only: bool = True,
        replacement: bool = True,  # noqa: ARG002 - `__new__` looks at it
    ) -> None:
        self.seed = seed
        self.valid_only = valid_only
        self._generator = seeded(seed)

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw `batch_size` rows; see `Sampler.sample`."""
        rows = drawable(storage, valid_only=self.valid_only)
        numbers = torch.randint(rows.count, (batch_size,), generator=self._generator)
        return rows.at(numbers), {}

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor:
        """Return what `sample` would draw now; see `Sampler.foresee`."""
        return self._drawn_by_copy(storage, batch_size)

    def __repr__(self) -> str:
        return f"RandomSampler(seed={self.seed}, valid_only={self.valid_only})"


class SamplerWithoutReplacement(EpochSampler):
    """Goes through all valid transitions, each exactly once an epoch.

    An epoch's order is a function of `(seed, epoch)` and the number of valid transitions: it is
    computed in chunks, not stored, and is the same in every process and on every machine. Iteration
    over a buffer stops at the end of an epoch; an iteration that was left early resumes where it
    was. Unlike TorchRL's, a batch never joins the end of one epoch and the beginning of the next.

    Args:
        drop_last: Whether to leave out the last batch of an epoch where it is not full.
        shuffle: False: ascending order.
        seed: Not negative; None: drawn from torch's global generator at the first batch.
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated.

    Example:
        >>> SamplerWithoutReplacement(seed=0, drop_last=True)
        SamplerWithoutReplacement(seed=0, epoch=0, position=0)
    """

    def __init__(
        self,
        drop_last: bool = False,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        valid_only: bool = True,
    ) -> None:
        super().__init__(drop_last=drop_last, shuffle=shuffle, seed=seed)
        self.valid_only = valid_only

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw the next `batch_size` rows, fewer at the end of an epoch; see `Sampler.sample`.

        Raises:
            UsageError: With `drop_last`, a batch larger than an epoch.
        """
        rows = drawable(storage, valid_only=self.valid_only)
        if self.drop_last and batch_size > rows.count:
            raise UsageError(
                f"A batch of {batch_size} is more than the {rows.count} transitions of an epoch, "
                "and drop_last leaves out batches that are not full"
            )
        numbers, _, _ = self._take(rows.count, batch_size)
        return rows.at(torch.from_numpy(numbers)), {}
