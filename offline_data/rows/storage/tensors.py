"""Storages of tensors: each leaf is one tensor of all rows, in memory or memory-mapped."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils import _pytree as pytree

from offline_data.base.errors import BufferUsageError, NotFoundError, UsageError
from offline_data.base.files import disk_errors, is_unicode, require_bytes
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.rows.devices import as_device
from offline_data.rows.gather.assemble import Node, assemble, tree_of
from offline_data.rows.gather.plan import INDEX
from offline_data.rows.indexing import Index, cells_of
from offline_data.rows.keys import KeyLike, path_of, select_keys
from offline_data.rows.storage.base import GrowingStorage, SelectedLeaves, Storage
from offline_data.rows.storage.rows import (
    Frame,
    Leaves,
    StoredRows,
    count_of,
    flat,
    is_list,
    leaves_of,
    plain,
    stack_rows,
    texts,
)
from offline_data.rows.storage.trajectory_index import origin_of
from offline_data.rows.unsupported import refuse

if TYPE_CHECKING:
    from typing_extensions import Self

META = "meta.json"
"""File that marks a folder as a memory-mapped TensorDict."""


class TensorStorage(GrowingStorage):
    """Rows of a TensorDict, tensorclass or tensor, or of dicts, tuples and lists of tensors.

    The given data are used without a copy, and all rows count as written; a writer starts
    overwriting at row 0. A TensorDict without leaves reserves as many rows as it has. Batches are
    TensorDicts with `index`, or have the given structure, on the device of the data, each leaf a
    contiguous copy. Strings of a TensorDict are stored as codes (in files too) and returned as
    strings. Unlike TorchRL's, rows of a tensorclass are TensorDicts (batches of a `ReplayBuffer`
    without `index` have the class again); rows with other leaves than the first ones are refused; a
    leaf `index` of a TensorDict is computed, not stored.

    With `ndim` of two or more, a step has one row for each of `E` parallel environments: `set` and
    `get` count steps, everything else rows, in step order. `len` and `max_size` (rounded up to whole
    steps) count rows; trajectories are per environment.

    Args:
        storage: `[rows, …]`, or `[steps, E, …]`. Further batch dimensions of a TensorDict belong to
            a row.
        max_size: None, or the number of rows.
        device: Device to move the rows to; None or `"auto"`: unchanged.
        ndim: 1, or the number of dimensions of steps and environments.
        **torchrl: TorchRL's `compilable`; only the default is accepted.

    Raises:
        UsageError: No rows, data that are not tensors, or an invalid argument.

    Example:
        >>> storage = TensorStorage(TensorDict({"action": torch.arange(3)}, batch_size=[3]))
        >>> storage.gather(torch.tensor([2, 0]))["action"]
        tensor([2, 0])
    """

    _leaves: Leaves  # all `max_size` rows of each leaf; empty before the first write
    _shape: tuple[int, ...]  # batch size of one row
    _frame: Frame
    _words: dict[Key, list[str]]  # texts by their codes
    device: torch.device | None  # None: that of the first rows
    _plans: dict[tuple[Key, ...], tuple[list[Tensor], Node]]
    _shared = False  # whether to share memory allocated later

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str | int | None = None,
        ndim: int = 1,
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, "compilable")
        if storage is None:
            raise UsageError(
                "Expected storage to be non-null, a TensorDict, a tensor or a tree of tensors",
                hint="LazyTensorStorage(max_size) allocates memory when the first row is written",
            )
        if device is not None and device != "auto":
            moved = as_device(device)
            storage = pytree.tree_map(lambda part: part.to(moved), storage, is_leaf=_moves)
        if isinstance(storage, TensorDictBase) and storage.is_empty():
            self._begin(storage.batch_size[:ndim].numel(), ndim, storage.device)
            return
        leaves = leaves_of(storage, text=True)
        count = next(iter(leaves.values())).shape[:ndim].numel()
        if not count:
            raise UsageError("The tensors have no rows; expected at least one")
        if max_size not in {None, count}:
            raise UsageError(
                f"The max-size and the storage shape mismatch: max_size is {max_size}, and the tensors "
                f"have {plural(count, 'row')}"
            )
        self._begin(count, ndim, None)
        leaves, rows = self._convert_rows(storage, ndim)
        self._use(leaves, self._shape)
        self._count = count
        self._index.wrote(slice(0, self.steps), origin_of(rows, count), linked=True)

    def _begin(self, max_size: int, ndim: int, device: torch.device | None) -> None:
        """Have room for rows that are not known yet."""
        super().__init__(max_size)
        self._leaves, self._shape, self._plans, self._words, self._frame = {}, (), {}, {}, Frame()
        self.ndim, self.device = ndim, device

    def _use(self, leaves: Leaves, shape: Sequence[int]) -> None:
        """Set the memory of all rows to tensors `[max_size, …]`."""
        # Operations on a subclass (tensordict's memory maps) are slow.
        self._leaves = {
            key: leaf.detach().as_subclass(torch.Tensor) for key, leaf in leaves.items()
        }
        self._shape = tuple(shape)
        self.device = next(iter(self._leaves.values())).device
        self._plans = {}

    def get(self, index: Index) -> Any:
        """Return a copy of rows, in the shape of the index; see `GrowingStorage.get`."""
        rows = gather_cells(self.gather, cells_of(index, self.numbers()))
        if not self.indexed and isinstance(rows, TensorDictBase):
            rows.pop("index")
        return rows

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return a live view of the rows with only some leaves; see `Storage`."""
        known = [key for key in self._written_leaves() if key]
        return SelectedLeaves(self, select_keys(known, keys))

    def share_memory_(self) -> Self:
        """Move all rows, including future ones, to shared memory; returns the storage.

        Other processes see written values, and may set values by `storage[rows] = …`; the number of
        rows they see is that when they received the storage.
        """
        self._shared = True
        for leaf in self._leaves.values():
            leaf.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Pickle written rows only; memory is shared with a spawned process."""
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
        """Return leaves `[rows, …]`, and the original rows to derive their origin from."""
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
                raise UsageError(f"The leaf {join_key(key)} is a tensor; stored rows have text")
            converted[key] = flat(leaf, dims)
        return converted, data if frame.template is None else {}

    def _set_columns(self, columns: tuple[int, ...]) -> None:
        """Set the number of rows in a step; rounds `max_size` up to whole steps."""
        self._columns = columns
        self._index.width = self.width
        self.max_size = -(-self.max_size // self.width) * self.width
        self._index.steps = self.steps

    def _encode_text(self, key: Key, leaf: Any) -> Tensor:
        """Return the int32 codes of strings, adding new ones."""
        if self._leaves and key not in self._words:
            raise UsageError(f"The leaf {join_key(key)} is text; stored rows have no such text")
        words = self._words.setdefault(key, [])
        known = {word: code for code, word in enumerate(words)}
        found = np.asarray(leaf.tolist(), dtype=object).reshape(-1).tolist()
        codes = [known.setdefault(text, len(known)) for text in found]
        words[:] = known
        return torch.tensor(codes, dtype=torch.int32)

    def _write(self, rows: slice | Tensor, converted: Any) -> Tensor | None:
        leaves, data = converted
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if not self._leaves:
            self._reserve(leaves, self._shape)
        self._put(rows, leaves, count)
        return origin_of(data, count)

    def set_leaves(self, index: Any, values: Mapping[KeyLike, Tensor]) -> None:
        """Change only some leaves of rows; raises like `storage[index] = value`."""
        rows = cells_of(index, self.numbers())
        known = self._written_leaves()
        leaves = {path_of(key): flat(leaf, rows.ndim) for key, leaf in values.items()}
        for key, leaf in leaves.items():
            if key not in known:
                raise UsageError(
                    f"There is no leaf {join_key(key)}; there are {', '.join(map(join_key, known))}"
                )
            _check_fits(key, leaf, known[key], rows.numel())
        positions = rows.reshape(-1)
        for key, leaf in leaves.items():
            known[key][positions.to(self.device)] = leaf.detach().to(self.device)
        self._index.changed()

    def _put(self, index: slice | Tensor, leaves: Leaves, count: int) -> None:
        """Write `count` rows: all their leaves, or none if one does not match."""
        self._check_leaves(leaves, count)
        positions = index if isinstance(index, slice) else index.to(self.device)
        for key, leaf in leaves.items():
            self._leaves[key][positions] = leaf.detach().to(self.device)

    def _check_leaves(self, leaves: Leaves, count: int) -> None:
        """Raise `UsageError` unless `count` rows can be written."""
        if leaves.keys() != self._leaves.keys():
            missing = ", ".join(join_key(key) for key in self._leaves if key not in leaves)
            more = ", ".join(join_key(key) for key in leaves if key not in self._leaves)
            parts = [f"lack {missing}" if missing else "", f"also have {more}" if more else ""]
            raise UsageError(
                f"The rows {' and '.join(filter(None, parts))}; the stored rows have "
                f"{', '.join(map(join_key, self._leaves))}",
                hint="the first write determines the leaves: data.select(…) leaves others out",
            )
        for key, leaf in leaves.items():
            _check_fits(key, leaf, self._leaves[key], count)

    def _reserve(self, leaves: Leaves, shape: Sequence[int]) -> None:
        """Allocate memory for `max_size` rows like these."""
        tensors = {}
        for key, leaf in leaves.items():
            size, device = (self.max_size, *leaf.shape[1:]), self.device or leaf.device
            tensors[key] = torch.empty(size, dtype=leaf.dtype, device=device)
        self._use(tensors, shape)
        if self._shared:
            self.share_memory_()

    @property
    def _shares(self) -> bool:
        leaves = self._leaves.values()
        return any(leaf.is_shared() for leaf in leaves)  # type: ignore[no-untyped-call]

    @property
    def _of_trajectories(self) -> bool:
        return bool(self._written_leaves()) and bool(self._shape)

    def _leaf(self, key: Key) -> Tensor | None:
        leaf = self._written_leaves().get(key)
        return None if leaf is None else leaf[: len(self)]

    def _content(self) -> Any:
        leaves = {key: leaf[: len(self)] for key, leaf in self._leaves.items()}
        if not leaves:
            return None
        kind = {"frame": tuple(self._frame), "columns": self._columns, "words": self._words}
        return {"leaves": leaves, "shape": self._shape, **kind}

    def _content_of(self, rows: Any) -> Any:
        return TensorStorage(rows, ndim=self.ndim)._content()

    def _check_content(self, content: Any, count: int) -> int:
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
                    f"The state has the text leaves {[*state.words]}; expected {[*self._words]}"
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
                "The storage is empty; its leaves are unknown until the first row is written"
            )
        return self._leaves


class LazyTensorStorage(TensorStorage):
    """Up to `max_size` rows of tensors, allocated when the first row is written.

    The first rows determine leaves, shapes and dtypes; see `TensorStorage`.

    Args:
        max_size: Capacity in rows.
        device: Device of the rows; `"auto"`: that of the first ones.
        ndim: See `TensorStorage`.
        **torchrl: TorchRL's other arguments; only the defaults are accepted.

    Example:
        >>> storage = LazyTensorStorage(10)
        >>> storage.set(slice(0, 2), torch.tensor([[5.0], [6.0]]))
        >>> len(storage), storage.get(1)
        (2, tensor([6.]))
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str | int = "cpu",
        ndim: int = 1,
        **torchrl: Any,
    ) -> None:
        known = "compilable consolidated shared_init cleanup_memmap"
        refuse(type(self).__name__, torchrl, known)
        self._begin(max_size, ndim, None if device == "auto" else as_device(device))


class LazyMemmapStorage(LazyTensorStorage):
    """Up to `max_size` rows in memory-mapped files.

    The folder is a memory-mapped TensorDict (`TensorDict.load_memmap` opens it; unwritten rows are
    zero). A pickled storage contains the folder, not the rows: another process sees the values in
    the same files, and as many rows as there were when it was pickled. Rows that are not
    TensorDicts are stored as leaves of one, by pytree path.

    Args:
        max_size: Capacity in rows.
        scratch_dir: Folder of the files, kept; None: a temporary folder, deleted with the storage or
            at the end of the process that created it.
        existsok: Whether to overwrite files of another storage in `scratch_dir`.
        auto_cleanup: Whether to delete the folder with the storage; None: if it is temporary.
        device: The CPU.
        ndim: See `TensorStorage`.
        **torchrl: TorchRL's other arguments; only the defaults are accepted.

    Raises:
        UsageError: Invalid argument; on the first write, existing files in `scratch_dir`.
        NoSpaceError, AccessError: On the first write: not enough disk space for `max_size` rows.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        existsok: bool = False,
        auto_cleanup: bool | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, "compilable shared_init")
        if as_device("cpu" if device == "auto" else device).type != "cpu":
            raise UsageError(
                f"device is {device}; files can be mapped to CPU memory only",
                hint="buffer.append_transform(lambda batch: batch.to(device))",
            )
        super().__init__(max_size, ndim=ndim)
        self._overwrite = existsok
        self._remove = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self.scratch_dir = (
            None if scratch_dir is None else Path(scratch_dir).expanduser().absolute()
        )
        self._files: dict[Key, tuple[str, torch.dtype, tuple[int, ...]]] = {}
        self._cleaner: Any = None

    @property
    def _shares(self) -> bool:
        return bool(self._leaves)

    def share_memory_(self) -> Self:
        """Return the storage; files are always shared."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out rows: the other process opens the files."""
        closed: dict[str, Any] = {"_leaves": {}, "_plans": {}, "_cleaner": None}
        return {**GrowingStorage.__getstate__(self), **closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._files:
            self._use({key: _open(*file) for key, file in self._files.items()}, self._shape)
        GrowingStorage.__setstate__(self, {})

    def _reserve(self, leaves: Leaves, shape: Sequence[int]) -> None:
        if self.scratch_dir is None:
            self.scratch_dir = Path(tempfile.mkdtemp(prefix="offline-data-"))
        elif (self.scratch_dir / META).exists() and not self._overwrite:
            raise BufferUsageError(
                f"{self.scratch_dir} has the files of another storage",
                hint="choose another scratch_dir, or existsok=True to overwrite them",
            )
        if not is_unicode(str(self.scratch_dir)):
            raise UsageError(
                f"scratch_dir {str(self.scratch_dir)!r} is not UTF-8, as torch requires of a path",
                hint="choose another scratch_dir",
            )
        needed = self.max_size * sum(leaf[:1].nbytes for leaf in leaves.values())
        require_bytes(self.scratch_dir, needed, f"Space for {plural(self.max_size, 'row')}")
        if self._remove:
            self._cleaner = weakref.finalize(self, _remove, self.scratch_dir, os.getpid())
        cells = (self.steps, *self._columns)
        one = {
            key or ("value",): leaf[:1].expand(*cells, *leaf.shape[1:])
            for key, leaf in leaves.items()
        }
        with disk_errors(self.scratch_dir):
            mapped = TensorDict(one, (*cells, *shape)).memmap_like(
                prefix=self.scratch_dir, existsok=self._overwrite
            )
        maps = {key: mapped.get(key or ("value",)) for key in leaves}
        for key, leaf in maps.items():
            shape_of_all = (self.max_size, *leaf.shape[len(cells) :])
            self._files[key] = str(leaf.filename), leaf.dtype, shape_of_all
        self._use({key: flat(leaf, len(cells)) for key, leaf in maps.items()}, shape)

    def cleanup(self) -> bool:
        """Delete the files now if the storage owns them; returns True if it did.

        Rows cannot be read afterwards.
        """
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is None or not cleaner.alive:
            return False
        self._leaves, self._plans, self._files = {}, {}, {}
        GrowingStorage.empty(self)
        cleaner()
        return True


def gather_cells(gather: Callable[[Tensor], Any], cells: Tensor) -> Any:
    """Return the rows with these numbers, in the shape of `cells`."""
    batch, size = gather(cells.reshape(-1)), cells.shape
    if cells.ndim == 1:
        return batch
    if isinstance(batch, TensorDictBase | torch.Tensor):
        return batch.reshape(size + batch.shape[1:]) if cells.ndim else batch[0]
    return pytree.tree_map(lambda leaf: leaf.reshape(size + leaf.shape[1:]), batch)


def _moves(part: Any) -> bool:
    return hasattr(part, "to")


def _check_fits(key: Key, leaf: Tensor, stored: Tensor, count: int) -> None:
    """Raise `UsageError` if `count` rows of a leaf cannot be written to the stored leaf."""
    name = f"The leaf {join_key(key)}" if key else "The tensor"
    expected = (count, *stored.shape[1:])
    if tuple(leaf.shape) != expected:
        raise UsageError(
            f"{name} has the shape {list(leaf.shape)}; expected {list(expected)}: the rows, then "
            "the shape of a stored row"
        )
    if leaf.dtype == stored.dtype:
        return
    if not torch.can_cast(leaf.dtype, stored.dtype):
        raise UsageError(f"{name} is {leaf.dtype}; stored rows have {stored.dtype}")
    exact = leaf.is_floating_point() or leaf.is_complex() or stored.dtype == torch.bool
    if not exact and not torch.equal(leaf.to(stored.dtype).to(leaf.dtype), leaf):
        raise UsageError(
            f"{name} is {leaf.dtype}, and some of its values do not fit in the stored "
            f"{stored.dtype}",
            hint="the first write determines the dtype",
        )


def _open(file: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    try:
        if Path(file).stat().st_size < count * dtype.itemsize:
            raise NotFoundError(f"{file} was truncated since the storage was created")
        return torch.from_file(file, shared=True, size=count, dtype=dtype).view(shape)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{file} does not exist: the storage that created it was deleted",
            hint="keep that storage alive, or give it a scratch_dir",
        ) from error


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked copy of the storage does not own the files
        shutil.rmtree(folder, ignore_errors=True)
