"""The contract of a storage, and of one that grows: rows are written, sampled and overwritten."""

from __future__ import annotations

import math
import operator
import os
from abc import abstractmethod
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from offline_data.buffers.checkpoint import Saves, load_tree
from offline_data.buffers.indexing import Index, cells_of, rows_of
from offline_data.buffers.keys import KeyLike, select_keys
from offline_data.buffers.samplers.base import Boundaries, EpisodeIndex, Sampleable, ValidRows
from offline_data.buffers.storage.trajectory_index import (
    Marks,
    TrajectoryIndex,
    rows_of_steps,
)
from offline_data.errors import BufferUsageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.episodes import Key

_NOBODY = -1
"""Stands for the process that writes, in a copy that looks at the memory of another storage."""

_THERE = (
    "send rows to that process, by a torch.multiprocessing.Queue for one, and write them there; or "
    "make the buffer in the process that writes"
)


class Storage(Sampleable, Protocol):
    """Interface of a storage for a buffer: a length, the rows a sampler may draw, and batches."""

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows with some of the leaves, and `index`; raises `UsageError`."""

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the batch of `rows`, int64 `[B]` in `[0, len)`, in memory of its own.

        The tensor is given away: it may become the leaf `index`.
        """


class GrowingStorage(Saves):
    """Up to `max_size` rows, a `Storage` as datasets are, so that it can be sampled.

    Rows follow each other as they were written: see `runs`. Not safe for several threads at once;
    the buffer that a storage is in sees to that. Only the process that made the storage writes: how
    many rows there are, and which is the next, is not shared. Others read, forked or spawned (the
    workers of a `DataLoader` too), and may set values of rows in memory that they share. A copy by
    pickle or `copy.deepcopy` with memory of its own is a storage of its own.
    """

    ndim = 1
    """Dimensions of the array of rows: the steps, and those of environments side by side."""

    _columns: tuple[int, ...] = ()  # sizes of the dimensions beyond the first, once they are known

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise UsageError(f"max_size is {max_size}; expected at least 1")
        self.max_size = max_size
        self._process: int | None = os.getpid()
        self._count = 0
        self._index = TrajectoryIndex()
        self._all = ValidRows(0, np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Return the number of rows that have been written."""
        return self._count

    @abstractmethod
    def get(self, index: Index) -> Any:
        """Return rows by index (see `rows_of`), a single one for an int."""

    @abstractmethod
    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows, as they will be, with some of the leaves; see `Storage`."""

    @abstractmethod
    def _take(self, rows: Tensor, keys: Sequence[Key] | None) -> Any:
        """Return the batch of `rows` with the leaves `keys`; None: all of them."""

    @abstractmethod
    def batch_length(self, data: Any) -> int:
        """Count the steps of rows that are to be written at once; raises `UsageError`."""

    @abstractmethod
    def _taken(self, data: Any, dims: int) -> Any:
        """Return rows in the form that is stored here, `dims` dimensions of them flattened to one."""

    @abstractmethod
    def _write(self, rows: slice | Tensor, taken: Any) -> Marks:
        """Put what `_taken` returned where `rows` says, all or nothing, and return its marks."""

    @abstractmethod
    def _content(self) -> Any:
        """Return all rows, without copying, as a tree that `save_tree` takes."""

    @abstractmethod
    def _restore(self, content: Any, count: int) -> None:
        """Put back what `_content` returned of `count` rows, copying it."""

    @property
    @abstractmethod
    def _of_trajectories(self) -> bool:
        """Whether rows have a time dimension of their own."""

    @abstractmethod
    def _leaf(self, key: Key) -> Tensor | None:
        """Return a leaf of all rows, `[len, …]`, None where they do not have it."""

    @property
    def _shares(self) -> bool:
        """Whether rows lie in memory that other processes see."""
        return False

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows`, int64 `[B]`, in memory of its own; see `Storage.gather`."""
        return self._take(rows, None)

    @property
    def width(self) -> int:
        """Rows of a step: 1, or the number of environments side by side."""
        return math.prod(self._columns)

    @property
    def steps(self) -> int:
        """How many steps there can be: `max_size` rows."""
        return self.max_size // self.width

    def numbers(self) -> Tensor:
        """Return the numbers of all rows that were written, int64 `[T]`, or `[T, *columns]`."""
        return torch.arange(len(self)).reshape(-1, *self._columns)

    def rows_of_steps(self, steps: Tensor) -> Tensor:
        """Return the rows of steps `[B]`, `[B, *columns]`; -1 stays -1."""
        rows: Any = rows_of_steps(steps, self.width)
        found: Tensor = rows.reshape(-1, *self._columns)
        return found

    def set(self, index: Index, data: Any, *, linked: bool = True, set_cursor: bool = True) -> None:  # noqa: ARG002
        """Write rows.

        Args:
            index: An int, with one step as `data`; or anything else that `rows_of` takes, no step
                twice, with as many steps. New ones begin where the storage ends.
            data: Rows to write; they are copied.
            linked: Whether the rows follow each other in time, and the first one what was written
                before. False: each is a run of its own.
            set_cursor: TorchRL's; without effect: writers have the cursor.

        Raises:
            IndexError: A row beyond `max_size`, or one that would leave a gap.
            UsageError: Data that do not fit what is here; another process than the one that made
                the storage.
        """
        if self._process != os.getpid():
            raise UsageError(
                "Rows are written through the storage that has them, in the process that made it: "
                "those that another process or a copy writes would be lost, or written over",
                hint=_THERE,
            )
        dims = self.ndim - 1 if _is_int(index) else self.ndim
        taken = self._taken(data, dims) if self.ndim > 1 else None  # which tells the width
        steps = self._to_write(index)
        end = steps.stop if isinstance(steps, slice) else int(steps.max()) + 1 if len(steps) else 0
        if end:
            taken = self._taken(data, dims) if taken is None else taken
            marks = self._write(rows_of_steps(steps, self.width), taken)
            self._index.wrote(steps, marks, linked=linked)
            self._count = max(self._count, end * self.width)

    def _to_write(self, index: Index) -> slice | Tensor:
        """Return the steps of an index: a slice of at least one where they follow each other."""
        size, known = self.steps, self._count // self.width
        if _is_int(index):
            row = operator.index(index)  # type: ignore[arg-type]
            index = slice(row, row + 1)
        if isinstance(index, slice) and index.step in {None, 1}:
            start, stop, _ = index.indices(size)
            if (index.stop or 0) > size or (index.start or 0) < 0:
                raise IndexError(f"Rows {index.start} to {index.stop} asked for, of {size}")
            new, end = max(stop - max(start, known), 0), stop
            rows: slice | Tensor = slice(start, stop) if start < stop else torch.zeros(0).long()
        else:
            rows = rows_of(index, size).reshape(-1)
            new, end = int((rows >= known).sum()), int(rows.max()) + 1 if len(rows) else 0
        if end - known > new:
            raise IndexError(f"Rows up to {end - 1} would leave a gap behind the {known} here")
        return rows

    def __getitem__(self, index: Index) -> Any:
        """Return rows; see `get`."""
        return self.get(index)

    def __setitem__(self, index: Index, data: Any) -> None:
        """Change the values of rows; they stay where they were in time."""
        if self._process != os.getpid() and not self._shares:
            raise UsageError(
                "Values set here would not be seen by the process that has the storage", hint=_THERE
            )
        cells = cells_of(index, self.numbers())
        rows = cells.reshape(-1)
        if len(set(rows.tolist())) < len(rows):
            raise UsageError("A row is set twice: it is undefined which of its values counts")
        if len(rows):
            if self.ndim > 1 and hasattr(data, "batch_size"):
                data = data.expand(*cells.shape, *getattr(self, "_shape", ()))
            self._index.changed(rows, self._write(rows, self._taken(data, cells.ndim)))

    def rows(self, *, valid_only: bool) -> ValidRows:  # noqa: ARG002 - rows bring their `next`
        """Return all rows: each has its next observation; raises `UsageError` if there are none."""
        if not self._count:
            raise BufferUsageError(
                "There is nothing to sample: the storage is empty",
                hint="buffer.extend(…) or buffer.add(…) writes rows",
            )
        if self._all.count != self._count:
            self._all = ValidRows(self._count, np.zeros(0, np.int64))
        return self._all

    def runs(self) -> EpisodeIndex:
        """Return the trajectories, or what is left of them; see `Sampleable`.

        A run is a piece of a trajectory whose rows were written one after the other. It ends

        - where the trajectory does: `("next", "done")`, or terminated or truncated; or where the
          number in `("collector", "traj_ids")`, `traj_ids` or `episode` changes;
        - where rows of a batch did not follow each other where they were taken from
          (`dataset_index`, or `index`, does not go up by one: rows that were drawn at random);
        - where newer rows meet older ones in a ring, and at the end of the ring.

        Rows that have no leaf of trajectories are each a run of their own. Values changed in the
        tensors that a storage was made of, and not through it, are not seen.
        """
        return self._index.runs(self._count, self._leaf)

    def runs_by(self, boundaries: Boundaries) -> EpisodeIndex:
        """Return the trajectories that other leaves separate; raises `UsageError` without them.

        Rows that were not written one after the other, or are on both sides of the end of the
        ring, are apart here too. Rows that are whole trajectories are each a run of their own.
        """
        by = None if self._of_trajectories else boundaries
        return self._index.runs(self._count, self._leaf, by)

    def empty(self) -> None:
        """Forget all rows; the memory stays reserved."""
        self._count = 0
        self._index.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Tell a process that is being spawned from a copy; see the class."""
        return {**vars(self), "_process": None if get_spawning_popen() is None else _NOBODY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._process is None:
            self._process = _NOBODY if self._shares else os.getpid()

    def state_dict(self) -> dict[str, Any]:
        """Return all rows and how they follow each other, without copying the rows."""
        links = self._index.state_dict(self._count)
        return {"count": self._count, "content": self._content(), "links": links}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, copying it.

        Raises `UsageError` if it has more rows than fit, or other leaves than those here.
        """
        count, width = state["count"], self.width
        if self.ndim > 1 and state["content"]:
            width = math.prod(state["content"]["columns"])
        if count > -(-self.max_size // width) * width:
            raise UsageError(f"The state has {count} rows, and {self.max_size} fit in this storage")
        self._restore(state["content"], count)
        self._index.load_state_dict(state["links"], count)
        self._count = count

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read what `dumps` wrote, see `Saves`."""
        self.load_state_dict(load_tree(Path(path)))  # which copies rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.max_size} rows)"


class SelectedLeaves:
    """The rows of a storage as they are at each moment, with some of its leaves."""

    def __init__(self, storage: GrowingStorage, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self._storage = storage
        self.runs, self.runs_by, self.rows = storage.runs, storage.runs_by, storage.rows

    def __len__(self) -> int:
        """Return the number of rows that have been written."""
        return len(self._storage)

    def only(self, keys: Iterable[KeyLike]) -> SelectedLeaves:
        """Return the same rows with fewer leaves; see `Storage`."""
        return SelectedLeaves(self._storage, select_keys(self._keys, keys))

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows`; see `Storage`."""
        return self._storage._take(rows, self._keys)


def _is_int(index: Any) -> bool:
    try:
        operator.index(index)
    except TypeError:
        return False
    return not isinstance(index, (torch.Tensor, np.ndarray)) or index.ndim == 0
