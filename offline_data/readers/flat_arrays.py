"""Arrays in memory, one row per transition in all of them, described like a flat HDF5 file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episodes import Dropped
from offline_data.errors import FormatError
from offline_data.readers.flat_hdf5 import FlatColumn, FlatFile, FlatFormat, check_next, unfit

WHERE = Path("the arrays")
"""Stands for the file in messages."""


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


def describe_arrays(given: Mapping[str, Any], form: FlatFormat, where: Path = WHERE) -> FlatArrays:
    """Check arrays, by the names of a flat format; nested mappings are names with slashes.

    `where` is the file that they were read from, if any.

    Raises `FormatError`: a required one is missing, or has no rows, another number of rows than the
    observations, or no real numbers.
    """
    arrays = dict(_flatten(given))
    which = "The arrays" if where is WHERE else f"The arrays of {where}"
    if missing := [name for name in form.required_columns if name not in arrays]:
        raise FormatError(
            f"{which} lack {', '.join(map(repr, missing))}; found "
            f"{', '.join(sorted(arrays)[:12]) or 'none'}",
            hint=f"needed are {', '.join(form.required_columns)}; episodes, one by one, may have nested "
            "observations",
        )
    observations = arrays[form.observation]
    rows = len(observations) if observations.ndim else 0
    if not rows:
        raise FormatError(
            f"{which} have no rows: {form.observation!r} has shape {list(observations.shape)}"
        )
    columns: dict[str, FlatColumn] = {}
    scalars: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, array in arrays.items():
        if array.ndim == 0 and name not in form.known_columns:
            value = array.item()
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
    return FlatArrays(where, form, (("", rows),), columns, scalars, dropped, arrays)


def _flatten(given: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{name}/")
        elif value is not None:
            yield f"{above}{name}", array_of(value, f"{above}{name}")


def array_of(value: Any, name: str) -> NDArray[Any]:
    """Return what a user gave as an array, without a copy where it is one.

    Raises `FormatError`: rows of different lengths, a tensor of another device, ….
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise FormatError(f"{name!r} cannot be made an array: {said}") from error
