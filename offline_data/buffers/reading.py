"""The face of a buffer that reads: batches, iteration, rows by index, transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from offline_data.buffers.arguments import as_sampler, positive
from offline_data.buffers.chain import Chain, Link, Transform, through, transformed
from offline_data.buffers.foresight import Foresight
from offline_data.buffers.indexing import Index, rows_of
from offline_data.buffers.prefetch import Draw, Prefetcher
from offline_data.buffers.storages import GrowingStorage, ListStorage
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor
    from typing_extensions import Self

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.storage import Storage


INDEX = "index"


class Reading:
    """Batches of a storage; `ReplayBuffer` says what the parts are."""

    _first: tuple[Transform, ...] = ()
    """Applied to batches before the transforms, by a subclass and the collate function."""

    _storage: Storage
    _sampler: Sampler
    _derived: tuple[Derived, ...]
    _chain: Chain
    _collates: bool
    _pin: bool
    _batch_size: int | None
    _prefetch: int | None
    _ahead: Prefetcher
    _ended: bool
    _foresight: Foresight | None = None
    _lock: AbstractContextManager[Any]

    @property
    def storage(self) -> Storage:
        """Storage that batches come from."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler, which decides which rows a batch has."""
        return self._sampler

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch where `sample` is not told."""
        return self._batch_size

    def __len__(self) -> int:
        """Return the number of rows of the storage, whether samplers draw them or not."""
        return len(self._storage)

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch, in memory of its own.

        Args:
            batch_size: Rows, `B`; None: the buffer's.
            return_info: Whether to return `(batch, info)`, where `info["index"]` has the rows.

        Returns:
            A TensorDict `[B]` (or fewer where an epoch ends), or what transforms made of it.

        Raises:
            UsageError: No batch size, or one that is not the one prefetched; nothing to sample.
        """
        draw, batch = self._take(self._size(batch_size))
        return (batch, {**draw.info, "index": draw.rows}) if return_info else batch

    def batch_of(self, rows: Tensor, leaves: dict[Any, Tensor]) -> Any:
        """Make the batch of rows that were drawn elsewhere, as `sample` makes those of its own.

        Args:
            rows: Int64 `[B]` of the storage; given away.
            leaves: Leaves that the sampler returned for them, see `Sampler.sample`.
        """
        with self._lock:
            gathered = self._gather(rows)
        return self._finish(Draw(rows, leaves, last=False), gathered)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the sampler says that an epoch ends; a `RandomSampler` never does.

        Raises:
            UsageError: The buffer has no batch size.
        """
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
        """Return rows, transformed as batches are.

        Args:
            index: See `rows_of`; the batch has the shape of the index, `[]` for an int. A
                `ListStorage` gives its row as it is for an int, and knows one dimension.

        Raises:
            IndexError: A row that is not there.
            UsageError: Something that is no index.
        """
        rows = rows_of(index, len(self))
        if rows.ndim == 0 and isinstance(self._storage, ListStorage):
            return through(self._chain.outward, self._storage.get(int(rows)))
        with self._lock:
            batch = self._gather(rows.reshape(-1))
        if rows.ndim != 1:
            batch = batch.reshape(rows.shape + batch.shape[1:])
        return self._transformed(batch, {INDEX: rows})

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform after the others; returns the buffer.

        Args:
            transform: Called with every batch, returns what the next one gets. If it is a TorchRL
                `Transform`, its `inv` is called with what is written, before it is.
            invert: Whether to swap the two: call it with what is written, and `inv`, where it has
                one, with every batch.

        Raises:
            UsageError: Something that cannot be called; a dataset, for which `invert` leaves
                nothing to do.
        """
        return self.insert_transform(len(self._chain.links), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform before the one at `index`; see `append_transform`."""
        chain = self._chain.insert(index, transform, invert=invert)
        if Link(transform, invert).outward is None and not self._grows:
            raise UsageError("invert=True transforms what is written, and a dataset is immutable")
        self._chain = chain
        return self

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Draw with another sampler from now on; returns the one before.

        Batches that were drawn ahead are dropped.
        """
        before, self._sampler = self._sampler, as_sampler(sampler)
        self._drop_drawn()
        return before

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} rows, sampler={self._sampler!r}, "
            f"batch_size={self._batch_size})"
        )

    @property
    def _grows(self) -> bool:
        return isinstance(self._storage, GrowingStorage)

    @property
    def _lists(self) -> bool:
        """Whether the collate function gets lists of rows, and not batches."""
        return self._collates and isinstance(self._storage, ListStorage)

    @property
    def _transforms(self) -> tuple[Transform, ...]:
        return tuple(link.transform for link in self._chain.links)

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None or batch_size == self._batch_size:
            if self._batch_size is None:
                raise UsageError("No batch size: give one to the buffer or to sample(batch_size)")
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
            if future is None and getattr(self._storage, "cold", False):
                self._look_ahead(draw, size)
            gathered = self._gather(draw.rows) if future is None else None
        return draw, self._finish(draw, gathered) if future is None else future.result()

    def _next_draw(self) -> Draw:
        return self._draw(self._size(None))

    def _draw(self, size: int) -> Draw:
        rows, info = self._sampler.sample(self._storage, size)
        return Draw(rows, info, self._sampler.ran_out)

    def _look_ahead(self, draw: Draw, size: int) -> None:
        """Have the rows after those of a draw read from a disk."""
        storage: Any = self._storage  # of a kind that can be cold
        self._foresight = self._foresight or Foresight()
        self._foresight.look(self._sampler, storage, draw.rows, size)

    def _make(self, draw: Draw) -> Any:
        return self._finish(draw, self._gather(draw.rows))

    def _gather(self, rows: Tensor) -> Any:
        if self._collates and isinstance(self._storage, ListStorage):
            return self._storage.get(rows)
        batch = self._storage.gather(rows)
        for derive in self._derived:
            batch = derive(batch, rows, self._storage)
        return batch

    def _finish(self, draw: Draw, batch: Any) -> Any:
        if draw.info and isinstance(batch, TensorDictBase):
            self._sampler.complete(batch, draw.info)
        return self._transformed(batch, {INDEX: draw.rows, **draw.info})

    def _transformed(self, batch: Any, labels: dict[Any, Tensor] | None = None) -> Any:
        batch = transformed((*self._first, *self._chain.outward), batch, labels)
        return batch.pin_memory() if self._pin else batch

    def _drop_drawn(self) -> None:
        self._ahead.restore((), self._make)
        self._ended = False
