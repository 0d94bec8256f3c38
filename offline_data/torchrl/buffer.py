"""`ReplayBuffer`: a buffer that is written to, with TorchRL's signatures."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensorclass
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.buffers.buffer import INDEX, Batch, Buffer
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.prefetch import Draw, draw_of
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer, immutable
from offline_data.raw.tensordict_memmap import is_torchrl_dump
from offline_data.rows import fields
from offline_data.rows.derived.base import Derived
from offline_data.rows.indexing import Index, cells_of, gather_cells
from offline_data.rows.keys import KeyLike, path_of
from offline_data.rows.samplers import Sampler
from offline_data.rows.state import load_tree, save_tree
from offline_data.rows.storage import Storage
from offline_data.rows.transforms import LABELS, Transform, through
from offline_data.rows.unsupported import refuse
from offline_data.torchrl.dumps import read_torchrl_dump
from offline_data.torchrl.parts import as_storage, as_writer
from offline_data.torchrl.storages import GrowingStorage, ListStorage, TensorStorage
from offline_data.torchrl.storages.leaves import across, plain
from offline_data.torchrl.storages.views import InTime
from offline_data.torchrl.writers import RoundRobinWriter

_TORCHRL = (
    "sample_unit checkpointer consume_after_n_samples shared compilable delayed_init "
    "service_backend service_backend_options transport transport_options"
)


class ReplayBuffer(Buffer[Batch]):
    """Samples batches of rows from an immutable dataset or from a growing storage.

    A batch is gathered, then derived features and the sampler's features are added, then
    `collate_fn` and the transforms are applied. `index` and `priority_weight` are restored
    afterwards, unless a transform changes the batch size or the order of rows. As in TorchRL,
    batches of a growing storage have `index` if the buffer is a `TensorDictReplayBuffer` or its
    writer a TensorDict writer; `sample(return_info=True)` always returns it.

    Not supported, unlike in TorchRL: generations, consumption of rows, sample units, staleness
    sampling, buffers over RPC or Ray, `compilable`, and `HERReplayBuffer` (use `derived.relabel`).
    TorchRL's schedulers take `buffer.sampler`; what asks for TorchRL's own buffer class takes the
    result of a dataset's `to_torchrl()`.

    Rows of a growing storage, `buffer[…]`, have `index` if the writer is a TensorDict writer, as
    `buffer.storage[…]` has; a `ListStorage` returns its item unchanged for an int, and has one
    dimension. If the storage has several dimensions, the index refers to rows as written, `[E, T]`:
    `buffer[0, 3:5]` are two steps of environment 0.

    A growing buffer is thread-safe. A write waits for batches in progress and rebuilds the
    prefetched batches it affects, so every batch has the current values of its rows. Prefetched
    slices that contain overwritten rows are drawn again.

    Args:
        storage: Storage of the rows, or a function that returns one; None: a `ListStorage` of 1000
            rows.
        sampler: Sampler of rows, or a function that returns one; None: a `RandomSampler`.
        writer: Writer of new rows, or a function that returns one; None: a `RoundRobinWriter`, or
            for a dataset an `ImmutableDatasetWriter`, the only one it accepts.
        collate_fn: Called with every batch, of a `ListStorage` a list of rows, before `transform`.
        batch_size: Default number of rows in a batch; required for iteration.
        prefetch: Number of batches to prepare ahead, and of threads. It does not change which rows
            are drawn or their order, but new rows first appear up to `prefetch` batches later.
        transform: Called with every batch; see `append_transform`.
        transform_factory: Function that returns the transform; instead of `transform`.
        pin_memory: Whether to move batches to page-locked memory, after all transforms.
        generator: Random generator for the sampler, replacing its own.
        derived: Function, or functions in order of application, that add features computed from
            other rows of the storage.
        dim_extend: Time dimension of written data; None: the last of the storage's `ndim`
            dimensions, so rows of several environments are `[E, T]`, as `buffer[:]` returns them.
        **torchrl: TorchRL's other arguments; only their default values are accepted.

    Raises:
        UsageError: Invalid or unsupported argument.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from offline_data.torchrl.storages import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
        >>> buffer.extend(TensorDict({"action": torch.tensor([7.0, 8.0, 9.0])}, [3]))
        tensor([0, 1, 2])
        >>> buffer[-1]["action"], buffer.sample()["action"].shape
        (tensor(9.), torch.Size([2]))
    """

    _default_writer: Callable[[], Writer] = RoundRobinWriter
    _tensorclass: Any = None  # class of the rows written last, if that was a tensorclass
    _in_time: tuple[Storage, InTime] | None = None  # for derived functions that look ahead or back

    def __init__(
        self,
        storage: Storage | Callable[[], Storage] | None = None,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        transform_factory: Callable[[], Transform] | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
        derived: Derived | Iterable[Derived] = (),
        dim_extend: int | None = None,
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, _TORCHRL)
        if transform is not None and transform_factory is not None:
            raise UsageError("transform and transform_factory cannot both be given")
        rows = as_storage(storage)
        ndim = getattr(rows, "ndim", 1)
        self.dim_extend = ndim - 1 if dim_extend is None else dim_extend
        if not 0 <= self.dim_extend < ndim:
            raise UsageError(
                f"dim_extend is {dim_extend}; expected 0 to {ndim - 1}, as the storage has ndim={ndim}"
            )
        super().__init__(
            rows,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform if transform_factory is None else transform_factory(),
            pin_memory=pin_memory,
            generator=generator,
            derived=derived,
        )
        self._lock, self._indexed = self._new_lock(), self._has_index()
        if getattr(self._sampler, "drop_last", False) and self._batch_size is None and self._grows:
            raise UsageError(
                "Samplers with drop_last=True must work with a predictable batch-size, and the buffer "
                "has none",
                hint="give batch_size to the buffer",
            )
        if ndim > 1 and self._derived:
            raise UsageError("derived=… needs a storage with ndim=1")
        if self._collates and self._derived and isinstance(rows, ListStorage):
            raise UsageError(
                "derived=… needs batches of tensors; a ListStorage gives collate_fn lists of rows"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_storage" and not hasattr(value, "gather"):
            self.set_storage(value)  # a program written for TorchRL sets one of TorchRL's
        else:
            super().__setattr__(name, value)

    def _writer_of(self, writer: Any) -> Writer:
        return as_writer(writer, self._storage, self._default_writer)

    def batch_of(self, rows: Tensor, leaves: dict[Any, Tensor]) -> Batch:
        """Return the batch of `rows`, int64 `[B]`, drawn elsewhere, with `index`; see `Buffer`."""
        with self._lock:
            gathered = self._gather(rows, indexed=True)
        batch: Batch = self._finish(Draw(rows, leaves, last=False), gathered, indexed=True)
        return batch

    def at_rows(self, rows: Tensor) -> Any:
        """Return the rows with these numbers, int64 of any shape, transformed; see `buffer[…]`."""
        storage = self._storage
        if rows.ndim == 0 and isinstance(storage, ListStorage):
            return through(self._chain.outward, self._as_written(storage.get(int(rows))))
        with self._lock:
            batch = gather_cells(self._gather, rows)
        unlabelled = self._indexed and not getattr(storage, "indexed", True)
        if unlabelled and isinstance(batch, TensorDictBase):  # rows of a TensorDictReplayBuffer
            batch.pop(INDEX)
        return self._transform_batch(batch, {INDEX: rows})

    def _leaf(self, key: tuple[str, ...]) -> Any:
        return plain(self[:])[key]

    def add(self, data: Any) -> Any:
        """Write one row, for example a TensorDict `[]` or a tensor; see `extend`.

        Returns its number, None if the writer drops it, or an empty tensor if a transform does.
        """
        data = self._inward(data, "add")
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        with self._changing() as changed:
            row: Any = self._writer.add(data)
            if row is not None and self._growing.ndim > 1:
                row = self._growing.rows_of_steps(torch.tensor([row]))[0]
                changed.append(row.reshape(-1))
                self._sampler.extend(row.reshape(-1))
            elif row is not None:
                changed.append(torch.tensor([row]))
                self._sampler.add(row)
        return row

    def extend(self, data: Any) -> Tensor:
        """Write rows in order.

        Args:
            data: `[B]` rows: a TensorDict, a tensor, a dict or tuple of tensors, or a list of rows;
                copied. The `inv` methods of the transforms are applied first, last to first.

        Returns:
            Row numbers, int64 `[B]` (`[E, T]` if the storage has several dimensions); -1 for rows
            that the writer drops. Empty if a transform returned None.

        Raises:
            UsageError: The data do not match the rows in the storage.
            ImmutableError: The buffer is a dataset.
        """
        data = self._inward(data, "extend")
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        if self.dim_extend:
            data = across(data, self.dim_extend)
        with self._changing() as changed:
            rows = self._writer.extend(data)
            if self._growing.ndim > 1:
                rows = self._growing.rows_of_steps(rows)
            kept = rows[rows >= 0]
            if len(kept):
                size = min(len(kept), self._growing.max_size)
                kept = kept[-size:]  # earlier ones were overwritten by this call
                changed.append(kept)
                self._sampler.extend(kept)
        return rows.transpose(0, self.dim_extend) if self.dim_extend else rows

    def __setitem__(self, index: Index, value: Any) -> None:
        """Overwrite existing rows; the `inv` methods of the transforms are applied first.

        Raises:
            IndexError, UsageError: No such row, or values that do not match.
            ImmutableError: The buffer is a dataset.
        """
        value = self._inward(value, "assigning rows")
        if value is not None:
            with self._changing() as changed:
                storage = self._growing
                rows = self._cells(index)
                storage.overwrite(rows, value)
                changed.append(rows.reshape(-1))

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first `end` rows, None: as many as there are; like `buffer[:end] = data`."""
        self[: len(data) if end is None else end] = data

    def set_at_(self, key: KeyLike, value: Any, index: Index) -> None:
        """Overwrite one feature of existing rows; raises like `buffer[index] = value`."""
        self._set_leaves(index, {path_of(key): value})

    def set_(self, key: KeyLike, value: Any) -> None:
        """Overwrite one feature of all rows; raises like `buffer[index] = value`."""
        self._set_leaves(slice(None), {path_of(key): value})

    def update_(self, data: TensorDictBase) -> None:
        """Overwrite the features in `data` for all rows; raises like `buffer[index] = value`."""
        self._set_leaves(slice(None), dict(data.items(include_nested=True, leaves_only=True)))

    def _set_leaves(self, index: Index, leaves: dict[Any, Any]) -> None:
        storage = self._growing
        if not isinstance(storage, TensorStorage):
            raise UsageError(
                f"A {type(storage).__name__} has no features",
                hint="buffer[rows] = … replaces whole rows",
            )
        with self._changing() as changed:
            rows = self._cells(index)
            storage.set_leaves(rows, leaves)
            changed.append(rows.reshape(-1))

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all rows and prefetched batches; writing restarts at row 0.

        `empty_write_count`: whether to reset `write_count`. Raises `ImmutableError`.
        """
        with self._lock:
            self._writer.empty(empty_write_count)
            self._drop_drawn()
            self._growing.empty()
            self._sampler.empty()

    def set_storage(self, storage: Storage, collate_fn: Any = None) -> Storage:
        """Replace the storage for reading and writing; returns the previous storage.

        Args:
            storage: Storage of any kind. If only one of the two storages grows, the writer is
                replaced by the default one.
            collate_fn: Replaces the previous one; None: keep it.
        """
        after = as_storage(storage)
        writer = None if isinstance(after, GrowingStorage) != self._grows else self._writer
        before = self._use_storage(after, collate_fn)
        self._writer = as_writer(writer, after, self._default_writer)
        self._lock, self._indexed = self._new_lock(), self._has_index()
        self.dim_extend = getattr(after, "ndim", 1) - 1
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer; returns the previous one. Raises `ImmutableError`."""
        if not isinstance(writer, ImmutableDatasetWriter):
            self._growing  # noqa: B018 - raises for a dataset
        before, self._writer = self._writer, as_writer(writer, self._storage, self._default_writer)
        self._indexed = self._has_index()
        return before

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder atomically, as JSON and raw tensor bytes.

        Args:
            path: Folder that is absent, empty, or an earlier state, which is replaced.

        Raises:
            UsageError: The folder has other files, or the state needs pickle.
            NoSpaceError, AccessError: Disk errors.
        """
        with self._lock:
            state = self.state_dict()
            if isinstance(self._storage, GrowingStorage):
                state["storage"] = self._storage.state_to_save()
            save_tree(state, Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from a folder written by `dumps`, or by TorchRL's; executes nothing in it.

        From TorchRL come rows of tensors, the cursor, priorities and the batch size. It must have saved
        a sampler and a writer of the same kind, without transforms. An epoch without replacement begins
        anew, with a warning.

        Raises:
            NotFoundError, IntegrityError: No state, or an unreadable one.
            UsageError: See `load_state_dict`.
        """
        folder = Path(path).expanduser().absolute()
        if is_torchrl_dump(folder):
            self.load_state_dict(read_torchrl_dump(folder, self))
            return
        state = load_tree(folder)
        if isinstance(self._storage, GrowingStorage):
            fields.check(state, type(self).__name__, {"storage": fields.ANY})
            state["storage"] = self._storage.state_of_saved(state["storage"])
        self.load_state_dict(state)

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Register a hook on the storage; see `GrowingStorage.register_save_hook`."""
        self._growing.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Register a hook on the storage; see `GrowingStorage.register_load_hook`."""
        self._growing.register_load_hook(hook)

    def _draw_of(self, draw: Any, state: Any) -> Draw:
        return draw_of(draw, state["storage"]["count"] if self._grows else len(self._storage))

    def _has_index(self) -> bool:
        return not self._grows or self._writer.indexes

    def _inward(self, data: Any, action: str) -> Any:
        """Return data to write after the transforms' `inv`; None: write nothing."""
        if isinstance(self._writer, ImmutableDatasetWriter):
            raise immutable(action)
        row = data[0] if isinstance(data, list) and data else data
        self._tensorclass = type(row) if is_tensorclass(row) else None
        steps = self._chain.inward
        if steps and isinstance(data, TensorDictBase):
            data = data.copy()  # transforms modify it in place
        for step in steps:
            data = None if data is None else step(data)
        return data

    @contextmanager
    def _changing(self) -> Iterator[list[Tensor]]:
        """Lock for a write; afterwards rebuild prefetched batches with the rows put in the list."""
        changed: list[Tensor] = []
        with self._lock:
            self._ahead.settle()
            try:
                yield changed
            finally:
                if changed and len(self._ahead):
                    rows = torch.cat(changed)
                    self._ahead.remake(
                        lambda draw: bool(self._derived) or _has(draw, rows),
                        self._make,
                        lambda draw: self._again(draw, rows),
                    )

    def _again(self, draw: Draw, rows: Tensor) -> Draw | None:
        """Return a draw after `rows` were overwritten; a slice that they interrupt is redrawn."""
        if not (self._sampler.keeps_together and _has(draw, rows)):
            return draw
        try:
            instead = self._draw(self._size(None))
        except UsageError:  # it is raised again when a batch is requested
            return None
        return instead._replace(last=draw.last or instead.last)

    def _origin(self) -> dict[str, Any]:
        return {} if self._grows else super()._origin()

    def _gather(self, rows: Tensor, *, indexed: bool = False) -> Any:
        if self._collates and isinstance(self._storage, ListStorage):
            return self._storage.get(rows)
        batch = super()._gather(rows)
        if not (self._indexed or indexed) and isinstance(batch, TensorDictBase):
            batch.pop(INDEX)
        return batch

    def _with_derived(self, functions: Iterable[Derived], batch: Any, rows: Tensor) -> Any:
        storage: Any = self._storage
        if not isinstance(storage, GrowingStorage):
            return super()._with_derived(functions, batch, rows)
        if self._in_time is None or self._in_time[0] is not storage:
            self._in_time = storage, InTime(storage)
        storage = self._in_time[1]
        rows = storage.positions(rows)
        for derive in functions:
            batch = derive(batch, rows, storage)
        return batch

    def _cells(self, index: Any) -> Tensor:
        if not isinstance(self._storage, GrowingStorage) or self._storage.ndim == 1:
            return super()._cells(index)
        return cells_of(index, self._storage.numbers().transpose(0, self.dim_extend))

    def _finish(self, draw: Draw, batch: Any, *, indexed: bool = False) -> Any:
        if draw.info and isinstance(batch, TensorDictBase):
            self._sampler.complete(batch, draw.info)
        labels = {INDEX: draw.rows, **draw.info}
        return self._transform_batch(batch, labels, LABELS if indexed else ())

    def _transform_batch(
        self,
        batch: Any,
        labels: dict[Any, Tensor] | None = None,
        names: tuple[str, ...] = (),
    ) -> Any:
        if labels is None or self._indexed or names:
            return super()._transform_batch(batch, labels)
        names = LABELS[1:]
        labels = {name: leaf for name, leaf in labels.items() if name in names}
        return super()._transform_batch(self._as_written(batch), labels, names)

    def _as_written(self, batch: Any) -> Any:
        """Return rows as the tensorclass they were written as, unless batches include `index`."""
        if self._tensorclass is None or self._indexed or not isinstance(batch, TensorDictBase):
            return batch
        fields = [field.name for field in self._tensorclass.fields()]
        return self._tensorclass.from_tensordict(batch.select(*fields, strict=False))

    @property
    def _grows(self) -> bool:  # type: ignore[override]
        return isinstance(self._storage, GrowingStorage)

    @property
    def _growing(self) -> GrowingStorage:
        if not isinstance(self._storage, GrowingStorage):
            raise immutable("writing")
        return self._storage

    def _new_lock(self) -> Any:
        return threading.RLock() if self._grows else nullcontext()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = self._new_lock()


def _has(draw: Draw, rows: Tensor) -> bool:
    return bool(torch.isin(draw.rows, rows).any())


ReplayBuffer.register(Dataset)
