"""Samplers of transitions: uniform with replacement, or each exactly once per epoch."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.episode.permutation import EpochOrder, Numbers
from offline_data.rows import fields
from offline_data.rows.samplers.base import (
    Sampleable,
    Sampler,
    make_generator,
    nothing_to_draw,
)

_LARGEST_SEED = 2**128  # in a state: numpy takes time for more digits


class RandomSampler(Sampler):
    """Draws valid transitions uniformly with replacement; iteration over the buffer never ends.

    Args:
        seed: Seed of the sampler's own generator; None: torch's global one (`torch.manual_seed`).
        valid_only: Whether to leave out unterminated steps whose next observation is unknown.
        replacement: False returns a `SamplerWithoutReplacement` with `options` as its arguments.

    Example:
        >>> isinstance(RandomSampler(replacement=False), SamplerWithoutReplacement)
        True
    """

    def __new__(cls, *, replacement: bool = True, **options: Any) -> Any:
        return super().__new__(cls) if replacement else SamplerWithoutReplacement(**options)

    def __init__(
        self,
        *,
        seed: int | None = None,
        valid_only: bool = True,
        replacement: bool = True,  # noqa: ARG002 - used by `__new__`
    ) -> None:
        self.seed = seed
        self.valid_only = valid_only
        self._generator = make_generator(seed)

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        rows = storage.rows(valid_only=self.valid_only)
        if not rows.count:
            raise nothing_to_draw(storage)
        return rows.at(torch.randint(rows.count, (batch_size,), generator=self._generator)), {}

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor:
        return self._drawn_by_copy(storage, batch_size)

    def __repr__(self) -> str:
        return f"RandomSampler(seed={self.seed}, valid_only={self.valid_only})"


class SamplerWithoutReplacement(Sampler):
    """Draws all valid transitions, each exactly once per epoch.

    An epoch's order depends only on `(seed, epoch)` and the number of valid transitions: it is
    computed in chunks, not stored, and is the same in every process and on every machine. Iteration
    over a buffer stops at the end of an epoch; an interrupted iteration continues at the same
    position. Unlike TorchRL's, a batch never spans two epochs.

    Args:
        drop_last: Whether to drop the last batch of an epoch if it is not full.
        shuffle: Whether to shuffle; False: ascending order.
        seed: Non-negative; None: drawn from torch's global generator at the first batch.
        valid_only: See `RandomSampler`.
        replacement: Must be False.

    Attributes:
        seed: Seed of all orders; if not given, None until the first batch.
        epoch: Number of completed epochs.
        position: Number of items drawn in this epoch.

    Example:
        >>> SamplerWithoutReplacement(seed=0, drop_last=True)
        SamplerWithoutReplacement(seed=0, epoch=0, position=0)
    """

    STATE: ClassVar = {
        "seed": fields.or_none(fields.integer(high=_LARGEST_SEED)),
        "epoch": fields.COUNT,
        "position": fields.COUNT,
        fields.GLOBAL: fields.GENERATOR,
    }
    _computed: tuple[str, ...] = ("_order", "_lock")
    _order: EpochOrder | None = None

    def __init__(
        self,
        drop_last: bool = False,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        valid_only: bool = True,
        replacement: bool = False,
    ) -> None:
        if replacement:
            raise UsageError(
                f"replacement is True; a {type(self).__name__} draws without",
                hint="RandomSampler and SliceSampler draw with replacement",
            )
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
        rows = storage.rows(valid_only=self.valid_only)
        if not rows.count:
            raise nothing_to_draw(storage)
        if self.drop_last and batch_size > rows.count:
            raise UsageError(
                f"A batch of {batch_size} is more than the {plural(rows.count, 'transition')} of "
                "an epoch, "
                "and drop_last leaves out batches that are not full"
            )
        numbers, _, _ = self._take(rows.count, batch_size)
        return rows.at(torch.from_numpy(numbers)), {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _take(self, count: int, size: int) -> tuple[Numbers, int, int]:
        """Return the next `size` of `count` numbers, fewer at the end of an epoch; set `ran_out`.

        Also returns their epoch and the position of the first in it.
        """
        with self._lock:
            least = size if self.drop_last else 1
            if self.position + least > count:
                self._begin_epoch()  # only if the size or the count has changed
            epoch, start, stop = self.epoch, self.position, min(self.position + size, count)
            if not self.shuffle:
                numbers = np.arange(start, stop)
            else:
                if self._order is None or self._order.count != count:
                    self._order = EpochOrder(count, self._choose_seed(), epoch)
                numbers = self._order.between(start, stop)
            self.position = stop
            self.ran_out = stop + least > count
            if self.ran_out:
                self._begin_epoch()
            return numbers, epoch, start

    def _begin_epoch(self) -> None:
        self.epoch, self.position, self._order = self.epoch + 1, 0, None

    def _choose_seed(self, generator: torch.Generator | None = None) -> int:
        if self.seed is None:
            self.seed = int(torch.randint(2**62, (), generator=generator))
        return self.seed

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor | None:
        return None if self.seed is None else self._drawn_by_copy(storage, batch_size)

    def set_rng(self, generator: torch.Generator) -> None:
        """Draw the seed from `generator` now, unless it was given."""
        self._choose_seed(generator)

    @property
    def _unseeded(self) -> bool:
        return self.seed is None  # it is drawn from torch's global generator

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self._order = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(seed={self.seed}, epoch={self.epoch}, position={self.position})"
        )
