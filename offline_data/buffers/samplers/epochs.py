"""Samplers whose order follows from (seed, epoch): everything exactly once an epoch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler
from offline_data.buffers.samplers.permutation import EpochOrder
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers.permutation import Numbers


class EpochSampler(Sampler):
    """Goes through numbers `[0, count)` again and again; a subclass says what they stand for.

    Args:
        drop_last: Whether to leave out the last batch of an epoch where it is not full.
        shuffle: False: ascending order.
        seed: Not negative; None: drawn from torch's global generator at the first batch.

    Attributes:
        seed: Seed of all orders; None until the first batch where none was given.
        epoch: Number of epochs that are over.
        position: Numbers of this epoch that were drawn.
    """

    _computed: tuple[str, ...] = ("_order",)
    _order: EpochOrder | None = None

    def __init__(self, *, drop_last: bool, shuffle: bool, seed: int | None) -> None:
        if seed is not None and seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _take(self, count: int, size: int) -> tuple[Numbers, int, int]:
        """Return the next `size` of `count` numbers, fewer at the end of an epoch, and set `ran_out`.

        Returns:
            The numbers `[n]`, their epoch, and how many came before them in it.
        """
        with self._lock:
            least = size if self.drop_last else 1
            if self.position + least > count:
                self._begin_epoch()  # only where the size or the count has changed
            epoch, start, stop = self.epoch, self.position, min(self.position + size, count)
            if not self.shuffle:
                numbers = np.arange(start, stop)
            else:
                if self._order is None or self._order.count != count:
                    self._order = EpochOrder(count, self._settled_seed(), epoch)
                numbers = self._order.between(start, stop)
            self.position = stop
            self.ran_out = stop + least > count
            if self.ran_out:
                self._begin_epoch()
            return numbers, epoch, start

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.position = 0
        self._order = None

    def _settled_seed(self, generator: torch.Generator | None = None) -> int:
        if self.seed is None:
            self.seed = int(torch.randint(2**62, (), generator=generator))
        return self.seed

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor | None:
        """Return what `sample` would draw now; see `Sampler.foresee`."""
        return None if self.seed is None else self._drawn_by_copy(storage, batch_size)

    def set_rng(self, generator: torch.Generator) -> None:
        """Draw the seed from `generator`, now, where none was given."""
        self._settled_seed(generator)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and position, the state to resume from."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`."""
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]
        self._order = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(seed={self.seed}, epoch={self.epoch}, position={self.position})"
        )
