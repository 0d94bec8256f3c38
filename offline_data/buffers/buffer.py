"""`ReplayBuffer`: storage, sampler, writer and transforms, with TorchRL's signatures."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import torch
from tensordict import TensorDictBase, is_tensorclass
from typing_extensions import TypeVar

from offline_data.buffers.arguments import (
    as_derived,
    as_sampler,
    as_storage,
    as_writer,
    either,
    positive,
)
from offline_data.buffers.checkpoint import Saves, load_tree, owned, save_tree
from offline_data.buffers.indexing import Index, cells_of, rows_of
from offline_data.buffers.keys import KeyLike, path_of
from offline_data.buffers.prefetch import Draw, Prefetcher
from offline_data.buffers.storage import GrowingStorage, ListStorage, TensorStorage
from offline_data.buffers.storage.dataset import pinnable
from offline_data.buffers.storage.rows import across, plain
from offline_data.buffers.storage.tensors import shaped
from offline_data.buffers.transforms import LABELS, Chain, Transform, through, transformed
from offline_data.buffers.unsupported import refuse
from offline_data.buffers.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    Writer,
    immutable,
)
from offline_data.errors import BufferUsageError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor
    from typing_extensions import Self

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.storage import Storage

__all__ = ["ReplayBuffer", "Transform"]

Batch = TypeVar("Batch", default=Any)
"""Type of the batches of a buffer."""

INDEX = "index"

LOOKAHEAD_MISSES = 2
"""Wrong predictions of the next batch in a row after which prefetching of rows stops."""

_TORCHRL = (
    "sample_unit checkpointer consume_after_n_samples shared compilable delayed_init "
    "service_backend service_backend_options transport transport_options"
)


class ReplayBuffer(Saves, Generic[Batch]):
    """Samples batches of rows from an immutable dataset or from a growing storage.

    A batch is gathered, then derived leaves and the sampler's leaves are added, then `collate_fn`
    and the transforms are applied. `index` and `priority_weight` are restored afterwards, unless a
    transform changes the batch size or the order of rows. As in TorchRL, batches of a growing
    storage have `index` if the buffer is a `TensorDictReplayBuffer` or its writer a TensorDict
    writer; `sample(return_info=True)` always returns it.

    Not supported, unlike in TorchRL: generations, consumption of rows, sample units, staleness
    sampling, buffers over RPC or Ray, `compilable`, and `HERReplayBuffer` (use `derived.relabel`).

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
        >>> from offline_data.buffers.storage import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
        >>> buffer.extend(TensorDict({"action": torch.tensor([7.0, 8.0, 9.0])}, [3]))
        tensor([0, 1, 2])
        >>> buffer[-1]["action"], buffer.sample()["action"].shape
        (tensor(9.), torch.Size([2]))
    """

    _default_writer: Callable[[], Writer] = RoundRobinWriter
    _tensorclass: Any = None  # of the rows that were written last, if they were one
    _first: tuple[Transform, ...] = ()
    """Applied to batches before the transforms; set by subclasses and `collate_fn`."""

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
        self._storage = as_storage(storage)
        ndim = getattr(self._storage, "ndim", 1)
        self._dim_extend = ndim - 1 if dim_extend is None else dim_extend
        if not 0 <= self._dim_extend < ndim:
            raise UsageError(
                f"dim_extend is {dim_extend}; expected 0 to {ndim - 1}, as the storage has ndim={ndim}"
            )
        self._sampler = as_sampler(sampler)
        if generator is not None:
            self._sampler.set_rng(generator)
        self._writer = as_writer(writer, self._storage, self._default_writer)
        self._derived = as_derived(derived)
        self._collates = collate_fn is not None
        self._first += () if collate_fn is None else (collate_fn,)
        self._chain = Chain()
        self._pin = pinnable(pin_memory)
        self._batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._prefetch = positive(prefetch, "prefetch") if prefetch else None
        self._ahead = Prefetcher(self._prefetch or 0)
        self._ended = False
        self._prefetched: Tensor | None = None
        self._misses = 0
        self._lock = self._new_lock()
        self._save_hooks: list[Any] = []
        self._load_hooks: list[Any] = []
        self._indexed = self._has_index()
        if getattr(self._sampler, "drop_last", False) and self._batch_size is None and self._grows:
            raise UsageError(
                "A sampler with drop_last=True needs a fixed batch size",
                hint="give batch_size to the buffer",
            )
        if ndim > 1 and self._derived:
            raise UsageError("derived=… needs a storage with ndim=1")
        if self._prefetch and self._batch_size is None:
            raise UsageError("prefetch needs a batch_size")
        if self._collates and self._derived and isinstance(self._storage, ListStorage):
            raise UsageError(
                "derived=… needs batches of tensors; a ListStorage gives collate_fn lists of rows"
            )
        first = either(transform, transform_factory, "transform")
        if first is not None:
            self.append_transform(first)

    @property
    def storage(self) -> Storage:
        """The storage of the rows."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler, which chooses the rows of a batch."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """The writer, which chooses where new rows are written."""
        return self._writer

    @property
    def batch_size(self) -> int | None:
        """Default number of rows in a batch."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """Number of rows written so far, including those since overwritten."""
        return self._writer.write_count

    def __len__(self) -> int:
        """Return the number of rows in the storage, including rows that samplers leave out."""
        return len(self._storage)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} rows, sampler={self._sampler!r}, "
            f"batch_size={self._batch_size})"
        )

    @property
    def dim_extend(self) -> int:
        """Time dimension of written data."""
        return self._dim_extend

    @overload
    def sample(
        self, batch_size: int | None = None, return_info: Literal[False] = False
    ) -> Batch: ...

    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[Batch, dict[Any, Any]]: ...

    @overload
    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> Any: ...

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,  # noqa: ARG002
    ) -> Any:
        """Return a random batch, in newly allocated memory.

        Args:
            batch_size: Number of rows, `B`; None: the buffer's `batch_size`.
            return_info: Whether to return `(batch, info)`, with the rows in `info["index"]`.
            include_info: Ignored, for compatibility with TorchRL: TensorDict batches always include
                the info.

        Returns:
            A TensorDict `[B]` (fewer rows at the end of an epoch), or what the transforms return.

        Raises:
            UsageError: No batch size, or one that differs from that of prefetched batches.
            BufferUsageError: Nothing to sample; also a `RuntimeError`.
        """
        draw, batch = self._take(self._size(batch_size))
        if not return_info:
            return batch
        return batch, {**self._sampler.info(batch, draw.info), "index": draw.rows}

    def batch_of(self, rows: Tensor, leaves: dict[Any, Tensor]) -> Batch:
        """Return the batch of `rows`, int64 `[B]`, drawn elsewhere, with the sampler's `leaves`."""
        with self._lock:
            gathered = self._gather(rows, indexed=True)
        batch: Batch = self._finish(Draw(rows, leaves, last=False), gathered, indexed=True)
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches until the epoch ends, which with a `RandomSampler` it never does."""
        size = self._size(None)
        last = False
        while not last:
            draw, batch = self._take(size)
            last = draw.last
            yield batch

    def __next__(self) -> Batch:
        """Return the next batch; raises `StopIteration` once after the last one of an epoch."""
        if self._ended:
            self._ended = False
            raise StopIteration
        batch: Batch
        draw, batch = self._take(self._size(None))
        self._ended = draw.last
        return batch

    def next(self) -> Batch | None:
        """Return the next batch, or None once after the last one of an epoch, as TorchRL does."""
        return next(self, None)

    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Any: ...

    @overload
    def __getitem__(self, index: Index) -> Batch: ...

    def __getitem__(self, index: Index) -> Any:
        """Return rows, transformed like batches, in the shape of the index (`[]` for an int).

        A leaf name, or a tuple of names, returns that leaf of all rows. A `ListStorage` returns its
        item unchanged for an int, and has one dimension. If the storage has several dimensions, the
        index refers to rows as written, `[E, T]`: `buffer[0, 3:5]` are two steps of environment 0.

        Raises:
            IndexError, UsageError: See `rows_of`.
            KeyError: No such leaf.
        """
        names = index if isinstance(index, tuple) else (index,)
        if names and all(isinstance(name, str) for name in names):
            return self._leaf(names)
        rows = self._cells(index)
        if rows.ndim == 0 and isinstance(self._storage, ListStorage):
            return through(self._chain.outward, self._as_written(self._storage.get(int(rows))))
        with self._lock:
            batch = shaped(self._gather, rows)
        return self._transformed(batch, {INDEX: rows})

    def _leaf(self, key: tuple[str, ...]) -> Any:
        """Return a leaf, or all leaves under a name, of all rows."""
        return plain(self[:])[key]

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return `rows` as one batch, for torch's `DataLoader`; see `loader.fetch`."""
        from offline_data.buffers.bridges.loader import fetch

        return fetch(self, rows)

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
                kept = kept[-self._growing.max_size :]  # earlier ones were overwritten by this call
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
            self._sampler.update_priority(rows, values)

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Append a transform; returns the buffer.

        Args:
            transform: Called with every batch; returns the batch for the next transform. The `inv`
                of a TorchRL `Transform` is called with data before it is written.
            invert: Whether to swap the two.

        Raises:
            UsageError: Not callable, or `invert=True` on a dataset, where it has no effect.
        """
        return self.insert_transform(len(self._chain.links), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Insert a transform before position `index`; see `append_transform`.

        Raises `UsageError` for an index outside `[-n, n]`, with `n` transforms.
        """
        chain = self._chain.insert(index, transform, invert=invert)
        if len(chain.outward) == len(self._chain.outward) and not self._grows:
            raise UsageError("invert=True transforms written data, and a dataset is immutable")
        self._chain = chain
        return self

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler and drop prefetched batches; returns the previous sampler."""
        before, self._sampler = self._sampler, as_sampler(sampler)
        self._drop_drawn()
        return before

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

        It includes the random state if the sampler has a seed or the buffer a `generator`; torch's
        global generator is saved by `torch.get_rng_state()`. For a dataset it has the id and no
        rows; rows of a growing storage are not copied.
        """
        with self._lock:
            storage = self._storage
            return {
                "kinds": self._kinds(),
                "storage": storage.state_dict() if isinstance(storage, GrowingStorage) else {},
                "sampler": self._sampler.state_dict(),
                "writer": self._writer.state_dict(),
                "transforms": self._chain.state_dict(),
                "batch_size": self._batch_size,
                "draws": [draw._asdict() for draw in self._ahead.drawn()],
                "ended": self._ended,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state returned by `state_dict`.

        Raises:
            UsageError: Other sampler, writer or dataset (nothing is changed); other transforms, or
                rows that do not match.
        """
        if state["kinds"] != self._kinds():
            raise UsageError(f"The state is of {state['kinds']}; this buffer has {self._kinds()}")
        with self._lock:
            self._drop_drawn()
            if isinstance(self._storage, GrowingStorage):
                self._storage.load_state_dict(state["storage"])
            self._writer.load_state_dict(state["writer"])
            self._sampler.load_state_dict(state["sampler"])
            self._chain.load_state_dict(state["transforms"])
            self._batch_size, self._ended = state["batch_size"], state["ended"]
            draws = [Draw(one["rows"].clone(), one["info"], one["last"]) for one in state["draws"]]
            self._ahead.restore(draws, self._make)

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
            if self._save_hooks:
                state["storage"] = {**state["storage"], "content": {"hooked": self._hooked()}}
            save_tree(state, Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from a folder written by `dumps`; executes nothing in it.

        Raises:
            NotFoundError, IntegrityError: No state, or an unreadable one.
            UsageError: See `load_state_dict`.
        """
        state = load_tree(Path(path))
        content = state["storage"].get("content")
        if isinstance(content, dict) and "hooked" in content:
            rows = through(self._load_hooks, content["hooked"])
            state["storage"]["content"] = TensorStorage(rows, ndim=self._growing.ndim)._content()
        parts = {name: part if name == "storage" else owned(part) for name, part in state.items()}
        self.load_state_dict(parts)

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Make `dumps` write `hook(rows)` instead of all rows, a TensorDict `[N]`.

        If the hook has the attributes `shift` and `is_full`, they are set before the call: the step
        that would be written next, and whether the storage is full. See `TED2Flat`.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Make `loads` apply `hook` to the rows, the inverse of a save hook; see `Flat2TED`."""
        self._load_hooks.append(hook)

    def _hooked(self) -> Any:
        storage = self._growing
        rows = storage.get(slice(None)).exclude(INDEX)
        steps, full = len(storage) // storage.width, len(storage) == storage.max_size
        for hook in self._save_hooks:
            if hasattr(hook, "shift"):
                hook.shift = getattr(self._writer, "cursor", 0) if full else steps
                hook.is_full = full
            rows = hook(rows)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the lock."""
        with self._lock:
            return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = self._new_lock()

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None or batch_size == self._batch_size:
            if self._batch_size is None:
                raise BufferUsageError(
                    "No batch size: give one to the buffer or to sample(batch_size)"
                )
            return self._batch_size
        if self._prefetch:
            raise UsageError(
                f"Batch size is {batch_size}, but batches of {self._batch_size} are prefetched"
            )
        return positive(batch_size, "batch_size")

    def _take(self, size: int) -> tuple[Draw, Any]:
        with self._lock:
            if size != self._batch_size:
                draw, future = self._draw(size), None
            else:
                draw, future = self._ahead.take(self._next_draw, self._make)
            if future is None and getattr(self._storage, "needs_io", False):
                self._look_ahead(draw, size)
            gathered = self._gather(draw.rows) if future is None else None
        return draw, self._finish(draw, gathered) if future is None else future.result()

    def _next_draw(self) -> Draw:
        return self._draw(self._batch_size or self._size(None))

    def _draw(self, size: int) -> Draw:
        rows, info = self._sampler.sample(self._storage, size)
        return Draw(rows, info, self._sampler.ran_out)

    def _look_ahead(self, draw: Draw, size: int) -> None:
        """Prefetch the rows of the likely next batch from disk while this batch is made.

        The prediction is wrong if the sampler's generator is used elsewhere between two batches.
        """
        if self._prefetched is not None:
            self._misses = 0 if torch.equal(self._prefetched, draw.rows) else self._misses + 1
        known = self._misses < LOOKAHEAD_MISSES
        self._prefetched = self._sampler.lookahead(self._storage, size) if known else None
        if self._prefetched is not None:
            storage: Any = self._storage  # one that needs I/O
            storage.prefetch_rows(self._prefetched)

    def _make(self, draw: Draw) -> Any:
        return self._finish(draw, self._gather(draw.rows))

    def _gather(self, rows: Tensor, *, indexed: bool = False) -> Any:
        if self._collates and isinstance(self._storage, ListStorage):
            return self._storage.get(rows)
        batch = self._storage.gather(rows)
        for derive in self._derived:
            batch = derive(batch, rows, self._storage)
        if not (self._indexed or indexed) and isinstance(batch, TensorDictBase):
            batch.pop(INDEX)
        return batch

    def _has_index(self) -> bool:
        """Return True if batches have `index`, as in TorchRL."""
        writers = TensorDictRoundRobinWriter, TensorDictMaxValueWriter
        return not self._grows or isinstance(self._writer, writers)

    def _cells(self, index: Any) -> Tensor:
        """Return the row numbers at an index, int64 in its shape."""
        if not self._dim_extend:
            ndim = getattr(self._storage, "ndim", 1)
            return (
                rows_of(index, len(self)) if ndim == 1 else cells_of(index, self._growing.numbers())
            )
        return cells_of(index, self._growing.numbers().transpose(0, self._dim_extend))

    def _finish(self, draw: Draw, batch: Any, *, indexed: bool = False) -> Any:
        if draw.info and isinstance(batch, TensorDictBase):
            self._sampler.complete(batch, draw.info)
        return self._transformed(batch, {INDEX: draw.rows, **draw.info}, indexed=indexed)

    def _transformed(
        self, batch: Any, labels: dict[Any, Tensor] | None = None, *, indexed: bool = False
    ) -> Any:
        names: tuple[str, ...] = LABELS
        if labels is not None and not (self._indexed or indexed):
            names = LABELS[1:]
            labels = {name: leaf for name, leaf in labels.items() if name in names}
            batch = self._as_written(batch)
        batch = transformed((*self._first, *self._chain.outward), batch, labels, names)
        return batch.pin_memory() if self._pin else batch

    def _as_written(self, batch: Any) -> Any:
        """Return rows of a tensorclass as such, unless batches have `index`, which it has not."""
        if self._tensorclass is None or self._indexed or not isinstance(batch, TensorDictBase):
            return batch
        fields = [field.name for field in self._tensorclass.fields()]
        return self._tensorclass.from_tensordict(batch.select(*fields, strict=False))

    def _drop_drawn(self) -> None:
        self._ahead.restore((), self._make)
        self._ended = False

    @property
    def _grows(self) -> bool:
        return isinstance(self._storage, GrowingStorage)

    @property
    def _growing(self) -> GrowingStorage:
        if not isinstance(self._storage, GrowingStorage):
            raise immutable("writing")
        return self._storage

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
            instead = self._next_draw()
        except UsageError:  # it is raised again when a batch is asked for
            return None
        return instead._replace(last=draw.last or instead.last)

    def _new_lock(self) -> Any:
        """Return a lock for reads and writes; a dataset needs none."""
        return threading.RLock() if self._grows else nullcontext()

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
