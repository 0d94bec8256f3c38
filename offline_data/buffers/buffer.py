"""`ReplayBuffer`: storage, sampler, writer and transforms, with TorchRL's signatures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pprint import pformat
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase, is_tensorclass
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.buffers.arguments import (
    as_sampler,
    as_storage,
    as_writer,
    either,
)
from offline_data.buffers.batches import Batch, BatchSource
from offline_data.buffers.prefetch import DRAWS, Draw, draw_of
from offline_data.buffers.torchrl_dumps import read_torchrl_dump
from offline_data.buffers.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    Writer,
    immutable,
)
from offline_data.raw.tensordict_memmap import is_torchrl_dump
from offline_data.rows import fields
from offline_data.rows.derived.base import Derived
from offline_data.rows.indexing import Index
from offline_data.rows.keys import KeyLike, path_of
from offline_data.rows.samplers import Sampler
from offline_data.rows.state import PART, load_tree, save_tree
from offline_data.rows.storage import GrowingStorage, Storage, TensorStorage
from offline_data.rows.storage.rows import across
from offline_data.rows.transforms import Transform
from offline_data.rows.unsupported import refuse

__all__ = ["ReplayBuffer", "Transform"]

_TORCHRL = (
    "sample_unit checkpointer consume_after_n_samples shared compilable delayed_init "
    "service_backend service_backend_options transport transport_options"
)


_LARGEST_BATCH = 1 << 24
"""In a state: a damaged number must not allocate all memory at the next batch."""


class ReplayBuffer(BatchSource[Batch]):
    """Samples batches of rows from an immutable dataset or from a growing storage.

    A batch is gathered, then derived leaves and the sampler's leaves are added, then `collate_fn`
    and the transforms are applied. `index` and `priority_weight` are restored afterwards, unless a
    transform changes the batch size or the order of rows. As in TorchRL, batches of a growing
    storage have `index` if the buffer is a `TensorDictReplayBuffer` or its writer a TensorDict
    writer; `sample(return_info=True)` always returns it.

    Not supported, unlike in TorchRL: generations, consumption of rows, sample units, staleness
    sampling, buffers over RPC or Ray, `compilable`, and `HERReplayBuffer` (use `derived.relabel`).
    TorchRL's schedulers take `buffer.sampler`; what asks for TorchRL's own buffer class takes the
    result of a dataset's `to_torchrl()`.

    A growing buffer is thread-safe. A write waits for batches in progress and rebuilds the
    prefetched batches it affects, so every batch has the current values of its rows. Prefetched
    slices that contain overwritten rows are drawn again.

    Args:
        storage: Storage of the rows, or a function that returns one; None: a `ListStorage` of 1000
            rows.
        sampler: Sampler of rows, or a function that returns one; None: a `RandomSampler`.
        writer: Writer of new rows, or a function that returns one; None: a `RoundRobinWriter`, or
            for a dataset an `ImmutableDatasetWriter`, the only one it accepts.
        collate_fn: Called with every batch, before `transform`; with a list of rows if the storage
            is a `ListStorage`.
        batch_size: Default number of rows in a batch; required for iteration.
        prefetch: Number of batches to prepare ahead, and of threads that do so. It does not change
            which rows are drawn or their order, except that newly written rows first appear up to
            `prefetch` batches later.
        transform: Called with every batch; see `append_transform`.
        transform_factory: Function that returns the transform; instead of `transform`.
        pin_memory: Whether to move batches to page-locked memory, after all transforms.
        generator: Random generator for the sampler, replacing its own.
        derived: Function, or functions in order of application, that add leaves computed from other
            rows of the storage.
        dim_extend: Time dimension of written data; None: the last of the storage's `ndim`
            dimensions, so rows of several environments are `[E, T]`, as `buffer[:]` returns them.
        **torchrl: TorchRL's other arguments; only their default values are accepted.

    Raises:
        UsageError: Invalid or unsupported argument.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from offline_data.rows.storage import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
        >>> buffer.extend(TensorDict({"action": torch.tensor([7.0, 8.0, 9.0])}, [3]))
        tensor([0, 1, 2])
        >>> buffer[-1]["action"], buffer.sample()["action"].shape
        (tensor(9.), torch.Size([2]))
    """

    STATE: ClassVar = {
        "transforms": PART.at("_chain"),
        "sampler": PART.at("_sampler"),
        "storage": PART.at("_storage"),
        "writer": PART.at("_writer"),
        "batch_size": fields.ANY.at("_batch_size"),
        "ended": fields.FLAG.at("_ended"),
        "draws": DRAWS,
    }
    _default_writer: Callable[[], Writer] = RoundRobinWriter

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
        rows = as_storage(storage)
        ndim = getattr(rows, "ndim", 1)
        self._dim_extend = ndim - 1 if dim_extend is None else dim_extend
        if not 0 <= self._dim_extend < ndim:
            raise UsageError(
                f"dim_extend is {dim_extend}; expected 0 to {ndim - 1}, as the storage has ndim={ndim}"
            )
        super().__init__(
            rows,
            sampler=as_sampler(sampler),
            collate_fn=collate_fn,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=either(transform, transform_factory, "transform"),
            pin_memory=pin_memory,
            generator=generator,
            derived=derived,
        )
        self._writer = as_writer(writer, rows, self._default_writer)
        self._indexed = self._has_index()

    @property
    def writer(self) -> Writer:
        """The writer, which chooses where new rows are written."""
        return self._writer

    @property
    def write_count(self) -> int:
        """Number of rows written so far, including those since overwritten."""
        return self._writer.write_count

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({plural(len(self), 'row')}, sampler={self._sampler!r}, "
            f"batch_size={self._batch_size})"
        )

    @property
    def dim_extend(self) -> int:
        """Time dimension of written data."""
        return self._dim_extend

    def add(self, data: Any) -> Any:
        """Write one row, for example a TensorDict `[]` or a tensor; see `extend`.

        Returns:
            Its row number; None if the writer drops the row; an empty tensor if a transform
            returned None.
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
        if self._dim_extend:
            data = across(data, self._dim_extend)
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
        return rows.transpose(0, self._dim_extend) if self._dim_extend else rows

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
                storage[index if storage.ndim == 1 else _places(rows, storage)] = value
                changed.append(rows.reshape(-1))

    def read_all_in_order(self, end: int | None = None) -> Any:
        """Return the first `end` rows, or all, like `buffer[:end]`."""
        return self[:end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first `end` rows, None: as many as there are; like `buffer[:end] = data`."""
        self[: len(data) if end is None else end] = data

    def set_at_(self, key: KeyLike, value: Any, index: Index) -> None:
        """Overwrite one leaf of existing rows; raises like `buffer[index] = value`."""
        self._set_leaves(index, {path_of(key): value})

    def set_(self, key: KeyLike, value: Any) -> None:
        """Overwrite one leaf of all rows; raises like `buffer[index] = value`."""
        self._set_leaves(slice(None), {path_of(key): value})

    def update_(self, data: TensorDictBase) -> None:
        """Overwrite the leaves in `data` for all rows; raises like `buffer[index] = value`."""
        self._set_leaves(slice(None), dict(data.items(include_nested=True, leaves_only=True)))

    def _set_leaves(self, index: Index, leaves: dict[Any, Any]) -> None:
        storage = self._growing
        if not isinstance(storage, TensorStorage):
            raise UsageError(
                f"A {type(storage).__name__} has no leaves",
                hint="buffer[rows] = … replaces whole rows",
            )
        with self._changing() as changed:
            rows = self._cells(index)
            storage.set_leaves(_places(rows, storage), leaves)
            changed.append(rows.reshape(-1))

    def stats(self) -> dict[str, Any]:
        """Return `size`, `capacity`, `utilization`, `write_count`, `prefetch_queue_size`, …."""
        capacity = getattr(self._storage, "max_size", len(self))
        return {
            "size": len(self),
            "capacity": capacity,
            "utilization": len(self) / capacity if capacity else 0.0,
            "write_count": self.write_count,
            "prefetch_queue_size": len(self._ahead),
            "initialized": True,
        }

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all rows and prefetched batches; writing restarts at row 0.

        `empty_write_count`: whether to reset `write_count`. Raises `ImmutableError`.
        """
        with self._lock:
            self._writer.empty(empty_write_count)
            self._drop_drawn()
            self._growing.empty()
            self._sampler.empty()

    def update_priority(self, index: Tensor | int, priority: Tensor | float) -> None:
        """Set priorities in the sampler; they apply to batches drawn afterwards.

        Args:
            index: Rows, of any shape; -1 (rows that were not kept) is ignored.
            priority: One for all rows, one per row, or several per row in extra dimensions, which
                the sampler reduces to one. Raises `UsageError`.
        """
        rows, values = torch.as_tensor(index, device="cpu"), torch.as_tensor(priority).detach()
        kept = rows >= 0
        if not bool(kept.all()):
            rows, values = rows[kept], values[kept.to(values.device)] if values.ndim else values
        with self._lock:
            self._sampler.reserve(len(self._storage))
            self._sampler.update_priority(rows, values)

    def mark_update(self, index: Tensor | int) -> None:
        """Make the sampler treat rows as new ones; a `PrioritizedSampler` gives them such a priority."""
        with self._lock:
            self._sampler.mark_update(index, storage=self._storage)

    def set_storage(self, storage: Storage, collate_fn: Any = None) -> Storage:
        """Replace the storage for reading and writing; returns the previous storage.

        Args:
            storage: Storage of any kind. If only one of the two storages grows, the writer is
                replaced by the default one.
            collate_fn: Replaces the previous one; None: keep it.
        """
        after = as_storage(storage)
        writer = None if isinstance(after, GrowingStorage) != self._grows else self._writer
        before, self._storage = self._storage, after
        self._drop_drawn()
        self._writer = as_writer(writer, after, self._default_writer)
        self._lock, self._indexed = self._new_lock(), self._has_index()
        self._dim_extend = getattr(after, "ndim", 1) - 1
        if collate_fn is not None:
            self._first = (*self._first[: len(self._first) - self._collates], collate_fn)
            self._collates = True
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer; returns the previous one. Raises `ImmutableError`."""
        if not isinstance(writer, ImmutableDatasetWriter):
            self._growing  # noqa: B018 - raises for a dataset
        before, self._writer = self._writer, as_writer(writer, self._storage, self._default_writer)
        self._indexed = self._has_index()
        return before

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from: the same batches follow after `load_state_dict`.

        It includes the random state: of the sampler's own generator, or if the sampler has no seed and
        the buffer no `generator`, of torch's global one (on the CPU), which `load_state_dict` then
        sets. For a dataset it has the id and no rows; rows of a growing storage are not copied.

        Load it after everything else that draws random numbers, such as making a model, if the
        sampler has no seed.
        """
        with self._lock:
            return {"kinds": self._kinds(), **super().state_dict()}

    def check_state(self, state: Any, above: Any = None) -> None:
        """See `Saves`; a state of other sampler, writer, dataset or transforms is a `UsageError`."""
        kinds = fields.check(state, type(self).__name__, {"kinds": fields.TABLE})["kinds"]
        if pformat(kinds) != pformat(self._kinds()):  # a tensor in it would not compare
            raise UsageError(f"The state is of {kinds}; this buffer has {self._kinds()}")
        super().check_state(state, above)

    def _rules(self, state: Any, above: Any) -> Iterator[fields.Rule]:  # noqa: ARG002
        size = fields.integer(1, max(_LARGEST_BATCH, self._batch_size or 1))
        size = size if self._prefetch else fields.or_none(size)
        yield "batch_size", size.holds(state["batch_size"]), size.expected

    def _draw_of(self, draw: Any, state: Any) -> Draw:
        """Return a draw in a state, whose rows the storage has after loading."""
        return draw_of(draw, state["storage"]["count"] if self._grows else len(self._storage))

    def _set_state(self, state: dict[str, Any]) -> None:
        with self._lock:
            self._restore(())
            super()._set_state(state)

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

    def _kinds(self) -> dict[str, Any]:
        """Return the types, and for a dataset its identity, that a state must match."""
        kinds: dict[str, Any] = {
            "sampler": type(self._sampler).__name__,
            "writer": type(self._writer).__name__,
        }
        return kinds if self._grows else {**kinds, **self._origin()}

    def _origin(self) -> dict[str, Any]:
        """Return the identity of an immutable storage's rows."""
        return {"rows": len(self)}


def _places(rows: Tensor, storage: GrowingStorage) -> Any:
    """Return an index into the storage's own dimensions for row numbers of any shape."""
    numbers = storage.numbers()
    return rows if numbers.ndim == 1 else torch.unravel_index(rows, numbers.shape)


def _has(draw: Draw, rows: Tensor) -> bool:
    return bool(torch.isin(draw.rows, rows).any())
