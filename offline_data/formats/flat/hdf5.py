"""Flat HDF5 files with one row per transition in all columns, as written by D4RL and many users.

```
row                  0    1    2    3    4
observations         s0   s1   s2   s0'  s1'
actions, rewards     a0   a1   a2   a0'  a1'
an end flag          .    .    X    .    X         episodes of 3 and 2 rows
next_observations    s1   s2   s3   s1'  s2'       where the file has them: s3 and s2' only here
```

A file is inspected (`inspect`) without reading its columns, its `next_observations` are compared with
the following rows (`next_column`), and runs of episodes are read as `EpisodeBatch` (`episodes`).
Columns may be split into numbered groups (pieces), which are concatenated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.exact import holds
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.episode import Dropped
from offline_data.episode.fields import Key
from offline_data.raw.hdf5 import LARGEST_RATIO, UNWRITTEN, h5, open_hdf5
from offline_data.raw.hdf5_tree import (
    datasets_in,
    dtype_of,
    lies_elsewhere,
    members,
    read_scalar,
)
from offline_data.raw.inflate import Chunks, chunks_of, has_filters, read_rows

_FLAG_ROWS = 1 << 20  # that are read at once
_NUMBER = re.compile("[0-9]{1,18}")
_TEXT = 64 << 10  # bytes of the longest single value that is kept


@dataclass(frozen=True)
class FlatFormat:
    """Column names of a flat format, and the features of all other columns.

    `truncated` and `next_observation` are optional in a file.
    """

    title: str
    """Its name, for messages: `D4RL`."""
    leaf_of: Callable[[str], Key]
    """Step feature of a column without a meaning below; may raise `FormatError`. A plain function."""
    observation: str = "observations"
    action: str = "actions"
    reward: str = "rewards"
    terminated: str = "terminals"
    truncated: str = "timeouts"
    next_observation: str = "next_observations"
    pieces: str = ""
    """Group with numbered groups of columns, with a slash; empty: the format has none."""
    metadata: str = ""
    """Group of which only single values are kept, with a slash; empty: none."""
    dropped_metadata: str = ""
    """Why others in it are dropped: the end of a sentence that begins with `It`."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """Datasets that identify a file as another format, and the name of that format."""
    foreign_hint: str | None = None
    """Conversion of such a file."""

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that every file has."""
        return (self.observation, self.action, self.reward, self.terminated)

    @property
    def known_columns(self) -> tuple[str, ...]:
        """Columns with a meaning of their own."""
        return (*self.required_columns, self.truncated, self.next_observation)


@dataclass(frozen=True)
class FlatColumn:
    """One column of a file: item type, in this machine's byte order, and shape of one row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class FlatFile:
    """A flat file that was inspected; holds no handle."""

    path: Path
    format: FlatFormat
    pieces: tuple[tuple[str, int], ...]
    """Prefix and number of rows of each piece: `(("", N),)` for the usual file."""
    columns: Mapping[str, FlatColumn]
    """By name in the file, without the prefix of the piece."""
    scalars: Mapping[str, Any] = field(default_factory=dict)
    """Single values by name, as JSON values; names lack the group of metadata."""
    dropped: tuple[Dropped, ...] = ()
    """Other content of the file."""

    @property
    def rows(self) -> int:
        """`N`."""
        return sum(rows for _, rows in self.pieces)

    @property
    def has_next(self) -> bool:
        """Whether there is a column of next observations."""
        return self.format.next_observation in self.columns

    @property
    def others(self) -> dict[str, Key]:
        """Columns without a meaning of their own, with the step feature each becomes."""
        names = (name for name in self.columns if name not in self.format.known_columns)
        try:
            return {name: self.format.leaf_of(name) for name in names}
        except FormatError as error:
            raise FormatError(f"{self.path}: {error.message}", hint=error.shell_hint) from error

    def open(self) -> AbstractContextManager[Any]:
        """Open the file within a block, for `read`."""
        return open_hdf5(self.path)

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

    def rows_of_chunk(self, file: Any, name: str) -> int:
        """Return the rows of a compressed chunk of a column of the open file; 0 without compression."""
        dataset = file[self.pieces[0][0] + name]
        return int(dataset.chunks[0]) if has_filters(dataset) else 0

    def chunks(self, file: Any, name: str) -> Chunks | None:
        """Return the chunks of a column of the open file, None unless they are what `read` returns."""
        if len(self.pieces) > 1:
            return None
        dataset = file[self.pieces[0][0] + name]
        return chunks_of(dataset) if dataset.dtype == self.columns[name].dtype else None

    def read_flags(
        self, file: Any
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None, list[str]]:
        """Read both flags as bool `[N]`, all but 0 being True, and say where they are not flags.

        The second is None where the file has no truncated flags.
        """
        flags: dict[str, NDArray[np.bool_]] = {}
        notes = []
        for name in (self.format.terminated, self.format.truncated):
            if name not in self.columns:
                continue
            flags[name], odd = np.empty(self.rows, bool), 0
            for start in range(0, self.rows, _FLAG_ROWS):
                values = self.read(file, name, start, min(start + _FLAG_ROWS, self.rows)).ravel()
                flags[name][start : start + len(values)] = values != 0
                odd += np.count_nonzero((values != 0) & (values != 1))
            if odd:
                notes.append(
                    f"{name} has {plural(odd, 'value')} besides 0 and 1: all but 0 count as set."
                )
        return flags[self.format.terminated], flags.get(self.format.truncated), notes


# ---- inspecting a file -----------------------------------------------------------------------


def has_columns(file: Any, form: FlatFormat) -> bool:
    """Return True if an open file has the names that a file of the format has."""
    names, _ = datasets_in(file)
    first = _prefixes(names, form)[0]
    return not form.foreign.keys() & names and all(
        first + name in names for name in form.required_columns
    )


def inspect(file: Any, path: Path, form: FlatFormat) -> FlatFile:
    """Describe an open `h5py.File` at `path`, and check its format, without reading columns.

    Raises:
        FormatError: A required column is missing, not numeric, or differs from the observations in
            its number of rows; or there are no rows, or more than the file can hold.
    """
    datasets, links = datasets_in(file)
    prefixes = _prefixes(datasets, form)
    _check_names(datasets, links, prefixes, path, form)
    if prefixes[0]:
        _check_pieces(file, prefixes, path, form)
    grouped, outside = _group_pieces(datasets, prefixes, form)
    rows = [int(dataset.shape[0]) if dataset.shape else 0 for dataset in grouped[form.observation]]
    if not sum(rows):
        shape = grouped[form.observation][0].shape
        raise FormatError(
            f"{path} has no rows: {form.observation!r} has shape "
            f"{None if shape is None else list(shape)}"
        )
    columns: dict[str, FlatColumn] = {}
    scalars: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, pieces in grouped.items():
        elsewhere = any(map(lies_elsewhere, pieces))
        if pieces[0].shape == () and name not in form.known_columns and not elsewhere:
            value = _json_value(pieces[0])
            if value is None:
                refused[name] = "is a value that JSON cannot hold"
            else:
                scalars[name.removeprefix(form.metadata)] = value
        elif reason := unfit(name, pieces, rows, form, elsewhere=elsewhere):
            refused[name] = reason
        else:
            columns[name] = FlatColumn(pieces[0].dtype.newbyteorder("="), pieces[0].shape[1:])
    for name in form.known_columns:
        if name in refused:
            raise FormatError(f"{path}: {name!r} {refused[name]}")
    check_next(columns, path, form)
    _check_size(columns, sum(rows), path)
    dropped = (
        *(Dropped(n, f"It is a link to {to!r}, which is not followed.") for n, to in links.items()),
        *outside,
        *(Dropped(name, f"It {reason}.") for name, reason in refused.items()),
    )
    return FlatFile(path, form, tuple(zip(prefixes, rows, strict=True)), columns, scalars, dropped)


def _prefixes(names: Iterable[str], form: FlatFormat) -> list[str]:
    """Return the prefix of each piece, in order; one empty prefix for the usual file."""
    below = (name.split("/")[1] for name in names if form.pieces and name.startswith(form.pieces))
    pieces = sorted({p for p in below if _NUMBER.fullmatch(p)}, key=lambda p: (int(p), p))
    if not pieces or all(name in names for name in form.required_columns):
        return [""]
    return [f"{form.pieces}{piece}/" for piece in pieces]


def _check_names(
    names: Mapping[str, Any],
    links: Mapping[str, str],
    prefixes: Sequence[str],
    path: Path,
    form: FlatFormat,
) -> None:
    """Reject a file of another format, or in which a column is missing or a link."""
    for name in form.foreign.keys() & names:
        raise FormatError(
            f"{path} is not a {form.title} file: it has {name!r}, which {form.foreign[name]} writes",
            hint=form.foreign_hint,
        )
    for link in (prefix + name for prefix in prefixes for name in form.known_columns):
        if link in links:
            raise FormatError(
                f"{path}: {link!r} is a link to {links[link]!r}, which is not followed"
            )
    needed = [prefixes[0] + name for name in form.required_columns]
    needed += [prefix + form.observation for prefix in prefixes[1:]]
    if missing := [name for name in needed if name not in names]:
        raise FormatError(
            f"{path} is not a {form.title} file: expected datasets {', '.join(map(repr, missing))}; "
            f"found {', '.join(sorted(names)[:12]) or 'none'}"
        )


def _check_pieces(file: Any, prefixes: Sequence[str], path: Path, form: FlatFormat) -> None:
    """Reject a file with a piece that is a link or has no columns: its rows would be missing."""
    for piece, target in members(file[form.pieces].id):
        if not _NUMBER.fullmatch(piece):
            continue
        if target is not None or f"{form.pieces}{piece}/" not in prefixes:
            linked = f"is a link to {target!r}, which is not followed"
            found = "has no columns of its own" if target is None else linked
            raise FormatError(f"{path}: piece {form.pieces + piece!r} {found}")


def _group_pieces(
    datasets: Mapping[str, Any], prefixes: Sequence[str], form: FlatFormat
) -> tuple[dict[str, list[Any]], list[Dropped]]:
    """Return the pieces of each column by its name, in order, and the columns outside the pieces."""
    order = {prefix: number for number, prefix in enumerate(prefixes)}  # as text, 10 is before 2
    grouped: dict[str, dict[int, Any]] = {}
    outside: list[Dropped] = []
    for name, dataset in datasets.items():
        in_pieces = bool(form.pieces) and name.startswith(form.pieces)
        prefix = "/".join([*name.split("/")[:2], ""]) if in_pieces else ""
        if prefix in order:
            grouped.setdefault(name.removeprefix(prefix), {})[order[prefix]] = dataset
        elif not prefixes[0]:
            reason = f"It is {form.title}'s second copy, in pieces, of the columns that are kept."
            outside.append(Dropped(name, reason))
        elif dataset.shape and not (form.metadata and name.startswith(form.metadata)):
            outside.append(Dropped(name, "It is not in the pieces that hold all other columns."))
        else:
            grouped.setdefault(name, {})[-1] = dataset
    return {name: [found[n] for n in sorted(found)] for name, found in grouped.items()}, outside


def unfit(
    name: str, pieces: Sequence[Any], rows: Sequence[int], form: FlatFormat, *, elsewhere: bool
) -> str | None:
    """Return why a dataset, in pieces, or an array is not a column of numbers, as the end of a sentence, or None."""
    if elsewhere:
        return "has its values in another file, which is not followed"
    if form.metadata and name.startswith(form.metadata):
        return form.dropped_metadata
    if len(pieces) != len(rows):
        return f"is in {len(pieces)} of the {plural(len(rows), 'piece')}"
    found = set()
    for piece, count in zip(pieces, rows, strict=True):
        shape, dtype = piece.shape, dtype_of(piece)
        if not shape or shape[0] != count:
            has = plural(shape[0], "row") if shape else "no rows"
            return f"has {has}, expected {count} as in {form.observation!r}"
        if dtype is None or dtype.kind not in "biuf" or dtype.itemsize > 8:
            named = "unknown to numpy" if dtype is None else dtype
            return f"has dtype {named}, expected real numbers of at most 8 bytes, or bool"
        one_a_row = name in {form.reward, form.terminated, form.truncated}
        if one_a_row and shape[1:] not in {(), (1,)}:
            return f"has shape {list(shape)}, expected [{count}] or [{count}, 1]"
        found.add((dtype.newbyteorder("="), shape[1:]))
    if len(found) > 1:
        return f"has a dtype or shape of its own in some pieces: {sorted(map(str, found))}"
    return None


def _json_value(dataset: Any) -> str | float | bool | None:
    """Read a single value; None if it is neither a number nor a text, or too long."""
    dtype = dtype_of(dataset)
    if dtype is None or dtype.itemsize > _TEXT or dataset.is_virtual:
        return None
    if dtype.kind not in "biufS" and h5().check_string_dtype(dtype) is None:
        return None
    value = read_scalar(dataset.id)
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return plain.decode("utf-8", errors="replace") if len(plain) <= _TEXT else None
    return plain if isinstance(plain, (int, float, bool)) else None


def check_next(columns: Mapping[str, FlatColumn], path: Path, form: FlatFormat) -> None:
    """Raise `FormatError` unless next observations, if any, have the form of observations."""
    before, after = columns[form.observation], columns.get(form.next_observation)
    if after is None:
        return
    if after.shape != before.shape:
        raise FormatError(
            f"{path}: {form.next_observation!r} has rows of shape {list(after.shape)}, expected "
            f"{list(before.shape)} as in {form.observation!r}"
        )
    common = np.result_type(before.dtype, after.dtype)
    if not (holds(common, before.dtype) and holds(common, after.dtype)):
        raise FormatError(
            f"{path}: {form.observation!r} has dtype {before.dtype} and {form.next_observation!r} "
            f"{after.dtype}: no dtype holds the values of both exactly",
            hint="write both columns with the same dtype",
        )


def _check_size(columns: Mapping[str, FlatColumn], rows: int, path: Path) -> None:
    """Reject rows that the file declares but cannot have, before allocating memory for them."""
    size = path.stat().st_size
    declared = rows * sum(column.nbytes for column in columns.values())
    if declared > max(UNWRITTEN, LARGEST_RATIO * size):
        largest = max(columns, key=lambda name: columns[name].nbytes)
        raise FormatError(
            f"{path} declares {plural(rows, 'row')}, {human_bytes(declared)} in all, most of them "
            "in "
            f"{largest!r}; a file of {human_bytes(size)} cannot hold that",
            hint="the columns were made with this shape and never written, or the file is cut short",
        )
