"""Epochs: the rows of each batch, shared by ranks and workers, and the position to resume at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.utils.data.distributed import DistributedSampler

from offline_data.base.config import launched_ranks
from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode.permutation import EpochOrder
from offline_data.rows import fields
from offline_data.rows.indexing import positive
from offline_data.rows.samplers.base import ValidRows

_WORKERS = 1024
_NUMBER = (1 << 31) - 1

_POSITION = {
    **dict.fromkeys(("batches", "batch_size", "ranks"), fields.integer(1)),
    **dict.fromkeys(("epoch", "batch", "seed"), fields.COUNT),
    "shuffle": fields.FLAG,
}


@pickled_by_name
class Ranks:
    """The rank of this process and the number of ranks, as given or as found when needed.

    They are those of `torch.distributed` if it is initialized, else of the environment variables
    `RANK` and `WORLD_SIZE`, else 0 and 1. A worker process has those of the process that started it.
    Raises `UsageError` for one without the other, or out of range.
    """

    def __init__(self, rank: int | None, world: int | None) -> None:
        if (rank is None) != (world is None):
            raise UsageError(f"Give rank and world, or neither; found {rank=} and {world=}")
        if rank is not None and world is not None and not 0 <= rank < world:
            raise UsageError(f"rank is {rank}; expected 0 <= rank < world, which is {world}")
        self._given = None if rank is None or world is None else (rank, world)

    def now(self) -> tuple[int, int]:
        if self._given is not None:
            return self._given
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return launched_ranks()

    def __getstate__(self) -> dict[str, Any]:
        # A worker keeps its rank; a single process may send this to those that become ranks.
        now = self.now()
        return {"_given": self._given if now == (0, 1) else now}


@pickled_by_name
class EpochBatches(DistributedSampler[Any]):
    """Yields the rows of every batch of an epoch, each row once, or one rank's share of them.

    ```
    10 rows, batches of 3, 2 ranks
    order of (seed, epoch)    7 1 4 | 0 9 3 | 8 2 | 5 6 |
    batch 0 of rank           0 0 0   1 1 1
    batch 1 of rank                           0 0   1 1
    ```

    Batches `k` of all `W` ranks together have the rows of batch `k` of a single rank with a batch
    size `W` times as large. It is a `DistributedSampler`, so that trainers do not shard the shares
    again. For arguments, errors and remainders see `Dataset.dataloader`.
    """

    _rows_in_order = True  # whether the rows after a position do not depend on the batch size

    def __init__(
        self,
        buffer: Any,
        rows: ValidRows,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        self.batch_size = positive(batch_size, "batch_size")
        self._ranks = Ranks(rank, world)
        if seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        super().__init__(
            buffer,  # has the interface of a map-style dataset
            num_replicas=1,
            rank=0,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        self._rows = rows
        self.position = (0, 0)  # epoch, and number of batches before the next iteration
        self.reached = (0, 0)  # epoch, and number of batches that were returned
        len(self)  # raises for invalid sizes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; optional, since epochs advance by themselves.

        A position loaded within the same epoch is kept.
        """
        if self.position[0] != epoch:
            self.position = (epoch, 0)
        self.reached = self.position

    def __len__(self) -> int:
        self.rank, self.num_replicas = self._ranks.now()
        together = self.batch_size * self.num_replicas
        if not self.drop_last:
            return (self._rows.count + together - 1) // together
        if self._rows.count < together:
            raise UsageError(
                f"An epoch of {plural(self._rows.count, 'row')} does not fill "
                f"{plural(self.num_replicas, 'batch', 'batches')} of {self.batch_size}, and "
                "drop_last drops batches that are not full"
            )
        return self._rows.count // together

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        (epoch, begin), sizes = self.position, self._sizes()
        self.position = (epoch + 1, 0)
        for number, rows in enumerate(self._rows_of(epoch, begin, sizes), begin + 1):
            self.reached = (epoch, number)
            yield rows
        self.reached = (epoch + 1, 0)

    def _rows_of(self, epoch: int, begin: int, sizes: list[int]) -> Iterator[NDArray[np.int64]]:
        count, world, rank = self._rows.count, self.num_replicas, self.rank
        order = EpochOrder(count, self.seed, epoch) if self.shuffle else None
        for number, size in enumerate(sizes[begin:], begin):
            start = number * self.batch_size * world + rank * size
            numbers = np.arange(start, start + size) % count  # repeats rows beyond the end
            if order is not None:
                cut = int(np.argmin(numbers)) if numbers[0] > numbers[-1] else size
                parts = [part for part in np.split(numbers, [cut]) if len(part)]
                numbers = np.concatenate([order.between(p[0], p[-1] + 1) for p in parts])
            yield self._rows.at(torch.from_numpy(numbers)).numpy()

    def _sizes(self) -> list[int]:
        batches, size = len(self), self.batch_size
        share = -(-self._rows.count // self.num_replicas)
        last = size if self.drop_last else share - (batches - 1) * size
        return [size] * (batches - 1) + [last]

    def identity(self) -> dict[str, Any]:
        """Return the properties of the rows that a position depends on."""
        return {"rows": self._rows.count}

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch yielded, and what it depends on, as JSON values."""
        sizes = {"batches": len(self), "batch_size": self.batch_size, "ranks": self.num_replicas}
        own = {**sizes, **self.identity(), "seed": self.seed, "shuffle": self.shuffle}
        return {**own, "epoch": self.reached[0], "batch": self.reached[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position, with the seed and the order of the state.

        Inside an epoch it must begin a batch of this batch size and number of ranks. Raises
        `UsageError` otherwise or for other rows, and `IntegrityError` for a damaged state.
        """
        own, state = self.identity(), fields.check(state, "a loader", {})
        if {name: state.get(name) for name in own} != own or "epoch" not in state:
            raise UsageError(
                f"The state is of another loader: {dict(state)}; this one has {own}",
                hint="create it over the same rows",
            )
        fields.check(state, "a loader", _POSITION)
        batches, size, ranks, epoch, batch, seed, shuffle = (state[name] for name in _POSITION)
        fields.check(state, "a loader", {"batch": fields.integer(0, batches)})
        here, done = len(self), batch * size * ranks
        together = self.batch_size * self.num_replicas
        if (
            0 < batch < batches
            and together != size * ranks
            and (done % together or not self._rows_in_order)
        ):
            raise UsageError(
                f"The state is {plural(batch, 'batch', 'batches')} of {size} into an epoch"
                f"{f', in {ranks} ranks' if ranks > 1 else ''}; batches of {self.batch_size} in "
                f"{plural(self.num_replicas, 'rank')} cannot continue there",
                hint=f"use batches of {size}, or begin with the next epoch: set_epoch({epoch + 1})",
            )
        self.seed, self.shuffle = seed, shuffle
        begin = here if batch == batches else min(done // together, here)
        self.position = self.reached = (epoch, begin)


@pickled_by_name
class WorkerEpochs:
    """Counts the iterations of a `DataLoader`'s workers in memory that they share.

    A restarted worker only knows the seed, which is the same for all workers of an iteration. If
    another worker has stored the same seed, it uses the number next to it, otherwise the highest
    number plus one. Two workers that start at once arrive at the same number without a lock, which
    would stay locked if a worker is killed.

    ```
    word of worker w    | seed of its latest iteration, 32 bits | its number, from 1, 31 bits |
    ```
    """

    def __init__(self) -> None:
        words: Any = torch.zeros(1 + _WORKERS, dtype=torch.int64)
        self._words: Tensor = words.share_memory_()
        self._words[0] = -1

    def restart(self, first: int) -> None:
        """Restart counting: the next iteration is the epoch `first`."""
        self._words[1:] = 0
        self._words[0] = first

    def begin(self, info: Any, first: int) -> tuple[int, int]:
        """Record the start of a worker's iteration; returns its number, from 0, and its epoch.

        The first iteration is the epoch given to `restart`, else `first`.
        """
        own, tag = info.id % _WORKERS, (info.seed - info.id) & 0xFFFFFFFF
        words: list[int] = self._words[1:].tolist()
        numbers = [word & _NUMBER for word in words if word and word >> 31 == tag]
        if words[own] and words[own] >> 31 == tag:  # a persistent worker keeps its seed
            number = (words[own] & _NUMBER) + 1
        else:
            number = max(numbers) if numbers else 1 + max(word & _NUMBER for word in words)
        self._words[1 + own] = tag << 31 | number
        restarted = int(self._words[0])
        return number - 1, number - 1 + (first if restarted < 0 else restarted)
