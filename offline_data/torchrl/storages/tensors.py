"""Storages of tensors: each feature is one tensor of all rows, in memory or memory-mapped."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils import _pytree as pytree

from offline_data.base.errors import BufferUsageError, NotFoundError, UsageError
from offline_data.base.files import disk_errors, is_unicode, require_bytes
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.rows.devices import as_device
from offline_data.rows.keys import KeyLike, path_of
from offline_data.rows.unsupported import refuse
from offline_data.torchrl.storages.growing import GrowingStorage
from offline_data.torchrl.storages.leaves import (
    Leaves,
    check_fits,
    flat,
    leaves_of,
)
from offline_data.torchrl.storages.trajectory_index import origin_of

if TYPE_CHECKING:
    from typing_extensions import Self

META = "meta.json"  # file that marks a folder as a memory-mapped TensorDict


class TensorStorage(GrowingStorage):
    """Rows of a TensorDict, tensorclass or tensor, or of dicts, tuples and lists of tensors.

    The given data are used without a copy, and all rows count as written; a writer starts
    overwriting at row 0. A TensorDict without features reserves as many rows as it has. Batches are
    TensorDicts with `index`, or have the given structure, on the device of the data, each feature a
    contiguous copy. Strings of a TensorDict are stored as codes (in files too) and returned as
    strings. Unlike TorchRL's, rows of a tensorclass are TensorDicts (batches of a `ReplayBuffer`
    without `index` have the class again); rows with other features than the first ones are refused;
    a feature `index` of a TensorDict is computed, not stored.

    With `ndim` of two or more, a step has one row for each of `E` parallel environments: `set` and
    `get` count steps, everything else rows, in step order. `len` and `max_size` (rounded up to
    whole steps) count rows; trajectories are per environment.

    Args:
        storage: `[rows, …]`, or `[steps, E, …]`. Further batch dimensions of a TensorDict belong to
            a row.
        max_size: None, or the number of rows.
        device: Device to move the rows to; None or `"auto"`: unchanged.
        ndim: 1, or the number of dimensions of steps and environments.

    Raises:
        UsageError: No rows, data that are not tensors, or an invalid argument.

    Example:
        >>> storage = TensorStorage(TensorDict({"action": torch.arange(3)}, batch_size=[3]))
        >>> storage.gather(torch.tensor([2, 0]))["action"]
        tensor([2, 0])
    """

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
            GrowingStorage.__init__(self, storage.batch_size[:ndim].numel(), ndim, storage.device)
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
        GrowingStorage.__init__(self, count, ndim, None)
        leaves, rows = self._convert_rows(storage, ndim)
        self._use(leaves, self._shape)
        self._count = count
        self._index.wrote(slice(0, self.steps), origin_of(rows, count), linked=True)

    def share_memory_(self) -> Self:
        """Move all rows, including future ones, to shared memory; returns the storage.

        Other processes see written values, and may set values by `storage[rows] = …`; the number of
        rows they see is that when they received the storage.
        """
        self._shared = True
        for leaf in self._leaves.values():
            leaf.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def set_leaves(self, rows: Tensor, values: Mapping[KeyLike, Tensor]) -> None:
        """Change only some features of rows by number; raises like `storage[index] = value`."""
        known = self._written_leaves()
        leaves = {path_of(key): flat(leaf, rows.ndim) for key, leaf in values.items()}
        for key, leaf in leaves.items():
            if key not in known:
                raise UsageError(
                    f"There is no feature {join_key(key)}; there are {', '.join(map(join_key, known))}"
                )
            check_fits(key, leaf, known[key], rows.numel())
        positions = rows.reshape(-1)
        for key, leaf in leaves.items():
            known[key][positions.to(self.device)] = leaf.detach().to(self.device)
        self._index.changed()

    def _content_of(self, rows: Any) -> Any:
        return TensorStorage(rows, ndim=self.ndim)._content()


class LazyTensorStorage(TensorStorage):
    """Up to `max_size` rows of tensors, allocated when the first row is written.

    The first rows determine features, shapes and dtypes; see `TensorStorage`.

    Args:
        max_size: Capacity in rows.
        device: Device of the rows; `"auto"`: that of the first ones.
        ndim: See `TensorStorage`.

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
        GrowingStorage.__init__(
            self, max_size, ndim, None if device == "auto" else as_device(device)
        )


class LazyMemmapStorage(LazyTensorStorage):
    """Up to `max_size` rows in memory-mapped files.

    The folder is a memory-mapped TensorDict (`TensorDict.load_memmap` opens it; unwritten rows are
    zero). A pickled storage contains the folder, not the rows: another process sees the values in
    the same files, and as many rows as there were when it was pickled. Rows that are not
    TensorDicts are stored as features of one, by pytree path.

    Args:
        max_size: Capacity in rows.
        scratch_dir: Folder of the files, kept; None: a temporary folder, deleted with the storage or
            at the end of the process that created it.
        existsok: Whether to overwrite files of another storage in `scratch_dir`.
        auto_cleanup: Whether to delete the folder with the storage; None: if it is temporary.
        device: The CPU.
        ndim: See `TensorStorage`.

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
        return self

    def __getstate__(self) -> dict[str, Any]:
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


def _moves(part: Any) -> bool:
    return hasattr(part, "to")


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
