"""Recognising the format of files by the names of their arrays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from offline_data.base.files import is_file
from offline_data.formats.folders import once
from offline_data.raw.hdf5 import open_hdf5
from offline_data.raw.hdf5_tree import datasets_in
from offline_data.raw.npy import open_npz

NPZ_BYTES = 1 << 42  # largest total of an npz file whose names are read


@dataclass(frozen=True)
class ArrayNames:
    """Names of arrays by which files of a format are recognised.

    Other arrays are kept under their own names, unless `exactly`.

    Example:
        >>> form = ArrayNames(("obs", "act"), never=frozenset({"rew"}))
        >>> [
        ...     form.count_in(names)
        ...     for names in (["obs", "act", "x"], ["obs", "act", "rew"], ["obs"])
        ... ]
        [2, 0, 0]
    """

    required: tuple[str, ...]
    """Arrays of every file."""
    never: frozenset[str] = frozenset()
    """Arrays that files of the format do not have; they make a file one of another format."""
    exactly: bool = False
    """Whether files have the required arrays alone; for formats that one program writes."""

    def count_in(self, names: Collection[str]) -> int:
        """Return how many required arrays a file with some arrays has; 0 if it is not of the format."""
        there = {*names}
        if not there.issuperset(self.required) or there & self.never:
            return 0
        return 0 if self.exactly and len(there) > len(self.required) else len(self.required)


def array_names(path: Path) -> Collection[str]:
    """Return the names of the arrays of an npz or HDF5 file; raises `FormatError`. Folder: none."""
    return once(path, _read_names) if is_file(path) else ()


def _read_names(path: Path) -> Collection[str]:
    if path.suffix == ".npz":
        with open_npz(path, budget=NPZ_BYTES) as arrays:
            return tuple(arrays)
    with open_hdf5(path) as file:
        return tuple(datasets_in(file)[0])
