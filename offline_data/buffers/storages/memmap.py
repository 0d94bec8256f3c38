"""A storage on disk: memory-mapped files that other processes can open too."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import TensorDict

from offline_data.buffers.refusals import refuse
from offline_data.buffers.storages.base import GrowingStorage
from offline_data.buffers.storages.columns import Columns
from offline_data.buffers.storages.lazy import LazyTensorStorage
from offline_data.disk import disk_errors, require_bytes
from offline_data.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from offline_data.buffers.storages.columns import Leaves
    from offline_data.episodes import Key

_Files: TypeAlias = "dict[Key, tuple[str, torch.dtype, tuple[int, ...]]]"
"""File, dtype and shape of each leaf."""

META = "meta.json"
"""The file that makes a folder a memory-mapped TensorDict."""


class LazyMemmapStorage(LazyTensorStorage):
    """Up to `max_size` rows of TensorDicts in memory-mapped files.

    The folder is a memory-mapped TensorDict (`TensorDict.load_memmap` opens it; rows that were
    not written yet are zero). A pickled storage carries the folder, not the rows: another process
    sees the values of the same files, and as many rows as there were when it was pickled.

    Args:
        max_size: How many rows there can be.
        scratch_dir: Folder of the files, kept; None: a temporary one, which goes with the storage
            or at the end of the process that made it.
        existsok: Whether files of another storage in `scratch_dir` may be written over.
        auto_cleanup: Whether the folder goes with the storage; None: where it is a temporary one.
        **torchrl: `device`, `ndim`, `compilable` and `shared_init` of TorchRL's signature, with
            their defaults.

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
        self._temporary = scratch_dir is None
        self._remove = self._temporary if auto_cleanup is None else auto_cleanup
        self._folder = None if scratch_dir is None else Path(scratch_dir).expanduser().absolute()
        self._files: _Files = {}

    @property
    def _shares(self) -> bool:
        return self._columns is not None

    @property
    def scratch_dir(self) -> Path | None:
        """Folder of the files; None: a temporary one, made with the first row."""
        return self._folder

    def share_memory_(self) -> LazyMemmapStorage:
        """Do nothing: files are shared. Returns the storage."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave rows behind: the other process opens the files."""
        shape = None if self._columns is None else self._columns.shape
        return {**GrowingStorage.__getstate__(self), "_columns": shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape = state["_columns"]
        self.__dict__.update(state, _columns=None)
        if shape is not None:
            leaves = {key: _open(*file) for key, file in self._files.items()}
            self._columns = Columns(leaves, shape)
        GrowingStorage.__setstate__(self, {})

    def _reserve(self, leaves: Leaves, shape: tuple[int, ...]) -> None:
        if () in leaves:
            raise UsageError(
                "Rows of a LazyMemmapStorage are TensorDicts, not tensors",
                hint='extend(TensorDict({"value": tensor}, batch_size=len(tensor)))',
            )
        folder = self._new_folder(sum(leaf[:1].nbytes for leaf in leaves.values()))
        rows = (self.max_size, *shape)
        one = {key: leaf[:1].expand(self.max_size, *leaf.shape[1:]) for key, leaf in leaves.items()}
        with disk_errors(folder):
            mapped = TensorDict(one, rows).memmap_like(prefix=folder, existsok=self._overwrite)
        maps = {key: mapped.get(key) for key in leaves}
        self._files = {
            key: (str(leaf.filename), leaf.dtype, tuple(leaf.shape)) for key, leaf in maps.items()
        }
        self._columns = Columns(maps, shape)

    def _new_folder(self, row_bytes: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="offline-data-"))
        elif (self._folder / META).exists() and not self._overwrite:
            raise UsageError(
                f"{self._folder} has the files of another storage",
                hint="choose another scratch_dir, or existsok=True to write over them",
            )
        require_bytes(self._folder, row_bytes * self.max_size, f"Room for {self.max_size} rows")
        if self._remove:
            weakref.finalize(self, _remove, self._folder, os.getpid())
        return self._folder


def _open(file: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
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
