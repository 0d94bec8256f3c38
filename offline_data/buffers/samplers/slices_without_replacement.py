"""A slice of every episode once an epoch."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.buffers.samplers.epochs import Epochs
from offline_data.buffers.samplers.slice_arguments import slices_of
from offline_data.buffers.samplers.slices import SliceSampler
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.buffers.samplers.base import Sampleable
    from offline_data.buffers.samplers.epochs import Piece

_STARTS = 1
"""Tells the random numbers that choose starts from those that order episodes."""


class SliceSamplerWithoutReplacement(SliceSampler):
    """Goes through all episodes, a slice of each exactly once an epoch.

    As in TorchRL the episode is what is not drawn again: its slice begins anywhere in it with
    the same probability, and the last batch of an epoch has the slices that are left. Order and
    starts are functions of `(seed, epoch)`, of the number of episodes and of the slices' length,
    the same in every process and on every machine. Iteration over a buffer stops at the end of an
    epoch; an iteration that was left early resumes where it was.

    Unlike TorchRL's, episodes that are too short are no part of an epoch, so that every batch but
    the last is full (there they leave gaps, or fail the batch); slices stand in the order drawn
    (there ascending where an episode is too short); and what was drawn is not forgotten while the
    number of episodes stays the same.

    Args:
        num_slices: Slices of a batch; its size must be a multiple.
        slice_len: Rows of a slice; exclusive with `num_slices`, and the same must hold.
        drop_last: Whether to leave out the last batch of an epoch where slices lack.
        shuffle: False: ascending episodes; starts are random all the same.
        seed: Not negative; None: drawn from torch's global generator at the first batch.
        options: Those of `SliceSampler`, but `over`.

    Raises:
        UsageError: Invalid argument, or one without a counterpart here.

    Example:
        >>> SliceSamplerWithoutReplacement(slice_len=8, seed=0)
        SliceSamplerWithoutReplacement(slice_len=8, seed=0, epoch=0, position=0)
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        if options.get("over", "episodes") != "episodes":
            raise UsageError(
                "Every episode is sampled once per epoch: over='starts' has no meaning"
            )
        super().__init__(num_slices=num_slices, slice_len=slice_len, **options)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._epochs = Epochs(drop_last=drop_last, shuffle=shuffle, seed=seed)

    @property
    def seed(self) -> int | None:
        """Seed of all orders and starts; None until the first batch where none was given."""
        return self._epochs.seed

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._epochs.epoch

    @property
    def position(self) -> int:
        """Episodes of this epoch that were drawn."""
        return self._epochs.position

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw the next slices, fewer at the end of an epoch; see `Sampler.sample`.

        Raises:
            UsageError: A batch size that does not fit; no episode that is long enough; with
                `drop_last`, a batch of more slices than there are episodes.
        """
        count, length = slices_of(batch_size, self.num_slices, self.slice_len)
        where = self.windows_in(storage, length)
        episodes = len(where.starts)
        if self.drop_last and count > episodes:
            raise UsageError(
                f"A batch of {count} slices is more than the {episodes} episodes of an epoch, and "
                "drop_last leaves out batches that are not full"
            )
        piece = self._epochs.take(episodes, count)
        self.ran_out = piece.ends_epoch
        return self.batch_of(*where.at(piece.numbers, self._fractions(piece)), length)

    def _fractions(self, piece: Piece) -> NDArray[np.float64]:
        """Return a number in `[0, 1)` for each slice; the `k`-th of an epoch has the `k`-th."""
        seed = np.random.SeedSequence((self._epochs.settled_seed(), piece.epoch, _STARTS))
        bits = np.random.PCG64(seed).advance(piece.position)
        raw: NDArray[np.uint64] = np.asarray(bits.random_raw(len(piece.numbers)), np.uint64)
        fractions: NDArray[np.float64] = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return fractions

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor | None:
        """Return what `sample` would draw now; see `Sampler.foresee`."""
        if self.seed is None:
            return None
        return self._drawn_by_copy(storage, batch_size, _epochs=copy(self._epochs))

    def set_rng(self, generator: torch.Generator) -> None:
        """Draw the seed of orders and starts from `generator`, now, where none was given."""
        self._epochs.settled_seed(generator)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and position, the state to resume from."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        self._epochs.load_state_dict(state)

    def __repr__(self) -> str:
        given = "num_slices" if self.num_slices else "slice_len"
        return f"{type(self).__name__}({given}={getattr(self, given)}, {self._epochs!r})"
