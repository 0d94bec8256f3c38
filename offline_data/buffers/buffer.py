"""`ReplayBuffer`: a storage, a sampler, a writer and transforms, under TorchRL's names."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase, is_tensorclass

from offline_data.buffers.arguments import (
    as_sampler,
    as_storage,
    as_writer,
    either,
    positive,
)
from offline_data.buffers.checkpoint import Saves, load_tree, owned, save_tree
from offline_data.buffers.indexing import Index, cells_of, rows_of
from offline_data.buffers.keys import KeyLike, as_key, path_of
from offline_data.buffers.prefetch import Draw, Prefetcher
from offline_data.buffers.samplers import Sampler
from offline_data.buffers.samplers.reduce import one_per_trajectory
from offline_data.buffers.storage import GrowingStorage, ListStorage, TensorStorage
from offline_data.buffers.storage.dataset import pinnable
from offline_data.buffers.storage.rows import across, plain
from offline_data.buffers.storage.tensors import shaped
from offline_data.buffers.trajectories import MASK
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
from offline_data.episodes.fields import join_key
from offline_data.errors import BufferUsageError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor
    from typing_extensions import Self

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.storage import Storage

__all__ = ["ReplayBuffer", "TensorDictReplayBuffer", "Transform"]

INDEX = "index"

LOOKAHEAD_MISSES = 2
"""Batches in a row that were not those looked ahead for, after which no more are looked for."""

_MASKS = (MASK, ("collector", MASK))  # of steps in padded trajectories

_TORCHRL = (
    "sample_unit checkpointer consume_after_n_samples shared compilable delayed_init "
    "service_backend service_backend_options transport transport_options"
)


class ReplayBuffer(Saves):
    """Batches of rows: of a dataset that never changes, or of a storage that grows meanwhile.

    A batch is gathered, gets derived leaves, then those of the sampler; then `collate_fn` and the
    transforms see it. Whatever they do to `index` and `priority_weight`, these two are set again
    afterwards, unless a transform gives another batch size or another order of rows. As in TorchRL,
    batches of rows that were written have `index` if the buffer is a `TensorDictReplayBuffer` or its
    writer is one of TensorDicts; `sample(return_info=True)` returns it in any case.

    TorchRL's generations, consumption of rows, sample units, sampling by staleness, buffers behind RPC
    or Ray, `compilable` and `HERReplayBuffer` (`derived.relabel` relabels) have no counterpart.

    Several threads may use a buffer that grows. A change waits for batches under way, and makes
    again those prefetched that it concerns: a batch that is handed out has its rows as they are
    then. Slices with rows that were written are drawn anew.

    Args:
        storage: Storage that batches come from, or what makes it; None: a `ListStorage` of 1000
            rows.
        sampler: Which rows they have, or what makes the sampler; None: a `RandomSampler`.
        writer: Writer of new rows, or what makes it; None: a `RoundRobinWriter`, for a dataset an
            `ImmutableDatasetWriter`, the only one it takes.
        collate_fn: Called with every batch, before `transform`; with the list of rows where the
            storage is a `ListStorage`.
        batch_size: Rows of a batch where `sample` is not told; iteration needs it.
        prefetch: Batches made ahead, by as many threads; rows and their order stay the same. Rows
            that are written are in batches drawn later, up to `prefetch` after the next one.
        transform: Called with every batch; see `append_transform`.
        transform_factory: Makes the transform, instead.
        pin_memory: Whether batches are put into page-locked memory, after all transforms.
        generator: Random generator of the sampler, instead of its own.
        derived: Leaves computed for a batch from other rows of the storage, first: one function, or
            several in this order.
        dim_extend: Dimension of written data that is time; None: the last one of the storage's
            `ndim`, so that rows of environments are `[E, T]`, as `buffer[:]` gives them.
        **torchrl: Other arguments of TorchRL's signature, with their defaults.

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
    """Applied to batches before the transforms, by a subclass and the collate function."""

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
        self._derived = (derived,) if callable(derived) else tuple(derived)
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
                "A sampler with drop_last=True needs batches of a size known before",
                hint="give batch_size to the buffer",
            )
        if ndim > 1 and self._derived:
            raise UsageError("derived=… looks along rows, and the storage has environments abreast")
        if self._prefetch and self._batch_size is None:
            raise UsageError("prefetch needs a batch_size: batches are made ahead of time")
        if self._collates and self._derived and isinstance(self._storage, ListStorage):
            raise UsageError(
                "derived=… needs batches of tensors, and collate_fn gets lists of rows"
            )
        first = either(transform, transform_factory, "transform")
        if first is not None:
            self.append_transform(first)

    @property
    def storage(self) -> Storage:
        """Storage that batches come from."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler, which decides which rows a batch has."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """The writer, which decides where new rows go."""
        return self._writer

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch where `sample` is not told."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """How many rows were written, those that were written over included."""
        return self._writer.write_count

    def __len__(self) -> int:
        """Return the number of rows of the storage, whether samplers draw them or not."""
        return len(self._storage)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} rows, sampler={self._sampler!r}, "
            f"batch_size={self._batch_size})"
        )

    @property
    def dim_extend(self) -> int:
        """Dimension of written data that is time."""
        return self._dim_extend

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,  # noqa: ARG002
    ) -> Any:
        """Draw a batch, in memory of its own.

        Args:
            batch_size: Rows, `B`; None: the buffer's.
            return_info: Whether to return `(batch, info)`, where `info["index"]` has the rows.
            include_info: TorchRL's; without effect: a TensorDict has what it asks for.

        Returns:
            A TensorDict `[B]` (or fewer where an epoch ends), or what transforms made of it.

        Raises:
            UsageError: No batch size, or one that is not the one prefetched; nothing to sample
                (`BufferUsageError`, which is a `RuntimeError` too).
        """
        draw, batch = self._take(self._size(batch_size))
        if not return_info:
            return batch
        return batch, {**self._sampler.info(batch, draw.info), "index": draw.rows}

    def batch_of(self, rows: Tensor, leaves: dict[Any, Tensor]) -> Any:
        """Make the batch of rows, int64 `[B]`, that a sampler drew elsewhere with these leaves."""
        with self._lock:
            gathered = self._gather(rows, indexed=True)
        return self._finish(Draw(rows, leaves, last=False), gathered, indexed=True)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the sampler says that an epoch ends; a `RandomSampler` never does."""
        size = self._size(None)
        last = False
        while not last:
            draw, batch = self._take(size)
            last = draw.last
            yield batch

    def __next__(self) -> Any:
        """Return the next batch; after the last one of an epoch once `StopIteration`."""
        if self._ended:
            self._ended = False
            raise StopIteration
        draw, batch = self._take(self._size(None))
        self._ended = draw.last
        return batch

    def next(self) -> Any:
        """Return the next batch, or None once after the last one of an epoch, as TorchRL's does."""
        return next(self, None)

    def __getitem__(self, index: Index) -> Any:
        """Return rows, transformed as batches are, in the shape of the index, `[]` for an int.

        A name, or a tuple of names, gives that leaf of all rows. A `ListStorage` gives its row as it
        is for an int, and knows one dimension. Of a storage with `ndim` the index is one of the rows
        as they were written, `[E, T]`: `buffer[0, 3:5]` are two steps of the first environment.

        Raises:
            IndexError, UsageError: See `rows_of`.
            KeyError: There is no such leaf.
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
        """Return a leaf, or all leaves below a name, of all rows."""
        return plain(self[:])[key]

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return the rows that a `DataLoader` asks for, as one batch; see `loader.fetch`."""
        from offline_data.buffers.bridges.loader import fetch

        return fetch(self, rows)

    def add(self, data: Any) -> Any:
        """Write one row: a TensorDict `[]`, a tensor, …, as the storage takes it; see `extend`.

        Returns:
            Its number; None where the writer does not keep it; an empty tensor where a transform
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
        """Write rows, in their order.

        Args:
            data: `[B]` rows: a TensorDict, a tensor, a dict or tuple of tensors, or a list of rows;
                copied. The transforms' `inv` see it first, from the last to the first.

        Returns:
            Row numbers, int64 `[B]` (`[E, T]` where the storage has `ndim`); -1 for rows that the
            writer does not keep. Empty if a transform returned None.

        Raises:
            UsageError: Data that do not fit the rows that are there.
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
                kept = kept[-self._growing.max_size :]  # more come round to rows of the same call
                changed.append(kept)
                self._sampler.extend(kept)
        return rows.transpose(0, self._dim_extend) if self._dim_extend else rows

    def __setitem__(self, index: Index, value: Any) -> None:
        """Change rows that are there; transforms' `inv` see the values first.

        Raises:
            IndexError, UsageError: No such row, or values that do not fit.
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
        """Change one leaf of rows that are there; raises as assigning rows does."""
        self._set_leaves(index, {path_of(key): value})

    def set_(self, key: KeyLike, value: Any) -> None:
        """Change one leaf of all rows; raises as assigning rows does."""
        self._set_leaves(slice(None), {path_of(key): value})

    def update_(self, data: TensorDictBase) -> None:
        """Change some leaves of all rows, those that `data` has; raises as assigning rows does."""
        self._set_leaves(slice(None), dict(data.items(include_nested=True, leaves_only=True)))

    def _set_leaves(self, index: Index, leaves: dict[Any, Any]) -> None:
        storage = self._growing
        if not isinstance(storage, TensorStorage):
            raise UsageError(
                f"A {type(storage).__name__} has no leaves of all rows",
                hint="buffer[rows] = … changes whole rows",
            )
        with self._changing() as changed:
            rows = self._cells(index)
            storage.set_leaves(_places(rows, storage), leaves)
            changed.append(rows.reshape(-1))

    def stats(self) -> dict[str, Any]:
        """Return how many rows there are (`size`), can be (`capacity`) and were written, and so on."""
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
        """Drop all rows, and batches that were drawn ahead; begin again at row 0.

        `empty_write_count`: whether `write_count` begins again too. Raises `ImmutableError`.
        """
        with self._lock:
            self._writer.empty(empty_write_count)
            self._drop_drawn()
            self._growing.empty()
            self._sampler.empty()

    def update_priority(self, index: Tensor | int, priority: Tensor | float) -> None:
        """Tell the sampler new priorities; batches drawn later follow them.

        Args:
            index: Rows, of any shape; -1, for rows that were not kept, is passed over.
            priority: One for all, one for each, or several for each, in more dimensions than those
                of `index`, of which the sampler makes one. Raises `UsageError`.
        """
        rows, values = torch.as_tensor(index, device="cpu"), torch.as_tensor(priority).detach()
        kept = rows >= 0
        if not bool(kept.all()):
            rows, values = rows[kept], values[kept.to(values.device)] if values.ndim else values
        with self._lock:
            self._sampler.update_priority(rows, values)

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform after the others; returns the buffer.

        Args:
            transform: Called with every batch, returns what the next one gets. If it is a TorchRL
                `Transform`, its `inv` is called with what is written, before it is.
            invert: Whether to swap the two.

        Raises:
            UsageError: It cannot be called, or `invert` leaves nothing to do on a dataset.
        """
        return self.insert_transform(len(self._chain.links), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform before the one at `index`; see `append_transform`.

        Raises `UsageError` for an index that is not in `[-n, n]`, of `n` transforms.
        """
        chain = self._chain.insert(index, transform, invert=invert)
        if len(chain.outward) == len(self._chain.outward) and not self._grows:
            raise UsageError("invert=True transforms what is written, and a dataset is immutable")
        self._chain = chain
        return self

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Draw with another sampler, dropping batches drawn ahead; returns the one before."""
        before, self._sampler = self._sampler, as_sampler(sampler)
        self._drop_drawn()
        return before

    def set_storage(self, storage: Storage, collate_fn: Any = None) -> Storage:
        """Take rows from another storage, and let the writer write there; returns the one before.

        Args:
            storage: Of any kind: a writer is made, or replaced by one that refuses, where the buffer
                begins or ceases to grow.
            collate_fn: Instead of the one before; None: that one stays.
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
        """Write with another writer; returns the one before. Raises `ImmutableError`."""
        if not isinstance(writer, ImmutableDatasetWriter):
            self._growing  # noqa: B018 - raises for a dataset
        before, self._writer = self._writer, as_writer(writer, self._storage, self._default_writer)
        self._indexed = self._has_index()
        return before

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here: the next batches will be the same.

        The sampler's randomness is in it if the sampler has a seed, or the buffer a `generator`;
        torch's global generator is saved by `torch.get_rng_state()`. Of a dataset the id is in it
        and no rows; rows of a storage that grows are not copied.
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
        """Resume from a state that `state_dict` returned.

        Raises:
            UsageError: Another sampler, writer or dataset, with nothing changed; other transforms,
                or rows that do not fit.
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
        """Write `state_dict()` to a folder, whole or not at all, as JSON and bytes of tensors.

        Args:
            path: Absent, empty, or a folder that was written before, which is replaced.

        Raises:
            UsageError: Other files in the folder; something that only a pickle could hold.
            NoSpaceError, AccessError: The disk.
        """
        with self._lock:
            state = self.state_dict()
            if self._save_hooks:
                state["storage"] = {**state["storage"], "content": {"hooked": self._hooked()}}
            save_tree(state, Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from what `dumps` wrote; nothing in it is executed.

        Raises:
            NotFoundError, IntegrityError: There is no state, or it cannot be read.
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
        """Let `dumps` write what `hook` makes of all rows, TensorDict `[N]`, instead of them.

        Its attributes `shift` and `is_full` are set before, where it has them: the step that would be
        written next, and whether that one is the oldest. See `TED2Flat`.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Let `loads` make rows of what a save hook made; see `Flat2TED`."""
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
        """Leave threads behind, and take along what they were told to draw."""
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
                f"A batch of {batch_size} was asked for, and batches of {self._batch_size} are "
                "prefetched"
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
        """Have the rows that are likely to come next read from a disk while this batch is made.

        Others come if something else draws from the sampler's generator between two batches.
        """
        if self._prefetched is not None:
            self._misses = 0 if torch.equal(self._prefetched, draw.rows) else self._misses + 1
        known = self._misses < LOOKAHEAD_MISSES
        self._prefetched = self._sampler.lookahead(self._storage, size) if known else None
        if self._prefetched is not None:
            storage: Any = self._storage  # of a kind that can need io
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
        """Return True if batches have `index`: where TorchRL's have."""
        writers = TensorDictRoundRobinWriter, TensorDictMaxValueWriter
        return not self._grows or isinstance(self._writer, writers)

    def _cells(self, index: Any) -> Tensor:
        """Return the rows of an index, int64 in its shape."""
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

    def _inward(self, data: Any, what: str) -> Any:
        """Return rows to write as the transforms' `inv` make them; None: nothing is written."""
        if isinstance(self._writer, ImmutableDatasetWriter):
            raise immutable(what)
        row = data[0] if isinstance(data, list) and data else data
        self._tensorclass = type(row) if is_tensorclass(row) else None
        steps = self._chain.inward
        if steps and isinstance(data, TensorDictBase):
            data = data.copy()  # transforms set leaves in it
        for step in steps:
            data = None if data is None else step(data)
        return data

    @contextmanager
    def _changing(self) -> Iterator[list[Tensor]]:
        """Keep batches under way apart from a change of the rows that the block puts in the list."""
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
        """Return a draw as it is after `rows` were written: another one where these cut it apart."""
        if not (self._sampler.keeps_together and _has(draw, rows)):
            return draw
        try:
            instead = self._next_draw()
        except UsageError:  # it is raised again when a batch is asked for
            return None
        return instead._replace(last=draw.last or instead.last)

    def _new_lock(self) -> Any:
        """Make what keeps reading and writing apart; a dataset needs nothing."""
        return threading.RLock() if self._grows else nullcontext()

    def _kinds(self) -> dict[str, Any]:
        """Name what a state must be of to fit this buffer."""
        kinds: dict[str, Any] = {
            "sampler": type(self._sampler).__name__,
            "writer": type(self._writer).__name__,
        }
        return kinds if self._grows else {**kinds, **self._origin()}

    def _origin(self) -> dict[str, Any]:
        """Return what tells which rows these are, of a storage that never changes."""
        return {"rows": len(self)}


def _places(rows: Tensor, storage: GrowingStorage) -> Any:
    """Return the index, in a storage's own dimensions, of rows of any shape."""
    numbers = storage.numbers()
    return rows if numbers.ndim == 1 else torch.unravel_index(rows, numbers.shape)


def _has(draw: Draw, rows: Tensor) -> bool:
    return bool(torch.isin(draw.rows, rows).any())


class TensorDictReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` with priorities in the data; its default writer: `TensorDictRoundRobinWriter`.

    `priority_key` is the leaf that has priorities, in what is written and in what
    `update_tensordict_priority` gets; of several numbers in a row the sampler makes one.
    """

    _default_writer = TensorDictRoundRobinWriter

    def __init__(
        self,
        storage: Storage | Callable[[], Storage] | None = None,
        *,
        priority_key: KeyLike = "td_error",
        **options: Any,
    ) -> None:
        super().__init__(storage, **options)
        self.priority_key = as_key(priority_key)

    def _has_index(self) -> bool:
        return True

    def add(self, data: Any) -> Any:
        """Write one row, with its priority if it has one; see `ReplayBuffer.add`."""
        row = super().add(data)
        if isinstance(row, int) and self._prioritized:
            self._take_priority([data], torch.tensor([row]))
        elif isinstance(row, torch.Tensor) and row.numel():
            self._take_priority(data, row)
        return row

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Tensor:
        """Write rows, with their priorities if they have some; see `ReplayBuffer.extend`.

        `update_priority=False`: whatever they have, rows get the priority of new ones.
        """
        rows = super().extend(data)
        if update_priority is not False and len(rows):
            self._take_priority(data, rows)
        return rows

    def update_tensordict_priority(self, data: Any) -> None:
        """Tell the sampler, if it has a use for them, the priorities of a batch `[B, …]` or `[]`.

        A row that is a trajectory `[T]` has one priority: the sampler's `reduction` makes it of
        those of its steps, padding left out where the batch has a `mask`.

        Raises:
            UsageError: `index` or `priority_key` is missing, or an invalid priority.
        """
        if not self._prioritized:
            return
        data = data if data.batch_dims else data.unsqueeze(0)
        index = data.get("index", None)
        if index is None or data.get(self.priority_key, None) is None:
            raise UsageError(
                f"Priorities are in the leaf {join_key(self.priority_key)}, beside index; found "
                f"{', '.join(map(str, data.keys()))}",
                hint="TensorDictReplayBuffer(priority_key=…) names the leaf",
            )
        self._take_priority(data, index.reshape(len(index), -1)[:, 0])

    @property
    def _prioritized(self) -> bool:
        return type(self._sampler).update_priority is not Sampler.update_priority

    def _take_priority(self, data: Any, rows: Tensor) -> None:
        if not self._prioritized:
            return
        if isinstance(data, list | tuple):
            has = [isinstance(row, TensorDictBase) and self.priority_key in row for row in data]
            data = torch.stack([*data]) if data and all(has) else None
        found = data.get(self.priority_key, None) if hasattr(data, "batch_dims") else None
        if found is None:
            return
        mask = next((one for key in _MASKS if (one := data.get(key, None)) is not None), None)
        reduction = getattr(self._sampler, "reduction", None)
        if mask is not None and reduction and 1 < mask.ndim <= found.ndim:
            found = one_per_trajectory(found, mask, reduction)
        self.update_priority(rows, found)
