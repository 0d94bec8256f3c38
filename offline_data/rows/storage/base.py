"""Interfaces of storages: for sampling, and for writing and overwriting rows."""

from __future__ import annotations

import inspect
import math
import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode import Key
from offline_data.rows import fields
from offline_data.rows.indexing import Index, cells_of, rows_of
from offline_data.rows.keys import KeyLike, NestedKey, select_keys
from offline_data.rows.samplers.base import Boundaries, EpisodeIndex, Sampleable, ValidRows
from offline_data.rows.state import Saves, load_tree, save_tree
from offline_data.rows.storage.trajectory_index import (
    TRAJECTORIES,
    TrajectoryIndex,
    rows_of_steps,
)
from offline_data.rows.unsupported import refuse

_NOBODY = -1
"""Process id in a copy that shares the memory of another storage and must not write."""

_THERE = (
    "send rows to that process, for example by a torch.multiprocessing.Queue, and write them there; or "
    "create the buffer in the process that writes"
)


class Storage(Sampleable, Protocol):
    """Interface of a buffer's storage: its length, the rows a sampler may draw, and batches."""

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows with only some leaves, and `index`; raises `UsageError`."""

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the batch of `rows`, int64 `[B]` in `[0, len)`, as a copy.

        `rows` may become the leaf `index`, so the caller must not reuse it.
        """


class GrowingStorage(Saves):
    """Base class: a `Storage` of up to `max_size` rows that can be written.

    Rows are linked in the order in which they were written; see `runs`. Not thread-safe; the buffer
    locks it. Only the process that created the storage writes rows, since the count and the cursor
    are not shared. Others, forked or spawned (`DataLoader` workers too), read, and may set values
    of existing rows in shared memory. A copy by pickle or `copy.deepcopy` that does not share
    memory is independent.
    """

    STATE: ClassVar = {"count": fields.COUNT, "content": fields.ANY, "links": fields.ANY}
    ndim = 1
    """Dimensions of the array of rows: time, and parallel environments."""

    indexed = False
    """Whether TensorDicts that are read have the leaf `index`; set by the writer."""

    _save_hooks: tuple[Callable[..., Any], ...] = ()
    _load_hooks: tuple[Callable[..., Any], ...] = ()
    _columns: tuple[int, ...] = ()  # sizes of the dimensions beyond the first, once they are known

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise UsageError(f"max_size is {max_size}; expected at least 1")
        self.max_size = max_size
        self._process: int | None = os.getpid()
        self._count = 0
        self._index = TrajectoryIndex(max_size)
        self._all = ValidRows(0, np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Return the number of rows that have been written."""
        return self._count

    @abstractmethod
    def get(self, index: Index) -> Any:
        """Return rows by index (see `rows_of`), one row for an int.

        TensorDicts have `index`, as in TorchRL, if rows are written by a TensorDict writer.
        """

    @abstractmethod
    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return a live view of the rows with only some leaves; see `Storage`."""

    @abstractmethod
    def _take(self, rows: Tensor, keys: Sequence[Key] | None) -> Any:
        """Return the batch of `rows` with the leaves `keys`; None: all."""

    @abstractmethod
    def batch_length(self, data: Any) -> int:
        """Return the number of steps in data to write; raises `UsageError`."""

    @abstractmethod
    def _convert_rows(self, data: Any, dims: int) -> Any:
        """Return rows in the stored form, with `dims` leading dimensions flattened to one."""

    @abstractmethod
    def _write(self, rows: slice | Tensor, converted: Any) -> Tensor | None:
        """Write the result of `_convert_rows` at `rows`, all or nothing; returns its `origin_of`."""

    @abstractmethod
    def _content(self) -> Any:
        """Return all rows, without copying, as a tree for `save_tree`."""

    @abstractmethod
    def _content_of(self, rows: Any) -> Any:
        """Return rows, as `get` returns them, as a tree like that of `_content`."""

    def _check_content(self, content: Any, count: int) -> int:  # noqa: ARG002
        """Raise unless `_restore` takes `content`; returns the number of rows in a step."""
        return self.width

    @abstractmethod
    def _restore(self, content: Any, count: int) -> None:
        """Restore `count` rows from a copy of the result of `_content`."""

    @property
    @abstractmethod
    def _of_trajectories(self) -> bool:
        """Whether a row is a trajectory with its own time dimension."""

    @abstractmethod
    def _leaf(self, key: Key) -> Tensor | None:
        """Return a leaf of all rows, `[len, …]`, or None if there is none."""

    @property
    def _shares(self) -> bool:
        """Whether rows are in memory shared with other processes."""
        return False

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows`, int64 `[B]`, as a copy; see `Storage.gather`."""
        return self._take(rows, None)

    @property
    def width(self) -> int:
        """Number of rows in a step: 1, or the number of parallel environments."""
        return math.prod(self._columns)

    @property
    def steps(self) -> int:
        """Capacity in steps."""
        return self.max_size // self.width

    def numbers(self) -> Tensor:
        """Return the numbers of all written rows, int64 `[T]`, or `[T, *columns]`."""
        return torch.arange(len(self)).reshape(-1, *self._columns)

    def rows_of_steps(self, steps: Tensor) -> Tensor:
        """Return the rows of steps `[B]` as `[B, *columns]`; -1 stays -1."""
        rows: Any = rows_of_steps(steps, self.width)
        found: Tensor = rows.reshape(-1, *self._columns)
        return found

    def set(self, index: Index, data: Any, *, linked: bool = True, set_cursor: bool = True) -> None:  # noqa: ARG002
        """Write rows.

        Args:
            index: An int, with one step as `data`; or any other index for `rows_of`, without
                repeats, with as many steps. New steps start at the end of the storage.
            data: Rows to write; they are copied.
            linked: Whether the rows are consecutive in time and continue the last write. False:
                each row is a separate run.
            set_cursor: Ignored, for compatibility with TorchRL: writers keep the cursor.

        Raises:
            IndexError: A row beyond `max_size`, or one that would leave a gap.
            UsageError: Data that do not match the stored rows, or a call from a process other than
                the one that created the storage.
        """
        if self._process != os.getpid():
            raise UsageError(
                "Rows must be written in the process that created the storage: writes of another "
                "process or a copy would be lost or overwritten",
                hint=_THERE,
            )
        dims = self.ndim - 1 if _is_int(index) else self.ndim
        converted = (
            self._convert_rows(data, dims) if self.ndim > 1 else None
        )  # determines the width
        steps = self._to_write(index)
        end = steps.stop if isinstance(steps, slice) else int(steps.max()) + 1 if len(steps) else 0
        if end:
            converted = self._convert_rows(data, dims) if converted is None else converted
            origin = self._write(rows_of_steps(steps, self.width), converted)
            self._index.wrote(steps, origin, linked=linked)
            self._count = max(self._count, end * self.width)

    def _to_write(self, index: Index) -> slice | Tensor:
        """Return the steps of an index, as a slice of at least one if they are contiguous."""
        size, known = self.steps, self._count // self.width
        if _is_int(index):
            row = operator.index(index)  # type: ignore[arg-type]
            index = slice(row, row + 1)
        if isinstance(index, slice) and index.step in {None, 1}:
            start, stop, _ = index.indices(size)
            if (index.stop or 0) > size or (index.start or 0) < 0:
                raise IndexError(
                    f"Rows {index.start} to {index.stop} are out of range; max_size is {size}"
                )
            new, end = max(stop - max(start, known), 0), stop
            rows: slice | Tensor = slice(start, stop) if start < stop else torch.zeros(0).long()
        else:
            rows = rows_of(index, size).reshape(-1)
            new, end = int((rows >= known).sum()), int(rows.max()) + 1 if len(rows) else 0
        if end - known > new:
            raise IndexError(
                f"Rows up to {end - 1} would leave a gap after the {known} written rows"
            )
        return rows

    def __getitem__(self, index: Index) -> Any:
        """Return rows; see `get`."""
        return self.get(index)

    def __setitem__(self, index: Index, data: Any) -> None:
        """Change the values of existing rows; their order in time is unchanged."""
        if self._process != os.getpid() and not self._shares:
            raise UsageError(
                "Values set here would not reach the process that created the storage", hint=_THERE
            )
        cells = cells_of(index, self.numbers())
        rows = cells.reshape(-1)
        if len(set(rows.tolist())) < len(rows):
            raise UsageError("A row is set twice; its value would be undefined")
        if len(rows):
            if self.ndim > 1 and hasattr(data, "batch_size"):
                data = data.expand(*cells.shape, *getattr(self, "_shape", ()))
            self._write(rows, self._convert_rows(data, cells.ndim))
            self._index.changed()

    def rows(self, *, valid_only: bool) -> ValidRows:  # noqa: ARG002 - rows include their `next`
        """Return all rows, which include their next observations; raises `UsageError` if empty."""
        if not self._count:
            raise BufferUsageError(
                "Cannot sample from an empty storage",
                hint="buffer.extend(…) or buffer.add(…) writes rows",
            )
        if self._all.count != self._count:
            self._all = ValidRows(self._count, np.zeros(0, np.int64))
        return self._all

    def runs(self) -> EpisodeIndex:
        """Return the trajectories, or what is left of them after overwriting; see `Sampleable`.

        A run is a sequence of consecutively written rows of one trajectory. It ends

        - at the end of the trajectory: `("next", "done")`, or terminated or truncated; or where the
          number in `("collector", "traj_ids")`, `traj_ids` or `episode` changes;
        - where written rows were not adjacent in their source (`dataset_index` or `index` does not
          increase by one: randomly drawn rows);
        - at the cursor of a ring buffer, where newer rows meet older ones.

        In a full ring buffer a run may continue from the last row to row 0 (see
        `EpisodeIndex.order`). Rows without leaves of trajectories are separate runs. Direct changes
        to the tensors that a storage was created from are noticed at the next write.
        """
        return self._index.runs(self._count, self._mark)

    def _mark(self, key: Key) -> Tensor | None:
        """Return a leaf that delimits trajectories, of all rows; None: there is none."""
        return self._leaf(key) if self._count and not self._of_trajectories else None

    @property
    def trajectory_key(self) -> NestedKey | None:
        """Leaf of trajectory numbers by which `runs` separates rows; None: there is none."""
        found = (key for key in TRAJECTORIES if self._count and self._leaf(key) is not None)
        key = next(found, None)
        return key[0] if key is not None and len(key) == 1 else key

    @property
    def checkpointer(self) -> None:
        """None; TorchRL's classes that write files cannot be set."""
        return

    @checkpointer.setter
    def checkpointer(self, checkpointer: Any) -> None:
        refuse(type(self).__name__, {"checkpointer": checkpointer}, "checkpointer")

    def runs_by(self, boundaries: Boundaries) -> EpisodeIndex:
        """Return the trajectories delimited by other leaves; raises `UsageError` without them.

        Rows that were not written consecutively are separated here too. Rows that are whole
        trajectories are separate runs.
        """
        if self._of_trajectories:
            return self.runs()
        return self._index.runs(self._count, self._leaf, boundaries)

    def empty(self) -> None:
        """Remove all rows; the memory stays allocated."""
        self._count = 0
        self._index.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Distinguish a spawned process from a copy; see the class."""
        return {**vars(self), "_process": None if get_spawning_popen() is None else _NOBODY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._process is None:
            self._process = _NOBODY if self._shares else os.getpid()

    def state_dict(self) -> dict[str, Any]:
        """Return all rows, without copying them, and their links."""
        links = self._index.state_dict(self._count)
        return {"count": self._count, "content": self._content(), "links": links}

    def _rules(self, state: Any, above: Any) -> Iterator[fields.Rule]:  # noqa: ARG002
        self.steps_in(state)
        yield from ()

    def steps_in(self, state: Any) -> tuple[int, int]:
        """Return the steps in a state of this storage, and the capacity; raises if it is none."""
        count = state["count"]
        width = self._check_content(state["content"], count)
        if count % width:
            expected = f"a multiple of {width}, the rows of a step"
            raise fields.wrong(state, type(self).__name__, "count", expected)
        if count > -(-self.max_size // width) * width:
            raise UsageError(
                f"The state has {plural(count, 'row')}; this storage has space for {self.max_size}"
            )
        self._index.check_state(state["links"], count // width)
        return count // width, -(-self.max_size // width)

    def _set_state(self, state: dict[str, Any]) -> None:
        self._restore(state["content"], state["count"])
        self._index.load_state_dict(state["links"])
        self._count = state["count"]

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Make `dumps`, of the buffer too, write `hook(rows)` instead of all rows, `[N]`.

        As in TorchRL: several are called in order. If a hook has an attribute `shift` or `is_full`, it
        is set before the call: to the step that would be written next, and to whether the storage is
        full. An argument `path` is None. See `TED2Flat`.
        """
        self._save_hooks = (*self._save_hooks, hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Make `loads`, of the buffer too, apply `hook` to the rows, the inverse of a save hook.

        An argument `out` is None. See `Flat2TED`.
        """
        self._load_hooks = (*self._load_hooks, hook)

    def state_to_save(self) -> dict[str, Any]:
        """Return the state with the result of the save hooks, if any, in place of the rows."""
        state = self.state_dict()
        if self._save_hooks:
            rows = self.get(slice(None))
            rows = rows.exclude("index") if isinstance(rows, TensorDictBase) else rows
            steps = len(self) // self.width
            full = steps == self.steps
            for hook in self._save_hooks:
                if hasattr(hook, "shift"):
                    hook.shift = self._index.next_step if full else steps
                if hasattr(hook, "is_full"):
                    hook.is_full = full
                rows = _call_hook(hook, rows, "path")
            state["content"] = {"hooked": rows}
        return state

    def state_of_saved(self, saved: Any) -> Any:
        """Return a state of `state_to_save` with the rows, by the load hooks."""
        content = saved.get("content") if isinstance(saved, dict) else None
        if not (isinstance(content, dict) and "hooked" in content):
            return saved
        return {**saved, "content": self._content_of(self.after_load_hooks(content["hooked"]))}

    def after_load_hooks(self, rows: Any) -> Any:
        """Return rows as the load hooks make them."""
        for hook in self._load_hooks:
            rows = _call_hook(hook, rows, "out")
        return rows

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write a folder; see `Saves`."""
        save_tree(self.state_to_save(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read a folder written by `dumps`; see `Saves`."""
        self.load_state_dict(self.state_of_saved(load_tree(Path(path))))  # copies the rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {plural(self.max_size, 'row')})"


@pickled_by_name
class SelectedLeaves:
    """A live view of a storage with only some of its leaves."""

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


@pickled_by_name
class InTime:
    """A live view of a storage whose rows are numbered so that those of a run are adjacent."""

    def __init__(self, storage: GrowingStorage | SelectedLeaves) -> None:
        self._storage = storage
        self.runs, self.rows = storage.runs, storage.rows

    def __len__(self) -> int:
        """Return the number of rows that have been written."""
        return len(self._storage)

    def positions(self, rows: Tensor) -> Tensor:
        """Return the numbers in this view of rows of the storage."""
        order = self.runs().order
        return rows if order is None else order.positions(rows)

    def only(self, keys: Iterable[KeyLike]) -> InTime:
        """Return the same rows with only some leaves; see `Storage`."""
        selected: Any = self._storage.only(keys)
        return InTime(selected)

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows` of this view; see `Storage`."""
        order = self.runs().order
        return self._storage.gather(rows if order is None else order.rows(rows))


def _call_hook(hook: Callable[..., Any], rows: Any, argument: str) -> Any:
    """Call a hook, which may have the argument that TorchRL passes by name."""
    try:
        has = argument in inspect.signature(hook).parameters
    except ValueError:  # of a builtin
        has = False
    return hook(rows, **{argument: None}) if has else hook(rows)


def _is_int(index: Any) -> bool:
    try:
        operator.index(index)
    except TypeError:
        return False
    return not isinstance(index, (torch.Tensor, np.ndarray)) or index.ndim == 0
