"""Rows that are written and overwritten: features of tensors, each of all rows, in a ring."""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.rows import fields
from offline_data.rows.gather.assemble import Node, assemble, tree_of
from offline_data.rows.gather.plan import INDEX
from offline_data.rows.indexing import Index, cells_of, gather_cells, rows_of
from offline_data.rows.keys import KeyLike, NestedKey, select_keys
from offline_data.rows.samplers.base import Boundaries, EpisodeIndex, ValidRows
from offline_data.rows.state import Saves, load_tree, save_tree
from offline_data.rows.storage import Storage
from offline_data.rows.unsupported import refuse
from offline_data.torchrl.storages.leaves import (
    Frame,
    Leaves,
    StoredRows,
    check_fits,
    count_of,
    flat,
    is_list,
    leaves_of,
    plain,
    stack_rows,
    texts,
)
from offline_data.torchrl.storages.trajectory_index import (
    TRAJECTORIES,
    TrajectoryIndex,
    origin_of,
    rows_of_steps,
)
from offline_data.torchrl.storages.views import SelectedLeaves

_NOBODY = -1  # process id in a copy that shares the memory of another storage and must not write

_THERE = (
    "send rows to that process, for example by a torch.multiprocessing.Queue, and write them there; or "
    "create the buffer in the process that writes"
)


class GrowingStorage(Saves):
    """Base class: a `Storage` of up to `max_size` rows that can be written.

    Rows are linked in the order in which they were written; see `runs`. Not thread-safe; the buffer
    locks it. Only the process that created the storage writes rows, since the count and the cursor
    are not shared. Others, forked or spawned (`DataLoader` workers too), read, and may set values
    of existing rows in shared memory. A copy by pickle or `copy.deepcopy` that does not share
    memory is independent. TorchRL's other arguments (`**torchrl`) may have their default values only.
    """

    STATE: ClassVar = {"count": fields.COUNT, "content": fields.ANY, "links": fields.ANY}
    ndim = 1
    """Dimensions of the array of rows: time, and parallel environments."""

    indexed = False
    """Whether TensorDicts that are read have the feature `index`; set by the writer."""

    _save_hooks: tuple[Callable[..., Any], ...] = ()
    _load_hooks: tuple[Callable[..., Any], ...] = ()
    _columns: tuple[int, ...] = ()  # sizes of the dimensions beyond the first, once they are known
    _leaves: Leaves  # all `max_size` rows of each leaf; empty before the first write
    _shape: tuple[int, ...]  # batch size of one row
    _frame: Frame
    _words: dict[Key, list[str]]  # texts by their codes
    device: torch.device | None  # None: that of the first rows
    _plans: dict[tuple[Key, ...], tuple[list[Tensor], Node]]
    _shared = False  # whether to share memory allocated later

    def __init__(self, max_size: int, ndim: int = 1, device: torch.device | None = None) -> None:
        if max_size < 1:
            raise UsageError(f"max_size is {max_size}; expected at least 1")
        self.max_size = max_size
        self._process: int | None = os.getpid()
        self._count = 0
        self._index = TrajectoryIndex(max_size)
        self._all = ValidRows(0, np.zeros(0, np.int64))
        self._leaves, self._shape, self._plans, self._words, self._frame = {}, (), {}, {}, Frame()
        self.ndim, self.device = ndim, device

    def __len__(self) -> int:
        return self._count

    def gather(self, rows: Tensor) -> Any:
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
            UsageError: Data that do not match the stored rows, or a call from another process.
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
        return self.get(index)

    def __setitem__(self, index: Index, data: Any) -> None:
        """Change the values of existing rows; their order in time is unchanged."""
        self.overwrite(cells_of(index, self.numbers()), data)

    def overwrite(self, cells: Tensor, data: Any) -> None:
        """Change the values of rows by number, in the shape of the data; see `storage[…] = …`."""
        if self._process != os.getpid() and not self._shares:
            raise UsageError(
                "Values set here would not reach the process that created the storage", hint=_THERE
            )
        rows = cells.reshape(-1)
        if len(set(rows.tolist())) < len(rows):
            raise UsageError("A row is set twice; its value would be undefined")
        if len(rows):
            if self.ndim > 1 and hasattr(data, "batch_size"):
                data = data.expand(*cells.shape, *self._shape)
            self._write(rows, self._convert_rows(data, cells.ndim))
            self._index.changed()

    def rows(self, *, valid_only: bool) -> ValidRows:  # noqa: ARG002 - rows include their `next`
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
        `EpisodeIndex.order`). Rows without features of trajectories are separate runs. Direct
        changes to the tensors that a storage was created from are noticed at the next write.
        """
        return self._index.runs(self._count, self._mark)

    def _mark(self, key: Key) -> Tensor | None:
        """Return a feature that delimits trajectories, of all rows; None: there is none."""
        return self._leaf(key) if self._count and not self._of_trajectories else None

    @property
    def trajectory_key(self) -> NestedKey | None:
        """Feature of trajectory numbers by which `runs` separates rows; None: there is none."""
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
        """Return the trajectories delimited by other features; raises `UsageError` without them.

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
        """Pickle written rows only; memory is shared with a spawned process, unlike with a copy."""
        spawning = get_spawning_popen() is not None
        state = {**vars(self), "_plans": {}, "_process": None if not spawning else _NOBODY}
        if not self._shares and not spawning:
            state["_leaves"] = {k: leaf[: len(self)].clone() for k, leaf in self._leaves.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        leaves = self._leaves
        if any(len(leaf) < self.max_size for leaf in leaves.values()):
            self._reserve(leaves, self._shape)
            self._put(slice(0, len(self)), leaves, len(self))
        if self._process is None:
            self._process = _NOBODY if self._shares else os.getpid()

    def state_dict(self) -> dict[str, Any]:
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
        save_tree(self.state_to_save(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        self.load_state_dict(self.state_of_saved(load_tree(Path(path))))  # copies the rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {plural(self.max_size, 'row')})"

    def _use(self, leaves: Leaves, shape: Sequence[int]) -> None:
        # Operations on a subclass (tensordict's memory maps) are slow.
        self._leaves = {
            key: leaf.detach().as_subclass(torch.Tensor) for key, leaf in leaves.items()
        }
        self._shape = tuple(shape)
        self.device = next(iter(self._leaves.values())).device
        self._plans = {}

    def get(self, index: Index) -> Any:
        """Return a copy of rows, in the shape of the index (see `rows_of`), one row for an int.

        TensorDicts have `index`, as in TorchRL, if rows are written by a TensorDict writer.
        """
        rows = gather_cells(self.gather, cells_of(index, self.numbers()))
        if not self.indexed and isinstance(rows, TensorDictBase):
            rows.pop("index")
        return rows

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        known = [key for key in self._written_leaves() if key]
        return SelectedLeaves(self, select_keys(known, keys))

    def _take(self, rows: Tensor, keys: Sequence[Key] | None) -> Any:
        known = self._written_leaves()
        rows = rows.to(self.device)
        if self._frame.template is not None:
            return self._frame.tree([leaf.index_select(0, rows) for leaf in known.values()])
        keys = tuple(known if keys is None else keys)
        if keys not in self._plans:
            slots = {key: slot for slot, key in enumerate((INDEX, *keys))}
            self._plans[keys] = [known[key] for key in keys], tree_of(slots)
        sources, tree = self._plans[keys]
        size = torch.Size((len(rows), *self._shape))
        index = rows
        if self._shape:
            index = rows.reshape(-1, *[1] * len(self._shape)).expand(size).contiguous()
        leaves = [index, *(source.index_select(0, rows) for source in sources)]
        batch = assemble(tree, leaves, size, rows.device)
        if self._words and len(rows):
            for key in self._words.keys() & {*keys}:
                batch.set(key, texts(batch.get(key), self._words[key]))
        return self._frame.set_frame(batch) if self._frame != (None, (), ()) else batch

    def batch_length(self, data: Any) -> int:
        """Return the number of steps in data to write; raises `UsageError`."""
        if isinstance(data, dict | tuple) and not is_list(data):
            leaf = next(iter(leaves_of(data).values()))
            if not leaf.ndim:
                raise UsageError("extend needs several rows and got one; add(row) writes one")
            return len(leaf)
        if self.ndim > 1 and not self._leaves and not is_list(data):
            self._convert_rows(data, self.ndim)  # sets the width
        return count_of(data)

    def _convert_rows(self, data: Any, dims: int) -> Any:
        """Return features `[rows, …]`, and the original rows to derive their origin from."""
        data = stack_rows(list(data)) if dims and is_list(data) else plain(data)
        leaves: dict[Key, Any] = leaves_of(data, text=True)
        frame = Frame.of(data, dims)
        whole: tuple[int, ...] = tuple(getattr(data, "batch_size", ()))
        if frame.template is not None:
            whole = tuple(next(iter(leaves.values())).shape[:dims])
        if len(whole) < dims:
            raise UsageError(
                f"Rows must have at least {plural(dims, 'dimension')}; found {list(whole)}"
            )
        shape = whole[dims:]
        if not self._leaves:
            self._shape, self._frame = shape, frame
            self._set_columns(whole[dims - self.ndim + 1 : dims] if self.ndim > 1 else ())
        if shape != self._shape:
            raise UsageError(f"A row has batch size {list(shape)}; expected {list(self._shape)}")
        converted = {}
        for key, leaf in leaves.items():
            if not isinstance(leaf, torch.Tensor):
                leaf = self._encode_text(key, leaf).reshape(whole)
            elif key in self._words:
                raise UsageError(f"The feature {join_key(key)} is a tensor; stored rows have text")
            converted[key] = flat(leaf, dims)
        return converted, data if frame.template is None else {}

    def _set_columns(self, columns: tuple[int, ...]) -> None:
        """Set the number of rows in a step; rounds `max_size` up to whole steps."""
        self._columns = columns
        self._index.width = self.width
        self.max_size = -(-self.max_size // self.width) * self.width
        self._index.steps = self.steps

    def _encode_text(self, key: Key, leaf: Any) -> Tensor:
        if self._leaves and key not in self._words:
            raise UsageError(f"The feature {join_key(key)} is text; stored rows have no such text")
        words = self._words.setdefault(key, [])
        known = {word: code for code, word in enumerate(words)}
        found = np.asarray(leaf.tolist(), dtype=object).reshape(-1).tolist()
        codes = [known.setdefault(text, len(known)) for text in found]
        words[:] = known
        return torch.tensor(codes, dtype=torch.int32)

    def _write(self, rows: slice | Tensor, converted: Any) -> Tensor | None:
        """Write the result of `_convert_rows` at `rows`, all or nothing; returns its `origin_of`."""
        leaves, data = converted
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if not self._leaves:
            self._reserve(leaves, self._shape)
        self._put(rows, leaves, count)
        return origin_of(data, count)

    def _put(self, index: slice | Tensor, leaves: Leaves, count: int) -> None:
        self._check_leaves(leaves, count)
        positions = index if isinstance(index, slice) else index.to(self.device)
        for key, leaf in leaves.items():
            self._leaves[key][positions] = leaf.detach().to(self.device)

    def _check_leaves(self, leaves: Leaves, count: int) -> None:
        if leaves.keys() != self._leaves.keys():
            missing = ", ".join(join_key(key) for key in self._leaves if key not in leaves)
            more = ", ".join(join_key(key) for key in leaves if key not in self._leaves)
            parts = [f"lack {missing}" if missing else "", f"also have {more}" if more else ""]
            raise UsageError(
                f"The rows {' and '.join(filter(None, parts))}; the stored rows have "
                f"{', '.join(map(join_key, self._leaves))}",
                hint="the first write determines the features: data.select(…) leaves others out",
            )
        for key, leaf in leaves.items():
            check_fits(key, leaf, self._leaves[key], count)

    def _reserve(self, leaves: Leaves, shape: Sequence[int]) -> None:
        tensors = {}
        for key, leaf in leaves.items():
            size, device = (self.max_size, *leaf.shape[1:]), self.device or leaf.device
            tensors[key] = torch.empty(size, dtype=leaf.dtype, device=device)
        self._use(tensors, shape)
        if self._shared:
            for leaf in self._leaves.values():
                leaf.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def _shares(self) -> bool:
        leaves = self._leaves.values()
        return any(leaf.is_shared() for leaf in leaves)  # type: ignore[no-untyped-call]

    @property
    def _of_trajectories(self) -> bool:
        """Whether a row is a trajectory with its own time dimension."""
        return bool(self._written_leaves()) and bool(self._shape)

    def _leaf(self, key: Key) -> Tensor | None:
        leaf = self._written_leaves().get(key)
        return None if leaf is None else leaf[: len(self)]

    def _content(self) -> Any:
        """Return all rows, without copying, as a tree for `save_tree`."""
        leaves = {key: leaf[: len(self)] for key, leaf in self._leaves.items()}
        if not leaves:
            return None
        kind = {"frame": tuple(self._frame), "columns": self._columns, "words": self._words}
        return {"leaves": leaves, "shape": self._shape, **kind}

    def _content_of(self, rows: Any) -> Any:
        """Return rows, as `get` returns them, as a tree like that of `_content`."""
        return rows

    def _check_content(self, content: Any, count: int) -> int:
        """Raise unless `_restore` takes `content`; returns the number of rows in a step."""
        if content is None and not count:
            return self.width
        state = StoredRows(content, count, self.ndim)
        if self._leaves and count:
            if state.shape != self._shape or state.columns != self._columns:
                raise UsageError(
                    f"The rows of the state have the shape {[*state.columns, *state.shape]}; "
                    f"expected {[*self._columns, *self._shape]}"
                )
            if state.words.keys() != self._words.keys() and self._words:
                raise UsageError(
                    f"The state has the text features {[*state.words]}; expected {[*self._words]}"
                )
            self._check_leaves(state.leaves, count)
        return state.width

    def _restore(self, content: Any, count: int) -> None:
        if content is None or not count:
            return
        state = StoredRows(content, count, self.ndim)
        leaves, words = state.leaves, state.words
        if not self._leaves:
            self._frame = state.frame
            self._set_columns(state.columns)
            self._reserve(leaves, state.shape)
        self._put(slice(0, count), leaves, count)
        self._words = {key: list(some) for key, some in words.items()}

    def _written_leaves(self) -> Leaves:
        if not self._leaves:
            raise BufferUsageError(
                "The storage is empty; its features are unknown until the first row is written"
            )
        return self._leaves


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
