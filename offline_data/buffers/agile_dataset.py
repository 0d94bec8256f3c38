"""`ReplayDataset`: a buffer as the dataset of a `DataLoader`, its batches shared by the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from offline_data.buffers.arguments import positive
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from offline_data.buffers.buffer import ReplayBuffer


class ReplayDataset(IterableDataset[Any]):
    """Batches of a buffer, until its sampler says that an epoch ends: never, for a `RandomSampler`.

    Of `W` workers, worker `w` gathers batches `w`, `w + W`, … of one sequence, which all of them
    draw: what a `DataLoader` gives is what the buffer alone would, whatever `W`, and a sampler
    without replacement gives every row exactly once an epoch. AgileRL's class of that name gives
    one batch and stops.

    ```python
    DataLoader(ReplayDataset(ds, 256), batch_size=None, collate_fn=Identity(), num_workers=2)
    ```

    Randomness: without workers, and if no `seed` is given, from the buffer's
    sampler. In workers samplers that are seeded by numbers, as `SamplerWithoutReplacement(seed=0)`,
    keep their orders; all others draw from `seed`, or if it is None from what the loader draws for
    its workers whenever an iteration begins (`torch.manual_seed`, `DataLoader(generator=…)`).

    Workers have copies of the buffer, and what they draw does not reach this process's. They count
    epochs together, also where workers are started anew for each: the first is what `set_epoch`
    said, or else the one that the buffer is at, and every iteration is the next one.

    Args:
        buffer: A dataset, a view, or any other buffer; picklable, if there are workers.
        batch_size: Rows of a batch; None: the buffer's, or 256.
        seed: Seed of everything that is drawn, not negative.

    Raises:
        UsageError: Invalid argument.

    Attributes:
        buffer: As given.
        batch_size: Rows of a batch.
    """

    def __init__(
        self, buffer: ReplayBuffer, batch_size: int | None = None, *, seed: int | None = None
    ) -> None:
        if not hasattr(buffer, "sampler"):
            raise UsageError(f"{buffer!r} is not a buffer of this package")
        if seed is not None and seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        size = batch_size if batch_size is not None else buffer.batch_size or 256
        self.buffer = buffer
        self.batch_size = positive(size, "batch_size")
        self.seed = seed
        self._epochs = WorkerEpochs()
        self._first: int | None = None
        self._begun = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is.

        Not needed for epochs to differ: each iteration is the next epoch. Samplers that know no
        epochs draw from `(seed, epoch)`.
        """
        self._first = epoch
        self._begun = 0
        self._epochs.restart(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches of one epoch."""
        info = get_worker_info()
        if info is None:
            return self._here()
        seed = info.seed - info.id
        begun = self._epochs.begin(info.id, seed)
        if self._first is None:
            self._first = self._epoch_of_sampler()
        first = self._epochs.first
        epoch = begun + (self._first if first is None else first)
        return self._share(info.id, info.num_workers, seed, epoch)

    def _here(self) -> Iterator[Any]:
        if self.seed is not None or self._first is not None:
            if self._first is None:
                self._first = self._epoch_of_sampler()
            self._begin(self.seed, self._first + self._begun)
            self._begun += 1
        last = False
        while not last:
            draw, batch = self.buffer._take(self.batch_size)
            last = draw.last
            yield batch

    def _share(self, worker: int, workers: int, base_seed: int, epoch: int) -> Iterator[Any]:
        self._begin(base_seed if self.seed is None else self.seed, epoch)
        number, last = 0, False
        while not last:
            draw = self.buffer._draw(self.batch_size)
            last = draw.last
            if number % workers == worker:
                yield self.buffer._make(draw)
            number += 1

    def _epoch_of_sampler(self) -> int:
        return int(self.buffer.sampler.state_dict().get("epoch", 0))

    def _begin(self, seed: int | None, epoch: int) -> None:
        """Put the sampler to the beginning of an epoch: the same one in every worker."""
        sampler = self.buffer.sampler
        if seed is not None:
            words = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
            sampler.set_rng(torch.Generator().manual_seed(int(words[0])))
        state = sampler.state_dict()
        if {"epoch", "position"} <= state.keys():
            sampler.load_state_dict({**state, "epoch": epoch, "position": 0})
        self.buffer._drop_drawn()


class WorkerEpochs:
    """Counts the iterations of a `DataLoader`'s workers, in memory that they share with each other.

    Workers of one iteration have one seed, and each of them begins it once; nothing else tells a
    worker that was started anew which iteration it is for. A worker that finds the seed in another
    worker's word takes the number beside it, and otherwise the one after the highest: two that begin
    at once read the same words and come to the same number, so no lock is needed, which could not be
    pickled, or stay locked where a worker is killed.

    ```
    word of worker w    | seed of its latest iteration, 32 bits | its number, from 1, 31 bits |
    ```
    """

    def __init__(self) -> None:
        words: Any = torch.zeros(1 + _WORKERS, dtype=torch.int64)
        self._words: Tensor = words.share_memory_()
        self._words[0] = -1

    @property
    def first(self) -> int | None:
        """The epoch of the first iteration; None: not said."""
        first = int(self._words[0])
        return None if first < 0 else first

    def restart(self, first: int) -> None:
        """Count anew: the next iteration is the epoch `first`."""
        self._words[1:] = 0
        self._words[0] = first

    def begin(self, worker: int, seed: int) -> int:
        """Note that a worker begins an iteration; return its number, from 0.

        Args:
            worker: Number of the worker.
            seed: That of all workers of the iteration.
        """
        own, tag = worker % _WORKERS, seed & 0xFFFFFFFF
        words: list[int] = self._words[1:].tolist()
        numbers = {word & _NUMBER for word in words if word and word >> 31 == tag}
        if words[own] and words[own] >> 31 == tag:  # it goes on: the seed is that of its process
            number = (words[own] & _NUMBER) + 1
        else:
            number = max(numbers) if numbers else 1 + max(word & _NUMBER for word in words)
        self._words[1 + own] = tag << 31 | number
        return number - 1


_WORKERS = 1024
_NUMBER = (1 << 31) - 1
