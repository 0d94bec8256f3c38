"""Position in a sequence of epochs: which numbers come next, each exactly once per epoch."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.samplers.permutation import EpochOrder
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from offline_data.buffers.samplers.permutation import Numbers


@dataclass(frozen=True)
class Piece:
    """Next position."""

    numbers: Numbers
    """`[n]` in `[0, count)`."""
    epoch: int
    position: int
    """Numbers that came before these in the epoch."""
    ends_epoch: bool
    """Whether the next piece is of another epoch."""


class Epochs:
    """Goes through `[0, count)` again and again, in an order that follows from (seed, epoch).

    Args:
        drop_last: Whether to leave out the last piece of an epoch where it is not full.
        shuffle: False: ascending order.
        seed: Not negative; None: drawn from torch's global generator at the first piece.

    Attributes:
        epoch: Epochs that are over.
        position: Numbers of this one that are over.

    Example:
        >>> epochs = Epochs(drop_last=False, shuffle=False, seed=0)
        >>> [epochs.take(3, 2).numbers.tolist() for _ in range(3)]
        [[0, 1], [2], [0, 1]]
    """

    def __init__(self, *, drop_last: bool, shuffle: bool, seed: int | None) -> None:
        if seed is not None and seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._order: EpochOrder | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_order": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def take(self, count: int, size: int) -> Piece:
        """Return the next `size` numbers, fewer at the end of an epoch.

        Args:
            count: How many numbers an epoch has; with `drop_last` at least `size`.
            size: How many are asked for.
        """
        with self._lock:
            return self._take(count, size)

    def _take(self, count: int, size: int) -> Piece:
        least = size if self.drop_last else 1
        if self.position + least > count:
            self._begin_epoch()  # only where the size or the count has changed
        start, stop = self.position, min(self.position + size, count)
        ends = stop + least > count
        piece = Piece(self._numbers(count, start, stop), self.epoch, start, ends)
        self.position = stop
        if ends:
            self._begin_epoch()
        return piece

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.position = 0
        self._order = None

    def _numbers(self, count: int, start: int, stop: int) -> Numbers:
        if not self.shuffle:
            return np.arange(start, stop)
        if self._order is None or self._order.count != count:
            self._order = EpochOrder(count, self.settled_seed(), self.epoch)
        return self._order.between(start, stop)

    def settled_seed(self, generator: torch.Generator | None = None) -> int:
        """Return the seed, drawn now where none was given, from `generator` or the global one."""
        if self.seed is None:
            self.seed = int(torch.randint(2**62, (), generator=generator))
        return self.seed

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and position, the state to resume from."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]
        self._order = None

    def __repr__(self) -> str:
        return f"seed={self.seed}, epoch={self.epoch}, position={self.position}"
