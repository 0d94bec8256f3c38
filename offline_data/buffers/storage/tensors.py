"""Storages of tensors: a leaf of all rows is one tensor, in memory or in a memory-mapped file."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from offline_data.buffers.gather.assemble import Node, assemble, tree_of
from offline_data.buffers.gather.plan import INDEX
from offline_data.buffers.indexing import Index, rows_of
from offline_data.buffers.keys import KeyLike, select_keys
from offline_data.buffers.storage.base import GrowingStorage, SelectedLeaves, Storage
from offline_data.buffers.storage.trajectory_index import Marks, marks_of
from offline_data.buffers.unsupported import refuse
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import NotFoundError, UsageError
from offline_data.files import disk_errors, require_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from typing_extensions import Self

Leaves: TypeAlias = "dict[Key, Tensor]"
"""Tensors by key; a tensor that is no TensorDict has the key `()`."""

META = "meta.json"
"""The file that makes a folder a memory-mapped TensorDict."""


class TensorStorage(GrowingStorage):
    """Rows of a TensorDict, tensorclass or tensor, which is used as it is and not copied.

    All rows are there from the beginning; a writer begins to write over them at row 0. Batches are
    TensorDicts on the device of the data (or tensors), each leaf contiguous and in memory of its
    own, with `index`. Unlike TorchRL's, nested TensorDicts of a batch have the batch size of the
    root; batches of a tensorclass are TensorDicts; rows with other leaves than the first ones are
    refused; a leaf `index` is not stored, but made.

    Args:
        storage: `[rows, …]`. A TensorDict's batch dimensions beyond the first belong to a row.
        max_size: None, or the number of rows.
        **torchrl: `ndim` and `compilable` of TorchRL's signature, with their defaults.

    Raises:
        UsageError: No rows, something that is no tensor, or an invalid argument.

    Example:
        >>> storage = TensorStorage(TensorDict({"action": torch.arange(3)}, batch_size=[3]))
        >>> storage.gather(torch.tensor([2, 0]))["action"]
        tensor([2, 0])
    """

    _leaves: Leaves  # all `max_size` rows of each leaf; empty before they are known
    _shape: tuple[int, ...]  # batch size of one row
    device: torch.device | None  # None: that of the first rows
    _plans: dict[tuple[Key, ...], tuple[list[Tensor], Node]]
    _shared = False  # whether memory to come is shared with other processes

    def __init__(self, storage: Any, max_size: int | None = None, **torchrl: Any) -> None:
        refuse(type(self).__name__, torchrl, "ndim compilable")
        leaves = leaves_of(storage)
        count = len(next(iter(leaves.values())))
        if not count or max_size not in {None, count}:
            raise UsageError(f"The tensors have {count} rows; expected {max_size or 'some'}")
        super().__init__(count)
        self._use(leaves, getattr(storage, "batch_size", (0,))[1:])
        self._count = count
        marks = marks_of({} if self._shape else self._leaves, count, storage)
        self._index.wrote(slice(0, count), marks, linked=True)

    def _use(self, leaves: Leaves, shape: Sequence[int]) -> None:
        """Take tensors `[max_size, …]` as the memory of all rows."""
        # Operations on a subclass (memory maps of tensordict) are slow.
        self._leaves = {
            key: leaf.detach().as_subclass(torch.Tensor) for key, leaf in leaves.items()
        }
        self._shape = tuple(shape)
        self.device = next(iter(self._leaves.values())).device
        self._plans = {}

    def get(self, index: Index) -> Any:
        """Return rows, copied; see `rows_of` for the index and the shape that it gives."""
        rows = rows_of(index, len(self))
        batch = self.gather(rows.reshape(-1))
        return batch.reshape(rows.shape + batch.shape[1:])

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows, as they will be, with some of the leaves; see `Storage`."""
        known = [key for key in self._known() if key]
        return SelectedLeaves(self, select_keys(known, keys))

    def share_memory_(self) -> Self:
        """Keep all rows in shared memory, also those to come; returns the storage.

        Other processes see values that are written, and may set values of rows by
        `storage[rows] = …`; how many rows there are they know as of when they got the storage.
        """
        self._shared = True
        for leaf in self._leaves.values():
            leaf.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Take along written rows only; memory is shared with a process that is being spawned."""
        state = {**super().__getstate__(), "_plans": {}}
        if not self._shares and get_spawning_popen() is None:
            state["_leaves"] = {k: leaf[: len(self)].clone() for k, leaf in self._leaves.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        leaves = self._leaves
        if any(len(leaf) < self.max_size for leaf in leaves.values()):
            self._reserve(leaves, self._shape)
            self._put(slice(0, len(self)), leaves, len(self))
        super().__setstate__({})

    def _take(self, rows: Tensor, keys: Sequence[Key] | None) -> Any:
        known = self._known()
        rows = rows.to(self.device)
        if () in known:
            return known[()].index_select(0, rows)
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
        return assemble(tree, leaves, size, rows.device)

    def _write(self, index: slice | Tensor, data: Any, *, single: bool) -> Marks:
        data = stacked(list(data)) if isinstance(data, list | tuple) else data
        leaves = leaves_of(data)
        if single:
            leaves = {key: leaf.unsqueeze(0) for key, leaf in leaves.items()}
        shape = getattr(data, "batch_size", (0,))[0 if single else 1 :] if () not in leaves else ()
        count = index.stop - index.start if isinstance(index, slice) else len(index)
        if not self._leaves:
            self._reserve(leaves, shape)
        if tuple(shape) != self._shape:
            raise UsageError(f"A row has batch size {list(shape)}; expected {list(self._shape)}")
        self._put(index, leaves, count)
        return marks_of({} if shape else leaves, count, data)

    def _put(self, index: slice | Tensor, leaves: Leaves, count: int) -> None:
        """Write `count` rows: all leaves of them or, where one does not fit, none."""
        if leaves.keys() != self._leaves.keys():
            missing = ", ".join(join_key(key) for key in self._leaves if key not in leaves)
            more = ", ".join(join_key(key) for key in leaves if key not in self._leaves)
            parts = [f"lack {missing}" if missing else "", f"have {more} beside" if more else ""]
            raise UsageError(
                f"The rows {' and '.join(filter(None, parts))}; the rows here have "
                f"{', '.join(map(join_key, self._leaves))}",
                hint="the first rows that are written decide: data.select(…) leaves the others out",
            )
        for key, leaf in leaves.items():
            _check_fits(key, leaf, self._leaves[key], count)
        where = index if isinstance(index, slice) else index.to(self.device)
        for key, leaf in leaves.items():
            self._leaves[key][where] = leaf.detach().to(self.device)

    def _reserve(self, leaves: Leaves, shape: Sequence[int]) -> None:
        """Make room for `max_size` rows like these."""
        rooms = {}
        for key, leaf in leaves.items():
            room, device = (self.max_size, *leaf.shape[1:]), self.device or leaf.device
            rooms[key] = torch.empty(room, dtype=leaf.dtype, device=device)
        self._use(rooms, shape)
        if self._shared:
            self.share_memory_()

    @property
    def _shares(self) -> bool:
        leaves = self._leaves.values()
        return any(leaf.is_shared() for leaf in leaves)  # type: ignore[no-untyped-call]

    @property
    def _of_trajectories(self) -> bool:
        return bool(self._known()) and bool(self._shape)

    def _leaf(self, key: Key) -> Tensor | None:
        leaf = self._known().get(key)
        return None if leaf is None else leaf[: len(self)]

    def _content(self) -> Any:
        leaves = {key: leaf[: len(self)] for key, leaf in self._leaves.items()}
        return {"leaves": leaves, "shape": self._shape} if leaves else None

    def _restore(self, content: Any, count: int) -> None:
        if content is None or not count:
            return
        if not self._leaves:
            self._reserve(content["leaves"], content["shape"])
        self._put(slice(0, count), content["leaves"], count)

    def _known(self) -> Leaves:
        if not self._leaves:
            raise UsageError(
                "The storage is empty, and its leaves are not known before the first row is written"
            )
        return self._leaves


class LazyTensorStorage(TensorStorage):
    """Up to `max_size` rows of tensors in memory, reserved when the first row is written.

    The leaves, shapes and dtypes of the first rows are those of all rows; see `TensorStorage`.

    Args:
        max_size: How many rows there can be.
        device: Device of the rows; `"auto"`: that of the first ones.
        **torchrl: Defaults of TorchRL's other arguments; others raise `UsageError`.

    Example:
        >>> storage = LazyTensorStorage(10)
        >>> storage.set(slice(0, 2), torch.tensor([[5.0], [6.0]]))
        >>> len(storage), storage.get(1)
        (2, tensor([6.]))
    """

    def __init__(
        self, max_size: int, *, device: torch.device | str | int = "cpu", **torchrl: Any
    ) -> None:
        known = "ndim compilable consolidated shared_init cleanup_memmap"
        refuse(type(self).__name__, torchrl, known)
        GrowingStorage.__init__(self, max_size)
        self._leaves, self._shape, self._plans = {}, (), {}
        self.device = None if device == "auto" else torch.device(device)


class LazyMemmapStorage(LazyTensorStorage):
    """Up to `max_size` rows of TensorDicts in memory-mapped files.

    The folder is a memory-mapped TensorDict (`TensorDict.load_memmap` opens it; rows not written
    yet are zero). A pickled storage carries the folder, not the rows: another process sees the
    values of the same files, and as many rows as there were when it was pickled.

    Args:
        max_size: How many rows there can be.
        scratch_dir: Folder of the files, kept; None: a temporary one, which goes with the storage
            or at the end of the process that made it.
        existsok: Whether files of another storage in `scratch_dir` may be written over.
        auto_cleanup: Whether the folder goes with the storage; None: where it is a temporary one.
        device: The CPU.
        **torchrl: Defaults of TorchRL's other arguments; others raise `UsageError`.

    Raises:
        UsageError: Invalid argument; with the first row, files in `scratch_dir`.
        NoSpaceError, AccessError: With the first row: `max_size` rows do not fit on the disk.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        existsok: bool = False,
        auto_cleanup: bool | None = None,
        device: torch.device | str = "cpu",
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, "ndim compilable shared_init")
        if torch.device("cpu" if device == "auto" else device).type != "cpu":
            raise UsageError(
                f"Files are mapped into the memory of the CPU, not of {device}",
                hint="buffer.append_transform(lambda batch: batch.to(device))",
            )
        super().__init__(max_size)
        self._overwrite = existsok
        self._remove = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self.scratch_dir = (
            None if scratch_dir is None else Path(scratch_dir).expanduser().absolute()
        )
        self._files: dict[Key, tuple[str, torch.dtype, tuple[int, ...]]] = {}

    @property
    def _shares(self) -> bool:
        return bool(self._leaves)

    def share_memory_(self) -> Self:
        """Do nothing: files are shared. Returns the storage."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out rows: the other process opens the files."""
        return {**GrowingStorage.__getstate__(self), "_leaves": {}, "_plans": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._files:
            self._use({key: _open(*file) for key, file in self._files.items()}, self._shape)
        GrowingStorage.__setstate__(self, {})

    def _reserve(self, leaves: Leaves, shape: Sequence[int]) -> None:
        if () in leaves:
            raise UsageError(
                "Rows of a LazyMemmapStorage are TensorDicts, not tensors",
                hint='extend(TensorDict({"value": tensor}, batch_size=len(tensor)))',
            )
        if self.scratch_dir is None:
            self.scratch_dir = Path(tempfile.mkdtemp(prefix="offline-data-"))
        elif (self.scratch_dir / META).exists() and not self._overwrite:
            raise UsageError(
                f"{self.scratch_dir} has the files of another storage",
                hint="choose another scratch_dir, or existsok=True to write over them",
            )
        needed = self.max_size * sum(leaf[:1].nbytes for leaf in leaves.values())
        require_bytes(self.scratch_dir, needed, f"Room for {self.max_size} rows")
        if self._remove:
            weakref.finalize(self, _remove, self.scratch_dir, os.getpid())
        one = {key: leaf[:1].expand(self.max_size, *leaf.shape[1:]) for key, leaf in leaves.items()}
        with disk_errors(self.scratch_dir):
            mapped = TensorDict(one, (self.max_size, *shape)).memmap_like(
                prefix=self.scratch_dir, existsok=self._overwrite
            )
        maps = {key: mapped.get(key) for key in leaves}
        for key, leaf in maps.items():
            self._files[key] = str(leaf.filename), leaf.dtype, tuple(leaf.shape)
        self._use(maps, shape)


def leaves_of(data: Any, *, index: bool = False) -> Leaves:
    """Return the leaves of a tensor, TensorDict or tensorclass, without `index` unless asked for.

    Raises `UsageError` if it is something else, or has a leaf that is no tensor.
    """
    if isinstance(data, torch.Tensor):
        return {(): data}
    data = plain(data)
    if not isinstance(data, TensorDictBase):
        raise UsageError(
            f"A storage of tensors was given a {type(data).__name__}; expected a TensorDict, a "
            "tensorclass or a tensor",
            hint="TensorDict(data, batch_size=[…]), or a ListStorage, which takes anything",
        )
    items = data.items(include_nested=True, leaves_only=True, is_leaf=_is_leaf)
    leaves = {key if isinstance(key, tuple) else (key,): leaf for key, leaf in items}
    if not leaves:
        raise UsageError("The rows have no leaves", hint="a row has at least one tensor")
    if not index:
        if any(key[:1] == INDEX for key in leaves):
            check_index(data.get("index"), data)
        leaves.pop(INDEX, None)
        if not leaves:
            raise UsageError("The rows have no leaf but index, which is not stored: it is made")
    for key, leaf in leaves.items():
        if not isinstance(leaf, torch.Tensor):
            raise UsageError(
                f"The leaf {join_key(key)} is {type(leaf).__name__}; expected a tensor",
                hint="keep text as integer codes, or use a ListStorage, which takes anything",
            )
    return leaves


def plain(data: Any) -> Any:
    """Return a tensorclass as a TensorDict, and anything else as it is."""
    is_class = hasattr(data, "to_tensordict") and not isinstance(data, TensorDictBase)
    return data.to_tensordict() if is_class else data


def check_index(index: Any, data: TensorDictBase) -> None:
    """Warn that a leaf `index` is not stored, unless it is that of a dataset's batch.

    Raises `UsageError` if the leaf cannot be the rows of a batch.
    """
    if index is None:
        return
    hint = "data.rename_key_('index', 'my_index') keeps it; data.exclude('index') leaves it out"
    found: Any = None
    if not isinstance(index, torch.Tensor):
        found = type(index).__name__
    elif index.dtype is not torch.int64:
        found = index.dtype
    elif index.shape != data.batch_size:
        found = list(index.shape)
    if found is not None:
        raise UsageError(
            f"The leaf index is {found}; in batches it is the row of the buffer, torch.int64 "
            f"{list(data.batch_size)}, and a leaf of your own needs another name",
            hint=hint,
        )
    if data.get("episode", None) is None:
        warnings.warn(
            "The leaf index is not stored: in batches it is the row of this buffer; " + hint,
            stacklevel=2,
        )


def count_of(data: Any) -> int:
    """Return how many rows are to be written; raises `UsageError` for one row, a dict, text."""
    ndim = getattr(data, "batch_dims", getattr(data, "ndim", 1))
    found = f"a {type(data).__name__}" + ("" if ndim else " without a batch dimension")
    named = isinstance(data, Mapping | str | bytes) and not isinstance(data, TensorDictBase)
    if isinstance(data, tuple) and any(type(row) is torch.Tensor for row in data):
        found = "a tuple of tensors, which may be rows or the leaves of rows"
    elif ndim and hasattr(data, "__getitem__") and not named:
        return len(data)
    raise UsageError(
        f"Several rows are written at once, and found {found}; expected a TensorDict [B], a tensor "
        "or a list of rows",
        hint="TensorDict(data, batch_size=[B]) makes rows of a dict of tensors; add(row) writes one",
    )


def stacked(rows: list[Any]) -> Any:
    """Stack TensorDicts, tensorclasses or tensors; raises `UsageError` where they cannot be."""
    try:
        return torch.stack(rows)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise UsageError(
            f"A list of {kinds} cannot be stacked to rows: {error}",
            hint="rows are TensorDicts with the same leaves, or tensors of one shape; a ListStorage "
            "takes anything",
        ) from error


def _is_leaf(kind: type) -> bool:
    return issubclass(kind, (torch.Tensor, NonTensorData, NonTensorStack))


def _check_fits(key: Key, leaf: Tensor, stored: Tensor, count: int) -> None:
    """Raise `UsageError` unless `count` rows of a leaf can be written to the stored one."""
    name = f"The leaf {join_key(key)}" if key else "The tensor"
    expected = (count, *stored.shape[1:])
    if tuple(leaf.shape) != expected:
        raise UsageError(
            f"{name} has the shape {list(leaf.shape)}; expected {list(expected)}: the rows, then "
            "what one row has here"
        )
    if leaf.dtype == stored.dtype:
        return
    if not torch.can_cast(leaf.dtype, stored.dtype):
        raise UsageError(f"{name} is {leaf.dtype}; rows here have {stored.dtype}")
    exact = leaf.is_floating_point() or leaf.is_complex() or stored.dtype == torch.bool
    if not exact and not torch.equal(leaf.to(stored.dtype).to(leaf.dtype), leaf):
        raise UsageError(
            f"{name} is {leaf.dtype}, and some of its values do not fit in {stored.dtype}, which "
            "rows here have",
            hint="the first rows that are written decide the dtype",
        )


def _open(file: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    try:
        if Path(file).stat().st_size < count * dtype.itemsize:
            raise NotFoundError(f"{file} was cut short since the storage was made")
        return torch.from_file(file, shared=True, size=count, dtype=dtype).view(shape)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{file} is gone, because the storage that made it was deleted",
            hint="keep that storage, or give it a scratch_dir, which is kept",
        ) from error


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked copy of the storage does not own the files
        shutil.rmtree(folder, ignore_errors=True)
