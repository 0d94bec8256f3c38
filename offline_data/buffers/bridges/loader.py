"""torch's `DataLoader` over datasets: batches in one gather, resumable and sharded by rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_tensorclass
from torch import distributed
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.distributed import DistributedSampler

from offline_data.base.config import launched_ranks
from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode.permutation import EpochOrder
from offline_data.rows import fields
from offline_data.rows.devices import as_device
from offline_data.rows.indexing import positive
from offline_data.rows.samplers.base import ValidRows

_POSITION = {
    **dict.fromkeys(("batches", "batch_size", "ranks"), fields.integer(1)),
    **dict.fromkeys(("epoch", "batch", "seed"), fields.COUNT),
    "shuffle": fields.FLAG,
}


class RowBatch(TensorDict):  # type: ignore[misc]
    """Rows for a `DataLoader` to collate, as the batch `[B]` that stacking them gives.

    `torch.stack` of a TensorDict takes it apart into rows, once for each leaf, and puts these
    together again: 300 ms for 256 rows of 14 leaves. Of this one it returns the batch that is there.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return the batch as a TensorDict for `torch.stack(rows)`; see torch for all else."""
        if (
            func is torch.stack
            and not kwargs
            and isinstance(args[0], cls)
            and args[1:] in {(), (0,)}
        ):
            return args[0].as_tensordict()
        return super().__torch_function__(func, types, args, kwargs)

    def as_tensordict(self) -> TensorDict:
        """Return the batch as a plain TensorDict of the same tensors."""
        return TensorDict(self, batch_size=self.batch_size, device=self.device, names=self.names)


def _collate(rows: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001 - torch passes it
    if isinstance(rows, RowBatch):
        return rows.as_tensordict()
    return rows if isinstance(rows, TensorDictBase) else torch.stack(list(rows))


# Registers TensorDicts with `default_collate`, which otherwise treats one as a dict of its rows and
# raises `RuntimeError: generator raised StopIteration`.
default_collate_fn_map.setdefault(TensorDictBase, _collate)


def fetch(buffer: Any, rows: Sequence[int]) -> Any:
    """Return rows for a `DataLoader` to collate: a `RowBatch`, if the batch is a TensorDict.

    If transforms return anything else, its rows are unknown: then a list of single rows is returned.
    """
    batch = buffer[rows]
    if not isinstance(batch, TensorDictBase):
        return [buffer[row] for row in rows]
    left_out = torch.as_tensor(buffer.storage.rows(valid_only=True).left_out)
    if len(left_out) and bool(torch.isin(torch.as_tensor(rows), left_out).any()):
        warnings.warn(
            f"A DataLoader reads all rows, and for {len(left_out)} of them the next observation "
            "is not known: do not bootstrap from it. Use ds.dataloader(…), which leaves them out, or "
            "DataLoader(torch.utils.data.Subset(ds, ds.valid_rows.tolist()), …)",
            stacklevel=2,
        )
    if type(batch) is not TensorDict:  # of a transform: a class of its own
        return batch
    return RowBatch(batch, batch_size=batch.batch_size, device=batch.device, names=batch.names)


@pickled_by_name
class Ranks:
    """The rank of this process and the number of ranks, as given or as found when needed.

    They are those of `torch.distributed` if it is initialized, else of the environment variables
    `RANK` and `WORLD_SIZE`, else 0 and 1. A worker process has those of the process that started it.

    Raises:
        UsageError: One without the other, or out of range.
    """

    def __init__(self, rank: int | None, world: int | None) -> None:
        if (rank is None) != (world is None):
            raise UsageError(f"Give rank and world, or neither; found {rank=} and {world=}")
        if rank is not None and world is not None and not 0 <= rank < world:
            raise UsageError(f"rank is {rank}; expected 0 <= rank < world, which is {world}")
        self._given = None if rank is None or world is None else (rank, world)

    def now(self) -> tuple[int, int]:
        """Return the rank and the number of ranks."""
        if self._given is not None:
            return self._given
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return launched_ranks()

    def __getstate__(self) -> dict[str, Any]:
        """Keep a rank for a worker; a single process may send this to those that become ranks."""
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
    size `W` times as large. All ranks have the same number and sizes of batches: if the rows are not
    divisible by `W`, up to `W - 1` from the beginning of the order are repeated at its end.

    It is a `DistributedSampler`, so that trainers do not shard the ranks' shares again. For the
    arguments see `BaseDatasetExperienceReplay.dataloader`.

    Raises:
        UsageError: Invalid argument, or no full batch with `drop_last`.
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
        self.position = (0, 0)
        """Epoch, and number of batches before the next iteration."""
        self.reached = (0, 0)
        """Epoch, and number of batches that were returned."""
        len(self)  # raises for invalid sizes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; optional, since epochs advance by themselves.

        A position loaded within the same epoch is kept.
        """
        if self.position[0] != epoch:
            self.position = (epoch, 0)
        self.reached = self.position

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same for all ranks."""
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
        """Yield the rows of each batch of the next epoch, or of the rest of a resumed one."""
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

        The batch size and the number of ranks stay as they are: inside an epoch, the position must
        then be at the beginning of a batch.

        Raises:
            UsageError: The state of other rows, or a position inside a batch.
            IntegrityError: A damaged state.
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
class WholeBatches:
    """The rows of a buffer by batch, as the dataset of a loader; other attributes are the buffer's.

    A loader that another library makes of this one's dataset asks for single rows, which would then
    be taken for batches: that is an error.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, rows: Any) -> Any:
        """Return the batch of row numbers `[B]`; raises `UsageError` for one row."""
        if isinstance(rows, np.ndarray):
            return self._buffer[rows]
        raise UsageError(
            f"Another library made a loader of its own of ds.dataloader(…), which asks for row {rows} "
            "in place of a batch",
            hint="use ds.dataloader(…) as it is: it gives each rank its share, and device=… moves "
            "batches; libraries that must make a loader of their own take DataLoader(ds, 256)",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_buffer":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._buffer, name)


@pickled_by_name
class DatasetLoader(DataLoader[Any]):
    """A resumable `DataLoader` of batches `[B]`; returned and documented by `ds.dataloader(…)`."""

    # Accelerate uses a loader with these as it is, and saves its state: a loader that it makes of
    # `dataset` and `batch_sampler` has no batches, and one of a real batch sampler skips rows on
    # several ranks.
    _is_accelerate_prepared = use_stateful_dataloader = True

    def __init__(
        self,
        batches: EpochBatches,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        device: torch.device | str | int | None = None,
        **options: Any,
    ) -> None:
        self.device = None if device is None else as_device(device)
        if taken := {"batch_sampler", "sampler"} & options.keys():
            raise UsageError(
                f"dataloader(…) has a sampler of its own; found {taken.pop()}=…",
                hint="torch.utils.data.DataLoader(ds, …) takes one",
            )
        super().__init__(
            WholeBatches(batches.dataset),  # type: ignore[arg-type]  # has the interface of a map-style dataset
            batch_size=None,
            sampler=batches,
            collate_fn=collate_fn or Unchanged(),
            **options,
        )

    @property
    def batches(self) -> EpochBatches:
        """The sampler that yields the rows of each batch."""
        assert isinstance(self.sampler, EpochBatches)  # noqa: S101 - set in the constructor
        return self.sampler

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; see `EpochBatches.set_epoch`."""
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[TensorDict]:  # type: ignore[override]  # torch's own iterator class
        """Yield the batches of the next epoch."""
        if self.num_workers and hasattr(self.batches.dataset, "_prepare"):
            self.batches.dataset._prepare()
        batches, count = self.batches, len(self)
        epoch, begin = batches.reached = batches.position
        for number, batch in enumerate(super().__iter__(), begin + 1):
            # workers are ahead of the batch that is returned
            batches.reached = (epoch, number) if number < count else (epoch + 1, 0)
            yield batch if self.device is None else _move(batch, self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch returned, as JSON values."""
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after a batch, with the seed of the state; see `EpochBatches.load_state_dict`."""
        self.batches.load_state_dict(state)
        epoch, batch = self.batches.position
        if batch == len(self):
            self.set_epoch(epoch + 1)


def as_dict(batch: Any) -> Any:
    """Return a batch as nested dicts of tensors: a `collate_fn` for trainers that expect dicts.

    Hugging Face's `Trainer` passes their items to `model.forward`.

    ```python
    loader = ds.dataloader(256, collate_fn=offline_data.as_dict)
    ```

    Example:
        >>> as_dict(TensorDict({"next": {"reward": torch.ones(2, 1)}}, [2]))
        {'next': {'reward': tensor([[1.],
                [1.]])}}
    """
    return batch.to_dict() if isinstance(batch, TensorDictBase) or is_tensorclass(batch) else batch


@pickled_by_name
class Unchanged:
    """Returns a batch as it is; a function would be pickled by its module."""

    def __call__(self, batch: Any) -> Any:
        """Return the batch."""
        return batch


def _move(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, dict):
        return {key: _move(value, device) for key, value in batch.items()}
    if type(batch) in {list, tuple}:
        return type(batch)(_move(value, device) for value in batch)
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch
