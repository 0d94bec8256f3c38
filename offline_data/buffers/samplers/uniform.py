"""Transitions drawn uniformly: with replacement, or each exactly once an epoch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler, nothing_to_draw, seeded
from offline_data.buffers.samplers.permutation import EpochOrder
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers.permutation import Numbers


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
        rows = storage.rows(valid_only=self.valid_only)
        if not rows.count:
            raise nothing_to_draw(storage)
        return rows.at(torch.randint(rows.count, (batch_size,), generator=self._generator)), {}

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor:
        """See `Sampler.lookahead`."""
        return self._drawn_by_copy(storage, batch_size)

    def __repr__(self) -> str:
        return f"RandomSampler(seed={self.seed}, valid_only={self.valid_only})"


class SamplerWithoutReplacement(Sampler):
    """Goes through all valid transitions, each exactly once an epoch.

    An epoch's order is a function of `(seed, epoch)` and the number of valid transitions: it is
    computed in chunks, not stored, and is the same in every process and on every machine. Iteration
    over a buffer stops at the end of an epoch; an iteration that was left early resumes where it
    was. Unlike TorchRL's, a batch never joins the end of one epoch and the beginning of the next.

    Args:
        drop_last: Whether to leave out the last batch of an epoch where it is not full.
        shuffle: False: ascending order.
        seed: Not negative; None: drawn from torch's global generator at the first batch.
        valid_only: See `RandomSampler`.

    Attributes:
        seed: Seed of all orders; None until the first batch where none was given.
        epoch: Number of epochs that are over.
        position: Rows of this epoch that were drawn.

    Example:
        >>> SamplerWithoutReplacement(seed=0, drop_last=True)
        SamplerWithoutReplacement(seed=0, epoch=0, position=0)
    """

    _computed: tuple[str, ...] = ("_order", "_lock")
    _order: EpochOrder | None = None

    def __init__(
        self,
        drop_last: bool = False,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        valid_only: bool = True,
    ) -> None:
        if seed is not None and seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        self.valid_only = valid_only
        self.epoch = 0
        self.position = 0
        self._lock = threading.Lock()

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw the next `batch_size` rows, fewer at the end of an epoch; see `Sampler.sample`.

        Raises `UsageError` with `drop_last` for a batch larger than an epoch.
        """
        rows = storage.rows(valid_only=self.valid_only)
        if not rows.count:
            raise nothing_to_draw(storage)
        if self.drop_last and batch_size > rows.count:
            raise UsageError(
                f"A batch of {batch_size} is more than the {rows.count} transitions of an epoch, "
                "and drop_last leaves out batches that are not full"
            )
        numbers, _, _ = self._take(rows.count, batch_size)
        return rows.at(torch.from_numpy(numbers)), {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _take(self, count: int, size: int) -> tuple[Numbers, int, int]:
        """Return the next `size` of `count` numbers, fewer at the end of an epoch; set `ran_out`.

        Also returns their epoch, and how many came before them in it.
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
        self.epoch, self.position, self._order = self.epoch + 1, 0, None

    def _settled_seed(self, generator: torch.Generator | None = None) -> int:
        if self.seed is None:
            self.seed = int(torch.randint(2**62, (), generator=generator))
        return self.seed

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor | None:
        """See `Sampler.lookahead`."""
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
