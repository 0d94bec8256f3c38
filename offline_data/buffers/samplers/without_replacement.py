"""Every valid transition exactly once an epoch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler, drawable
from offline_data.buffers.samplers.permutation import EpochOrder
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class SamplerWithoutReplacement(Sampler):
    """Goes through all valid transitions, each exactly once an epoch, then begins the next epoch.

    An epoch's order is a function of `(seed, epoch)` and the number of valid transitions: it is
    computed in pieces, not stored, and is the same in every process and on every machine. Iteration
    over a buffer stops at the end of an epoch; an iteration that was left early goes on where it
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
        if seed is not None and seed < 0:
            raise UsageError(f"A seed is not negative; found {seed}")
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        self.valid_only = valid_only
        self.epoch = 0
        self.position = 0
        self._order: EpochOrder | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_order": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

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
        with self._lock:
            return rows.at(self._next_numbers(rows.count, batch_size)), {}

    def _next_numbers(self, count: int, batch_size: int) -> Tensor:
        if self.position + (batch_size if self.drop_last else 1) > count:
            self._begin_epoch()  # only where the batch size or the set of rows has changed
        start, stop = self.position, min(self.position + batch_size, count)
        numbers = self._numbers(count, start, stop)
        self.position = stop
        self.ran_out = stop + (batch_size if self.drop_last else 1) > count
        if self.ran_out:
            self._begin_epoch()
        return numbers

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.position = 0
        self._order = None

    def _numbers(self, count: int, start: int, stop: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(start, stop)
        if self.seed is None:
            self.seed = int(torch.randint(2**62, ()))
        if self._order is None or self._order.count != count:
            self._order = EpochOrder(count, self.seed, self.epoch)
        return torch.from_numpy(self._order.between(start, stop))

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and position: all it takes to go on from here."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]
        self._order = None

    def __repr__(self) -> str:
        where = f"seed={self.seed}, epoch={self.epoch}, position={self.position}"
        return f"SamplerWithoutReplacement({where})"
