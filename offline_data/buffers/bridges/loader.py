"""torch's `DataLoader` over datasets: batches in one gather, resumable and sharded by rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensorclass
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate_fn_map

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.bridges.epochs import EpochBatches
from offline_data.rows.devices import as_device


class RowBatch(TensorDict):  # type: ignore[misc]
    """Rows for a `DataLoader` to collate, which `torch.stack` returns as the batch `[B]` they are.

    Else it would take the batch apart and stack the rows again: 300 ms for 256 rows of 14 features.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if (
            func is torch.stack
            and not kwargs
            and isinstance(args[0], cls)
            and args[1:] in {(), (0,)}
        ):
            return args[0].as_tensordict()
        return super().__torch_function__(func, types, args, kwargs)

    def as_tensordict(self) -> TensorDict:
        return TensorDict(self, batch_size=self.batch_size, device=self.device, names=self.names)


def _collate(rows: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001 - torch passes it
    if isinstance(rows, RowBatch):
        return rows.as_tensordict()
    return rows if isinstance(rows, TensorDictBase) else torch.stack(list(rows))


# Registers TensorDicts with `default_collate`, which otherwise treats one as a dict of its rows and
# raises `RuntimeError: generator raised StopIteration`.
default_collate_fn_map.setdefault(TensorDictBase, _collate)


def fetch(buffer: Any, rows: Sequence[int]) -> Any:
    """Return rows to collate: a `RowBatch` if the batch is a TensorDict, else a list of rows."""
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
class WholeBatches:
    """The rows of a buffer by batch, as the dataset of a loader; other attributes are the buffer's.

    It is an error if a loader that another library makes of it asks for single rows.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, rows: Any) -> Any:
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
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[TensorDict]:  # type: ignore[override]  # torch's own iterator class
        if self.num_workers and hasattr(self.batches.dataset, "_prepare"):
            self.batches.dataset._prepare()
        batches, count = self.batches, len(self)
        epoch, begin = batches.reached = batches.position
        for number, batch in enumerate(super().__iter__(), begin + 1):
            # workers are ahead of the batch that is returned
            batches.reached = (epoch, number) if number < count else (epoch + 1, 0)
            yield batch if self.device is None else _move(batch, self.device)

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state_dict(state)
        epoch, batch = self.batches.position
        if batch == len(self):
            self.set_epoch(epoch + 1)


def as_dict(batch: Any) -> Any:
    """Return a batch as nested dicts of tensors: a `collate_fn` for trainers that expect dicts.

    Hugging Face's `Trainer` passes their items to `model.forward`: `collate_fn=offline_data.as_dict`.

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
        return batch


def _move(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, dict):
        return {key: _move(value, device) for key, value in batch.items()}
    if type(batch) in {list, tuple}:
        return type(batch)(_move(value, device) for value in batch)
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch
