"""Every valid transition exactly once an epoch."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler, drawable
from offline_data.buffers.samplers.epochs import Epochs
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class SamplerWithoutReplacement(Sampler):
    """Goes through all valid transitions, each exactly once an epoch, then begins the next epoch.

    An epoch's order is a function of `(seed, epoch)` and the number of valid transitions: it is
    computed in pieces, not stored, and is the same in every process and on every machine. Iteration
    over a buffer stops at the end of an epoch; an iteration that was left early resumes where it
    was. Unlike TorchRL's, a batch never joins the end of one epoch and the beginning of the next.

    Args:
        drop_last: Whether to leave out the last batch of an epoch where it is not full.
        shuffle: False: ascending order.
        seed: Not negative; None: drawn from torch's global generator at the first batch.
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated.

    Example:
        >>> sampler = SamplerWithoutReplacement(seed=0, drop_last=True)
        >>> sampler
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
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.valid_only = valid_only
        self._epochs = Epochs(drop_last=drop_last, shuffle=shuffle, seed=seed)

    @property
    def seed(self) -> int | None:
        """Seed of all orders; None until the first batch where none was given."""
        return self._epochs.seed

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._epochs.epoch

    @property
    def position(self) -> int:
        """Transitions of this epoch that were drawn."""
        return self._epochs.position

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
        piece = self._epochs.take(rows.count, batch_size)
        self.ran_out = piece.ends_epoch
        return rows.at(torch.from_numpy(piece.numbers)), {}

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor | None:
        """Return what `sample` would draw now; see `Sampler.foresee`."""
        if self.seed is None:
            return None
        return self._drawn_by_copy(storage, batch_size, _epochs=copy(self._epochs))

    def set_rng(self, generator: torch.Generator) -> None:
        """Draw the seed of orders from `generator`, now, where none was given."""
        self._epochs.settled_seed(generator)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and position, the state to resume from."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        self._epochs.load_state_dict(state)

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement({self._epochs!r})"
