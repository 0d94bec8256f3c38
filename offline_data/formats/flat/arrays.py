"""Arrays in memory or npz files, one row per transition in all arrays, described like a flat HDF5 file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.exact import rounded_integer
from offline_data.episode import Dropped
from offline_data.formats.flat.hdf5 import FlatColumn, FlatFile, FlatFormat, check_next, unfit
from offline_data.raw.npy import open_npz

WHERE = Path("the arrays")
"""Replaces the file in messages."""
NPZ_BYTES = 8 << 30
"""Largest total of the arrays of a file, which are read as a whole."""


@dataclass(frozen=True)
class FlatArrays(FlatFile):
    """Arrays in place of a file; they are not copied and must not change meanwhile."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def open(self) -> AbstractContextManager[Any]:
        """Return a block with nothing to open."""
        return nullcontext()

    def read(self, file: Any, name: str, start: int, stop: int) -> NDArray[Any]:  # noqa: ARG002
        """Return rows of one array, in this machine's byte order, `[n, …]`."""
        return self.arrays[name][start:stop].astype(self.columns[name].dtype, copy=False)

    def rows_of_chunk(self, file: Any, name: str) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class FlatNpz(FlatFile):
    """An npz file; its arrays are read whole, once in a process, since they may be compressed."""

    _read: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False, compare=False)

    def open(self) -> AbstractContextManager[Any]:
        """Open the file within a block, for `read`."""
        return open_npz(self.path, budget=NPZ_BYTES)

    def read(self, file: Any, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read rows of one array, in this machine's byte order, `[n, …]`."""
        if name not in self._read:
            self._read[name] = file[name]
        return self._read[name][start:stop].astype(self.columns[name].dtype, copy=False)

    def rows_of_chunk(self, file: Any, name: str) -> int:  # noqa: ARG002
        return 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the arrays: another process reads the file."""
        return {**vars(self), "_read": {}}


def describe_arrays(given: Mapping[str, Any], form: FlatFormat) -> FlatArrays:
    """Check arrays, by the names of a flat format; nested mappings are names with slashes.

    Raises `FormatError`: a required one is missing, or has no rows, another number of rows than the
    observations, or no real numbers.
    """
    arrays = dict(_flatten(given))
    flat = _describe(arrays, arrays.__getitem__, form, WHERE)
    return FlatArrays(**vars(flat), arrays=arrays)


def inspect_npz(path: Path, form: FlatFormat) -> FlatNpz:
    """Describe an npz file, and check its format, as `flat_hdf5.inspect` does; raises `FormatError`."""
    with open_npz(path, budget=NPZ_BYTES) as arrays:
        headers = {name: arrays.header(name) for name in arrays}
        return FlatNpz(**vars(_describe(headers, arrays.__getitem__, form, path)))


def _describe(
    arrays: Mapping[str, Any], read: Callable[[str], NDArray[Any]], form: FlatFormat, where: Path
) -> FlatFile:
    """Describe arrays, or their headers."""
    which = "The arrays" if where is WHERE else f"The arrays of {where}"
    if missing := [name for name in form.required_columns if name not in arrays]:
        raise FormatError(
            f"{which} lack {', '.join(map(repr, missing))}; found "
            f"{', '.join(sorted(arrays)[:12]) or 'none'}",
            hint=f"needed are {', '.join(form.required_columns)}; episodes, one by one, may have nested "
            "observations",
        )
    shape = arrays[form.observation].shape
    if not shape or not shape[0]:
        raise FormatError(f"{which} have no rows: {form.observation!r} has shape {list(shape)}")
    rows = shape[0]
    columns: dict[str, FlatColumn] = {}
    scalars: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, array in arrays.items():
        if array.shape == () and name not in form.known_columns and not array.dtype.hasobject:
            value = read(name).item()
            value = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
            if isinstance(value, (str, bool, int, float)):
                scalars[name.removeprefix(form.metadata)] = value
            else:
                refused[name] = "is a value that JSON cannot hold"
        elif reason := unfit(name, [array], [rows], form, elsewhere=False):
            refused[name] = reason
        else:
            columns[name] = FlatColumn(array.dtype.newbyteorder("="), array.shape[1:])
    for name in form.known_columns:
        if name in refused:
            raise FormatError(f"{where}: {name!r} {refused[name]}")
    check_next(columns, where, form)
    dropped = tuple(Dropped(name, f"It {reason}.") for name, reason in refused.items())
    return FlatFile(where, form, (("", rows),), columns, scalars, dropped)


def _flatten(given: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{name}/")
        elif value is not None:
            yield f"{above}{name}", array_of(value, f"{above}{name}")


def array_of(value: Any, name: str) -> NDArray[Any]:
    """Return what a user gave as an array, without a copy where it is one.

    Raises `FormatError`: rows of different lengths, a tensor of another device, an integer that is
    rounded among floats, ….
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise FormatError(f"{name!r} cannot be made an array: {said}") from error
    if isinstance(value, (list, tuple)) and (lost := rounded_integer(value, array)) is not None:
        raise FormatError(
            f"{name!r} has {lost} among other numbers, which {array.dtype} does not hold"
        )
    return array
