"""`Buffer`: batches of the rows of a storage, drawn, gathered, prefetched and transformed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, overload

import torch
from tensordict import TensorDictBase
from torch import Tensor
from typing_extensions import TypeVar

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.base.plurals import plural
from offline_data.buffers.arguments import as_derived, as_immutable_writer, as_sampler
from offline_data.buffers.bridges.parts import bridge
from offline_data.buffers.prefetch import DRAWS, Draw, Prefetcher, draw_of
from offline_data.buffers.views.frames import show_frames_of_batches
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer, immutable, refused
from offline_data.raw.tensordict_memmap import is_torchrl_dump
from offline_data.rows import fields
from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.normalize import Normalizer
from offline_data.rows.devices import pinnable
from offline_data.rows.indexing import Index, gather_cells, positive, rows_of
from offline_data.rows.keys import NestedKey, no_feature, path_of
from offline_data.rows.samplers import Sampler
from offline_data.rows.selection import SubsetStorage
from offline_data.rows.state import PART, Saves
from offline_data.rows.storage import DatasetStorage, Storage
from offline_data.rows.trajectories import TrajectoryStorage
from offline_data.rows.transforms import LABELS, Chain, Transform, apply_transforms

if TYPE_CHECKING:
    from typing_extensions import Self


Batch = TypeVar("Batch", default=Any)  # type of the batches of a buffer

INDEX = "index"

LOOKAHEAD_MISSES = 2
"""Wrong predictions of the next batch in a row after which prefetching of rows stops."""


_LARGEST_BATCH = 1 << 24
"""In a state: a damaged number must not allocate all memory at the next batch."""


class Buffer(Saves, Generic[Batch]):
    """Samples batches of the rows of an immutable storage; `ReplayBuffer` also writes rows.

    For the order of what happens to a batch, and the arguments, see there.
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
    dim_extend = 0
    """Time dimension of written data."""

    _first: tuple[Transform, ...] = ()
    """Applied to batches before the transforms; set by subclasses and `collate_fn`."""
    _grows = False
    _lock: AbstractContextManager[Any] = nullcontext()
    """Held while rows are drawn or written; only buffers that are written to have a real one."""

    def __init__(
        self,
        storage: Storage,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
        derived: Derived | Iterable[Derived] = (),
    ) -> None:
        self._storage = storage
        self._sampler = as_sampler(sampler)
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
        if self._prefetch and self._batch_size is None:
            raise UsageError("prefetch needs a batch_size")
        if transform is not None:
            self.append_transform(transform)
        self._writer = self._writer_of(writer)
        show_frames_of_batches()

    def _writer_of(self, writer: Any) -> Writer:
        return as_immutable_writer(writer)

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
    def write_count(self) -> int:
        """Number of rows written so far, including those since overwritten."""
        return self._writer.write_count

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({plural(len(self), 'row')}, sampler={self._sampler!r}, "
            f"batch_size={self._batch_size})"
        )

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
        batch: Batch = self._finish(Draw(rows, leaves, last=False), self._gather(rows))
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

        A feature name, or a tuple of names, returns that feature of all rows.

        Raises:
            IndexError, UsageError: See `rows_of`.
            UnknownLeafError: No such feature; also a `KeyError`.
        """
        names = index if isinstance(index, tuple) else (index,)
        if names and all(isinstance(name, str) for name in names):
            return self._leaf(names)
        return self.at_rows(self._cells(index))

    def at_rows(self, rows: Tensor) -> Any:
        """Return the rows with these numbers, int64 of any shape, transformed; see `buffer[…]`."""
        return self._transform_batch(gather_cells(self._gather, rows), {INDEX: rows})

    def _leaf(self, key: tuple[str, ...]) -> Any:
        batch: Any = self[:]
        try:
            return batch[key]
        except KeyError as error:
            if isinstance(batch, TensorDictBase):
                raise no_feature(key, map(path_of, batch.keys(True, True))) from error
            raise

    def read_all_in_order(self, end: int | None = None) -> Any:
        """Return the first `end` rows, or all, like `buffer[:end]`."""
        return self[:end]

    add: Any = refused("add")
    extend: Any = refused("extend")
    __setitem__: Any = refused("assigning rows")
    write_all: Any = __setitem__
    empty: Any = refused("empty")
    set_: Any = refused("writing")
    set_at_: Any = set_
    update_: Any = set_
    register_save_hook: Any = set_
    register_load_hook: Any = set_

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
            trajectory_key: Feature of trajectory numbers; None: the trajectories of slices.

        Raises:
            UsageError: No such feature; or other features than the stored episodes of a dataset.
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

    def set_storage(self, storage: Any, collate_fn: Any = None) -> Any:
        """Replace the storage by another that is immutable; returns the previous storage.

        `collate_fn` replaces the previous one; None: keep it. Raises `UsageError` for other storages.
        """
        if not isinstance(storage, DatasetStorage | SubsetStorage | TrajectoryStorage):
            raise UsageError(
                f"The storage of a {type(self).__name__} cannot be replaced by {storage!r}",
                hint="offline_data.ReplayBuffer takes storages that grow",
            )
        return self._use_storage(storage, collate_fn)

    def _use_storage(self, storage: Storage, collate_fn: Any) -> Storage:
        before, self._storage = self._storage, storage
        self._drop_drawn()
        if collate_fn is not None:
            self._first = (*self._first[: len(self._first) - self._collates], collate_fn)
            self._collates = True
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer; returns the previous one. Raises `ImmutableError`."""
        if not isinstance(writer, ImmutableDatasetWriter):
            raise immutable("writing")
        before, self._writer = self._writer, writer
        return before

    def stats(self) -> Any:
        """Return a dict of `size`, `capacity`, `utilization`, `write_count`, `prefetch_queue_size`, …."""
        capacity = getattr(self._storage, "max_size", len(self))
        return {
            "size": len(self),
            "capacity": capacity,
            "utilization": len(self) / capacity if capacity else 0.0,
            "write_count": self.write_count,
            "prefetch_queue_size": len(self._ahead),
            "initialized": True,
        }

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

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler and drop prefetched batches; returns the previous sampler."""
        before, self._sampler = self._sampler, as_sampler(sampler)
        self._drop_drawn()
        return before

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from: the same batches follow after `load_state_dict`.

        It includes the random state: of the sampler's own generator, or if the sampler has no seed and
        the buffer no `generator`, of torch's global one (on the CPU), which `load_state_dict` then
        sets. For a dataset it has the id and no rows; rows of a growing storage are not copied.

        If the sampler has no seed, load it after all else that draws random numbers (a model).
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

    def _draw_of(self, draw: Any, state: Any) -> Draw:  # noqa: ARG002
        return draw_of(draw, len(self._storage))

    def _set_state(self, state: dict[str, Any]) -> None:
        with self._lock:
            self._restore(())
            super()._set_state(state)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from a folder written by `dumps`; raises like `load_state_dict`."""
        if is_torchrl_dump(Path(path).expanduser().absolute()):
            raise UsageError(
                f"TorchRL's rows are tensors, and this buffer has a {type(self._storage).__name__}; "
                "expected a LazyTensorStorage or a LazyMemmapStorage"
            )
        super().loads(path)

    def _kinds(self) -> dict[str, Any]:
        """Return the types, and for a dataset its identity, that a state must match."""
        kinds = {"sampler": type(self._sampler).__name__, "writer": type(self._writer).__name__}
        return {**kinds, **self._origin()}

    def _origin(self) -> dict[str, Any]:
        """Return the identity of an immutable storage's rows."""
        return {"rows": len(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        earlier = {"_rows_storage": "_storage"}  # in pickles of earlier versions
        known = {earlier.get(name, name): value for name, value in state.items()}
        known.pop("_lock", None)
        self.__dict__.update(known)

    def _prepare(self) -> None:
        """Compute what derived features need of the whole dataset, before workers start."""
        for derive in self._derived:
            if isinstance(derive, Normalizer):
                derive.prepare()

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None or batch_size == self._batch_size:
            if self._batch_size is None:
                raise BufferUsageError(
                    "batch_size not specified",
                    hint="pass batch_size to load_dataset() or sample()",
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
        """Prefetch the rows of the likely next batch from disk while this batch is made."""
        if self._prefetched is not None:
            # wrong if the sampler's generator is used elsewhere between two batches
            self._misses = 0 if torch.equal(self._prefetched, draw.rows) else self._misses + 1
        known = self._misses < LOOKAHEAD_MISSES
        self._prefetched = self._sampler.lookahead(self._storage, size) if known else None
        if self._prefetched is not None:
            storage: Any = self._storage  # one that needs I/O
            storage.prefetch_rows(self._prefetched)

    def _make(self, draw: Draw) -> Any:
        return self._finish(draw, self._gather(draw.rows))

    def _gather(self, rows: Tensor) -> Any:
        batch = self._storage.gather(rows)
        return self._with_derived(self._derived, batch, rows) if self._derived else batch

    def _with_derived(self, functions: Iterable[Derived], batch: Any, rows: Tensor) -> Any:
        for derive in functions:
            batch = derive(batch, rows, self._storage)
        return batch

    def _cells(self, index: Any) -> Tensor:
        return rows_of(index, len(self))

    def _finish(self, draw: Draw, batch: Any) -> Any:
        if draw.info and isinstance(batch, TensorDictBase):
            self._sampler.complete(batch, draw.info)
        return self._transform_batch(batch, {INDEX: draw.rows, **draw.info})

    def _transform_batch(
        self,
        batch: Any,
        labels: dict[Any, Tensor] | None = None,
        names: tuple[str, ...] = LABELS,
    ) -> Any:
        batch = apply_transforms((*self._first, *self._chain.outward), batch, labels, names)
        return batch.pin_memory() if self._pin else batch

    def _drop_drawn(self) -> None:
        self._restore(())
        self._ended = False

    def _restore(self, draws: Iterable[Draw]) -> None:
        self._ahead.restore(draws, self._make)
