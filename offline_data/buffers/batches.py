"""`BatchSource`: batches of the rows of a storage, drawn, gathered, prefetched and transformed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import torch
from tensordict import TensorDictBase
from torch import Tensor
from typing_extensions import TypeVar

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.buffers.arguments import as_derived, as_sampler
from offline_data.buffers.bridges.parts import bridge
from offline_data.buffers.prefetch import Draw, Prefetcher
from offline_data.buffers.writers import immutable
from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.normalize import Normalizer
from offline_data.rows.devices import pinnable
from offline_data.rows.indexing import Index, cells_of, positive, rows_of
from offline_data.rows.keys import NestedKey
from offline_data.rows.samplers import Sampler
from offline_data.rows.state import Saves
from offline_data.rows.storage import GrowingStorage, ListStorage, Storage
from offline_data.rows.storage.base import InTime
from offline_data.rows.storage.rows import plain
from offline_data.rows.storage.tensors import gather_cells
from offline_data.rows.transforms import LABELS, Chain, Transform, apply_transforms, through

if TYPE_CHECKING:
    from typing_extensions import Self


Batch = TypeVar("Batch", default=Any)
"""Type of the batches of a buffer."""

INDEX = "index"

LOOKAHEAD_MISSES = 2
"""Wrong predictions of the next batch in a row after which prefetching of rows stops."""


class BatchSource(Saves, Generic[Batch]):
    """Samples batches of the rows of a storage; a `ReplayBuffer` also writes them.

    For the arguments see `ReplayBuffer`.
    """

    _tensorclass: Any = None  # of the rows that were written last, if they were one
    _first: tuple[Transform, ...] = ()
    """Applied to batches before the transforms; set by subclasses and `collate_fn`."""
    _in_time: tuple[Storage, InTime] | None = None  # the storage as derived functions see it
    _indexed: bool
    """Whether batches have the leaf `index`."""
    _dim_extend: int

    def __init__(
        self,
        storage: Storage,
        *,
        sampler: Sampler,
        collate_fn: Transform | None,
        batch_size: int | None,
        prefetch: int | None,
        transform: Transform | None,
        pin_memory: bool,
        generator: torch.Generator | None,
        derived: Derived | Iterable[Derived],
    ) -> None:
        self._storage = storage
        self._sampler = sampler
        if generator is not None:
            self._sampler.set_rng(generator)
        self._derived = as_derived(derived)
        for derive in self._derived:
            if isinstance(derive, Normalizer) and not self._grows:
                derive.bind(storage)
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
        if getattr(sampler, "drop_last", False) and self._batch_size is None and self._grows:
            raise UsageError(
                "Samplers with drop_last=True must work with a predictable batch-size, and the buffer "
                "has none",
                hint="give batch_size to the buffer",
            )
        if getattr(storage, "ndim", 1) > 1 and self._derived:
            raise UsageError("derived=… needs a storage with ndim=1")
        if self._prefetch and self._batch_size is None:
            raise UsageError("prefetch needs a batch_size")
        if self._collates and self._derived and isinstance(storage, ListStorage):
            raise UsageError(
                "derived=… needs batches of tensors; a ListStorage gives collate_fn lists of rows"
            )
        if transform is not None:
            self.append_transform(transform)

    @property
    def storage(self) -> Storage:
        """The storage of the rows."""
        return self._storage

    @property
    def _storage(self) -> Storage:
        return self._rows_storage

    @_storage.setter
    def _storage(self, storage: Any) -> None:
        if hasattr(storage, "gather"):
            self._rows_storage: Storage = storage
        else:  # a program written for TorchRL sets one of TorchRL's
            self.set_storage(storage)

    @property
    def sampler(self) -> Sampler:
        """The sampler, which chooses the rows of a batch."""
        return self._sampler

    @property
    def batch_size(self) -> int | None:
        """Default number of rows in a batch."""
        return self._batch_size

    def __len__(self) -> int:
        """Return the number of rows in the storage, including rows that samplers leave out."""
        return len(self._storage)

    @overload
    def sample(
        self, batch_size: int | None = None, return_info: Literal[False] = False
    ) -> Batch: ...

    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[Batch, Any]: ...

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
        return batch, self._info(draw, batch)

    def _info(self, draw: Draw, batch: Any) -> Any:
        return {**self._sampler.info(batch, draw.info), "index": draw.rows}

    def batch_of(self, rows: Tensor, leaves: dict[Any, Tensor]) -> Batch:
        """Return the batch of `rows`, int64 `[B]`, drawn elsewhere, with the sampler's `leaves`."""
        with self._lock:
            gathered = self._gather(rows, indexed=True)
        batch: Batch = self._finish(Draw(rows, leaves, last=False), gathered, indexed=True)
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches until the epoch ends, which with a `RandomSampler` it never does."""
        size = self._size_of_iteration()
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
        draw, batch = self._take(self._size_of_iteration())
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
        item unchanged for an int, and has one dimension. Rows of a growing storage have `index` if the
        writer is a TensorDict writer, as `buffer.storage[index]` has. If the storage has several dimensions, the
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
        return self.at_rows(rows)

    def at_rows(self, rows: Tensor) -> Any:
        """Return the rows with these numbers, int64 of any shape, transformed; see `buffer[…]`."""
        with self._lock:
            batch = gather_cells(self._gather, rows)
        unlabelled = self._indexed and not getattr(self._storage, "indexed", True)
        if unlabelled and isinstance(batch, TensorDictBase):  # rows of a TensorDictReplayBuffer
            batch.pop(INDEX)
        return self._transform_batch(batch, {INDEX: rows})

    def _leaf(self, key: tuple[str, ...]) -> Any:
        """Return a leaf, or all leaves under a name, of all rows."""
        return plain(self[:])[key]

    def query(
        self,
        predicate: Callable[[Any], bool] | None = None,
        *,
        trajectory_key: NestedKey | None = None,
    ) -> list[Any]:
        """Return the trajectories that a predicate selects, as `torchrl.data.Trajectory`s.

        They are copies, transformed like `buffer[rows]`, oldest first; those of a ring buffer are
        whole over its end, and those of each parallel environment come together.

        Args:
            predicate: Expression of `offline_data.traj`, such as `traj.reward.sum() > 100`, or a
                function that takes a trajectory; None: all.
            trajectory_key: Leaf of trajectory numbers; None: the trajectories of slices.

        Raises:
            UsageError: No such leaf; or other leaves than the stored episodes of a dataset.
            TypeError: Rows that are not TensorDicts.
            MissingDependencyError: torchrl is not installed.
        """
        found: list[Any] = bridge("query").query(self, predicate, trajectory_key)
        return found

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Return True if a batch can be drawn now; raises `BufferUsageError` without a size."""
        with self._lock:
            return self._sampler.can_sample(self._storage, self._size(batch_size))

    def set_rng(self, generator: torch.Generator) -> None:
        """Make the sampler use `generator`; prefetched batches are dropped."""
        with self._lock:
            self._drop_drawn()
            self._sampler.set_rng(generator)

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return `rows` as one batch, for torch's `DataLoader`; see `loader.fetch`."""
        from offline_data.buffers.bridges.loader import fetch

        return fetch(self, rows)

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

    @property
    def transform(self) -> tuple[Transform, ...]:
        """The transforms, in the order in which they are called with a batch."""
        return tuple(link.transform for link in self._chain.links)

    def set_storage(self, storage: Any) -> Any:  # noqa: ARG002
        """Raise `UsageError`; overridden by buffers that can replace their storage."""
        raise UsageError(f"The storage of a {type(self).__name__} cannot be replaced")

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler and drop prefetched batches; returns the previous sampler."""
        before, self._sampler = self._sampler, as_sampler(sampler)
        self._drop_drawn()
        return before

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the lock."""
        with self._lock:
            return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = self._new_lock()

    def _prepare(self) -> None:
        """Compute what derived leaves need of the whole dataset, before workers start."""
        for derive in self._derived:
            if isinstance(derive, Normalizer):
                derive.prepare()

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None or batch_size == self._batch_size:
            if self._batch_size is None:
                raise BufferUsageError(
                    "batch_size not specified; expected one of the buffer, or of this call",
                    hint="give one to the buffer, or call sample(batch_size)",
                )
            return self._batch_size
        if self._prefetch:
            raise UsageError(
                f"Batch size is {batch_size}, but batches of {self._batch_size} are prefetched"
            )
        return positive(batch_size, "batch_size")

    def _size_of_iteration(self) -> int:
        if self._batch_size is None:
            raise BufferUsageError(
                "Cannot iterate over the replay buffer. Batch_size was not specified",
                hint="give batch_size to the buffer",
            )
        return self._batch_size

    def _take(self, size: int) -> tuple[Draw, Any]:
        with self._lock:
            if size != self._batch_size:
                draw, future = self._draw(size), None
            else:
                draw, future = self._ahead.take(partial(self._draw, size), self._make)
            if future is None and getattr(self._storage, "needs_io", False):
                self._look_ahead(draw, size)
            gathered = self._gather(draw.rows) if future is None else None
        return draw, self._finish(draw, gathered) if future is None else future.result()

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
        if self._derived:
            batch = self._with_derived(self._derived, batch, rows)
        if not (self._indexed or indexed) and isinstance(batch, TensorDictBase):
            batch.pop(INDEX)
        return batch

    def _with_derived(self, functions: Iterable[Derived], batch: Any, rows: Tensor) -> Any:
        storage: Any = self._storage
        if isinstance(storage, GrowingStorage):
            if self._in_time is None or self._in_time[0] is not storage:
                self._in_time = storage, InTime(storage)
            storage = self._in_time[1]
            rows = storage.positions(rows)
        for derive in functions:
            batch = derive(batch, rows, storage)
        return batch

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
        return self._transform_batch(batch, {INDEX: draw.rows, **draw.info}, indexed=indexed)

    def _transform_batch(
        self, batch: Any, labels: dict[Any, Tensor] | None = None, *, indexed: bool = False
    ) -> Any:
        names: tuple[str, ...] = LABELS
        if labels is not None and not (self._indexed or indexed):
            names = LABELS[1:]
            labels = {name: leaf for name, leaf in labels.items() if name in names}
            batch = self._as_written(batch)
        batch = apply_transforms((*self._first, *self._chain.outward), batch, labels, names)
        return batch.pin_memory() if self._pin else batch

    def _as_written(self, batch: Any) -> Any:
        """Return rows as the tensorclass they were written as, unless batches include `index`."""
        if self._tensorclass is None or self._indexed or not isinstance(batch, TensorDictBase):
            return batch
        fields = [field.name for field in self._tensorclass.fields()]
        return self._tensorclass.from_tensordict(batch.select(*fields, strict=False))

    def _drop_drawn(self) -> None:
        self._restore(())
        self._ended = False

    def _restore(self, draws: Iterable[Draw]) -> None:
        """Replace the draws whose batches were not returned yet."""
        self._ahead.restore(draws, self._make)

    @property
    def _grows(self) -> bool:
        return isinstance(self._storage, GrowingStorage)

    @property
    def _growing(self) -> GrowingStorage:
        if not isinstance(self._storage, GrowingStorage):
            raise immutable("writing")
        return self._storage

    def _new_lock(self) -> Any:
        return threading.RLock() if self._grows else nullcontext()
