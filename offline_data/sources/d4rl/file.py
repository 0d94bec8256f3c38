"""A D4RL HDF5 file as flat columns: what there is, under which leaf it is kept, and its rows.

A file has columns `observations`, `actions`, `rewards`, `terminals` and perhaps `timeouts`,
`next_observations` and `infos/…`, of `N` rows each. In D4RL's chunked variant they lie in pieces
`virtual/0/…`, `virtual/1/…`, which are laid end to end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import Key, check_key
from offline_data.errors import FormatError
from offline_data.readers.inflate import read_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Dropped

REQUIRED = ("observations", "actions", "rewards", "terminals")
"""Columns that every D4RL file has."""

KNOWN = (*REQUIRED, "timeouts", "next_observations")
"""Columns with a meaning of their own; all others are kept as they are."""


@dataclass(frozen=True)
class Column:
    """One column of the file."""

    dtype: np.dtype[Any]
    """Item type, in this machine's byte order."""
    shape: tuple[int, ...]
    """Shape of one row."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class FlatFile:
    """A D4RL file that was looked at; holds no handle."""

    path: Path
    """Where it lies."""
    pieces: tuple[tuple[str, int], ...]
    """Prefix and number of rows of each piece: `(("", N),)` for the usual file."""
    columns: Mapping[str, Column]
    """By name in the file, without the prefix of the piece."""
    scalars: Mapping[str, Any]
    """Single values by name, as JSON values; `metadata/` is left out of the names."""
    dropped: tuple[Dropped, ...]
    """What the file has besides."""

    @property
    def rows(self) -> int:
        """`N`."""
        return sum(rows for _, rows in self.pieces)

    @property
    def has_next(self) -> bool:
        """Whether there is a column `next_observations`."""
        return "next_observations" in self.columns

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """Item type of observations, which holds those of `next_observations` exactly too."""
        names = {"observations", "next_observations"} & self.columns.keys()
        return np.result_type(*(self.columns[name].dtype for name in names))

    @property
    def infos(self) -> dict[str, Key]:
        """Columns kept as they are, with the step leaf each becomes."""
        try:
            return {name: info_key(name) for name in self.columns if name not in KNOWN}
        except FormatError as error:
            raise FormatError(f"{self.path}: {error.message}", hint=error.hint) from error

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all columns."""
        return sum(column.nbytes for column in self.columns.values())

    def read(self, file: Any, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read rows of one column of the open file, in this machine's byte order, `[n, …]`."""
        column = self.columns[name]
        found, begin = [np.empty((0, *column.shape), column.dtype)], 0
        for prefix, rows in self.pieces:
            first, last = max(start - begin, 0), min(stop - begin, rows)
            if first < last:
                found.append(read_rows(file[prefix + name], first, last))
            begin += rows
        joined = found[1] if len(found) == 2 else np.concatenate(found)
        return joined.astype(column.dtype, copy=False)

    def read_flags(
        self, file: Any, start: int, stop: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Read rows of `terminals` and `timeouts` as bool `[n]`, all but 0 being True.

        The second is None where the file has no timeouts.
        """
        terminals = self.read(file, "terminals", start, stop).reshape(-1) != 0
        if "timeouts" not in self.columns:
            return terminals, None
        return terminals, self.read(file, "timeouts", start, stop).reshape(-1) != 0


def info_key(name: str) -> Key:
    """Return the step leaf of a column that is kept as it is.

    It holds what is known in the same row as the observation, before the action, and has no
    version after it: the row after the last action is not in the file.

    Example:
        >>> info_key("infos/qpos"), info_key("infos"), info_key("costs")
        (('info', 'qpos'), ('info', 'demo'), ('extra', 'costs'))

    Raises:
        FormatError: A part of the name cannot be a file name.
    """
    if name == "infos":  # kitchen: the number of the demonstration
        return "info", "demo"
    group, _, rest = name.partition("/")
    if group == "infos":
        return check_key(("info", *rest.split("/")))
    return check_key(("extra", *name.split("/")))
