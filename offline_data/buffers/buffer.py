"""`ReplayBuffer`: a sampler, a storage and transforms; TorchRL's names, for what never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from offline_data.buffers.arguments import as_sampler, as_writer, positive
from offline_data.buffers.indexing import Index, rows_of
from offline_data.buffers.prefetch import Draw, Prefetcher
from offline_data.buffers.writers import immutable
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.storage import Storage
    from offline_data.buffers.writers import ImmutableDatasetWriter

Transform: TypeAlias = "Callable[[Any], Any]"
"""Anything that is called with a batch and returns one; TorchRL's `Transform`s among them."""


class ReplayBuffer:
    """Batches of a storage that never changes.

    Args:
        storage: Where batches come from.
        sampler: Which rows they have (or a class or function that makes the sampler); None: a
            `RandomSampler`.
        writer: None, or an `ImmutableDatasetWriter`: there is no other.
        collate_fn: Called with every batch, before `transform`.
        batch_size: Rows of a batch where `sample` is not told; iteration needs it.
        prefetch: Batches made ahead, by as many threads; rows and their order stay the same.
            Pays where transforms are slow, or data are not in memory.
        transform: Called with every batch; more can be appended.
        derived: What is computed for a batch from other rows of the storage, in this order, before
            anything else is done to it.

    Raises:
        UsageError: An argument that cannot be meant.
    """

    _first: tuple[Transform, ...] = ()
    """What a subclass does to batches before anything else."""

    def __init__(
        self,
        storage: Storage,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        derived: Iterable[Derived] = (),
    ) -> None:
        self._storage = storage
        self._derived = tuple(derived)
        self._sampler = as_sampler(sampler)
        self._writer = as_writer(writer)
        self._first += () if collate_fn is None else (collate_fn,)
        self._transforms: tuple[Transform, ...] = () if transform is None else (transform,)
        self._steps: tuple[Transform, ...] = (*self._first, *self._transforms)
        self._batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._prefetch = positive(prefetch, "prefetch") if prefetch else None
        self._ahead = self._prefetcher()

    @property
    def storage(self) -> Storage:
        """Where batches come from."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """What decides which rows a batch has."""
        return self._sampler

    @property
    def writer(self) -> ImmutableDatasetWriter:
        """What refuses changes."""
        return self._writer

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
            UsageError: No batch size, or one that is not the one prefetched.
        """
        size = self._size(batch_size)
        if self._ahead is not None:
            draw, batch = self._ahead.take()
        else:
            draw = self._draw(size)
            batch = self._make(draw)
        return (batch, {**draw.info, "index": draw.rows}) if return_info else batch

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the sampler says that an epoch ends; a `RandomSampler` never does.

        Raises:
            UsageError: The buffer has no batch size.
        """
        size = self._size(None)
        last = False
        while not last:
            if self._ahead is not None:
                draw, batch = self._ahead.take()
            else:
                draw = self._draw(size)
                batch = self._make(draw)
            last = draw.last
            yield batch

    def __getitem__(self, index: Index) -> Any:
        """Return transitions by row, transformed as batches are.

        Args:
            index: See `rows_of`; the batch has the shape of the index, `[]` for an int.

        Raises:
            IndexError: A row that is not there.
            UsageError: Something that is no index.
        """
        rows = rows_of(index, len(self))
        batch = self._gather(rows.reshape(-1))
        return self._transformed(batch.reshape(rows.shape + batch.batch_size[1:]))

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform after the others; returns the buffer.

        Args:
            transform: Called with every batch, returns what the next one gets.
            invert: Must be False: transforms on the way in have no meaning here.
        """
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Transform, *, invert: bool = False
    ) -> ReplayBuffer:
        """Add a transform before the one at `index`; see `append_transform`."""
        if invert:
            raise UsageError("invert=True transforms what is written, and a dataset is immutable")
        if not callable(transform):
            raise UsageError(f"A transform is called with a batch; {transform!r} cannot be called")
        transforms = list(self._transforms)
        transforms.insert(index, transform)
        self._transforms = tuple(transforms)
        self._steps = (*self._first, *self._transforms)
        return self

    def add(self, data: object) -> NoReturn:
        """Raise `ImmutableError`, which says what to do instead."""
        self._writer.add(data)

    def extend(self, data: object) -> NoReturn:
        """Raise `ImmutableError`, which says what to do instead."""
        self._writer.extend(data)

    def __setitem__(self, index: Index, value: object) -> NoReturn:
        """Raise `ImmutableError`, which says what to do instead."""
        raise immutable("assigning rows")

    def __getstate__(self) -> dict[str, Any]:
        """Leave threads, and batches under way, behind."""
        return {**vars(self), "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ahead = self._prefetcher()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} rows, sampler={self._sampler!r}, "
            f"batch_size={self._batch_size})"
        )

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None or batch_size == self._batch_size:
            if self._batch_size is None:
                raise UsageError("No batch size: give the buffer one, or sample(batch_size)")
            return self._batch_size
        if self._ahead is not None:
            raise UsageError(
                f"A batch of {batch_size} was asked for, and batches of {self._batch_size} are "
                "prefetched"
            )
        return positive(batch_size, "batch_size")

    def _draw(self, size: int) -> Draw:
        rows, info = self._sampler.sample(self._storage, size)
        return Draw(rows, info, self._sampler.ran_out)

    def _make(self, draw: Draw) -> Any:
        batch = self._gather(draw.rows)
        for key, leaf in draw.info.items():
            batch.set(key, leaf)
        return self._transformed(batch) if self._steps else batch

    def _gather(self, rows: Tensor) -> Any:
        batch = self._storage.gather(rows)
        for derive in self._derived:
            batch = derive(batch, rows, self._storage)
        return batch

    def _transformed(self, batch: Any) -> Any:
        for step in self._steps:
            batch = step(batch)
        return batch

    def _prefetcher(self) -> Prefetcher | None:
        if self._prefetch is None:
            return None
        if self._batch_size is None:
            raise UsageError("prefetch needs a batch_size: batches are made before they are asked")
        size = self._batch_size
        return Prefetcher(lambda: self._draw(size), self._make, self._prefetch)


class TensorDictReplayBuffer(ReplayBuffer):
    """The same: every buffer here gives TensorDicts that have their `index`."""
