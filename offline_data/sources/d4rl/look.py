"""Look at a D4RL HDF5 file without reading its columns, and hold it to the format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.disk import human_bytes
from offline_data.episodes import Dropped
from offline_data.errors import FormatError
from offline_data.readers.hdf5_links import datasets_in, dtype_of, lies_elsewhere
from offline_data.readers.hdf5_tree import members, read_scalar
from offline_data.sources.d4rl.file import KNOWN, REQUIRED, Column, FlatFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_ONE_A_ROW = ("rewards", "terminals", "timeouts")
_PIECES = "virtual/"
_NUMBER = re.compile("[0-9]{1,18}")
_METADATA = "metadata/"
_ENDS_OF_D3RLPY = "episode_terminals"

_EXPANSION = 1100
"""Times its own size that a file's columns may have: deflate, at its very best, saves 1,032."""
_ALWAYS = 64 << 20
"""Bytes that columns may have in any file: some are never written, as where no flag is set."""
_TEXT = 64 << 10
"""Bytes of the longest single value that is kept."""


def has_columns(file: Any) -> bool:
    """Return True if an open file has the names that a D4RL file has."""
    names, _ = datasets_in(file)
    first = _prefixes(names)[0]
    return _ENDS_OF_D3RLPY not in names and all(first + name in names for name in REQUIRED)


def look(file: Any, path: Path) -> FlatFile:
    """Look at an open file.

    Args:
        file: The `h5py.File`.
        path: Where it lies, for messages and later reading.

    Raises:
        FormatError: A needed column is missing, is not numeric, or its number of rows is not
            that of the observations; or no row is there at all, or more than the file can hold.
    """
    datasets, targets = datasets_in(file)
    prefixes = _prefixes(datasets)
    _check_names(datasets, targets, prefixes, path)
    _check_pieces(file, prefixes, path)
    grouped, outside = _grouped(datasets, prefixes)
    rows = [_rows(dataset) for dataset in grouped["observations"]]
    if not sum(rows):
        shape = grouped["observations"][0].shape
        raise FormatError(
            f"{path} has no rows: 'observations' has shape {None if shape is None else list(shape)}"
        )
    kinds = {name: _kind(name, pieces, rows) for name, pieces in grouped.items()}
    columns = {name: kind for name, kind in kinds.items() if isinstance(kind, Column)}
    refused = _refused(kinds, path)
    _check_next(columns, path)
    _check_size(columns, sum(rows), path)
    return FlatFile(
        path,
        tuple(zip(prefixes, rows, strict=True)),
        columns,
        {_scalar_name(n): kind.value for n, kind in kinds.items() if isinstance(kind, _Scalar)},
        (*_links(targets), *outside, *refused),
    )


@dataclass(frozen=True)
class _Scalar:
    value: str | float | bool


@dataclass(frozen=True)
class _Refused:
    reason: str
    """The end of a sentence that begins with the dataset's name."""


def _refused(kinds: Mapping[str, Column | _Scalar | _Refused], path: Path) -> list[Dropped]:
    """Return what is not kept, or raise where it is a column that D4RL gives a meaning to."""
    refused = {name: kind for name, kind in kinds.items() if isinstance(kind, _Refused)}
    for name in KNOWN:
        if name in refused:
            raise FormatError(f"{path}: {name!r} {refused[name].reason}")
    return [Dropped(name, f"It {kind.reason}.") for name, kind in refused.items()]


def _links(targets: Mapping[str, str]) -> list[Dropped]:
    return [
        Dropped(name, f"It is a link to {target!r}, which is not followed.")
        for name, target in targets.items()
    ]


def _check_next(columns: Mapping[str, Column], path: Path) -> None:
    before, after = columns["observations"], columns.get("next_observations")
    if after is not None and after.shape != before.shape:
        raise FormatError(
            f"{path}: 'next_observations' has rows of shape {list(after.shape)}, expected "
            f"{list(before.shape)} as in 'observations'"
        )
    if after is not None and common_dtype(before.dtype, after.dtype) is None:
        raise FormatError(
            f"{path}: 'observations' has dtype {before.dtype} and 'next_observations' "
            f"{after.dtype}: no dtype holds the values of both exactly",
            hint="write both columns with the same dtype",
        )


def _check_size(columns: Mapping[str, Column], rows: int, path: Path) -> None:
    """Refuse rows that the file only declares, before memory is taken for them."""
    size = path.stat().st_size
    declared = rows * sum(column.nbytes for column in columns.values())
    if declared > max(_ALWAYS, _EXPANSION * size):
        largest = max(columns, key=lambda name: columns[name].nbytes)
        raise FormatError(
            f"{path} declares {rows:,} rows, {human_bytes(declared)} in all, most of them in "
            f"{largest!r}; a file of {human_bytes(size)} cannot hold that",
            hint="the columns were made with this shape and never written, or the file is cut short",
        )


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return the prefix of each piece, in order; one empty prefix for the usual file."""
    pieces = {name.split("/")[1] for name in names if name.startswith(_PIECES)}
    numbered = sorted(
        (piece for piece in pieces if _NUMBER.fullmatch(piece)), key=lambda p: (int(p), p)
    )
    if not numbered or all(name in names for name in REQUIRED):
        return [""]
    return [f"{_PIECES}{piece}/" for piece in numbered]


def _check_names(
    names: Iterable[str], targets: Mapping[str, str], prefixes: Sequence[str], path: Path
) -> None:
    """Refuse a file without the columns of D4RL, or where one of them is a link."""
    if _ENDS_OF_D3RLPY in names:
        raise FormatError(
            f"{path} is not a D4RL file: it has {_ENDS_OF_D3RLPY!r}, which d3rlpy writes"
        )
    for link in (prefix + name for prefix in prefixes for name in KNOWN):
        if link in targets:
            raise FormatError(
                f"{path}: {link!r} is a link to {targets[link]!r}, which is not followed"
            )
    missing = [prefixes[0] + name for name in REQUIRED if prefixes[0] + name not in names]
    missing += [f"{p}observations" for p in prefixes[1:] if f"{p}observations" not in names]
    if missing:
        raise FormatError(
            f"{path} is not a D4RL file: expected datasets {', '.join(map(repr, missing))}; "
            f"found {', '.join(sorted(names)[:12]) or 'none'}"
        )


def _check_pieces(file: Any, prefixes: Sequence[str], path: Path) -> None:
    """Refuse a file of pieces of which one is a link or has no columns: its rows would be missing."""
    if not prefixes[0]:
        return
    for piece, target in members(file[_PIECES].id):
        if target is not None and _NUMBER.fullmatch(piece):
            found = f"is a link to {target!r}, which is not followed"
        elif _NUMBER.fullmatch(piece) and f"{_PIECES}{piece}/" not in prefixes:
            found = "has no columns of its own"
        else:
            continue
        raise FormatError(f"{path}: piece {_PIECES + piece!r} {found}")


def _grouped(
    datasets: Mapping[str, Any], prefixes: Sequence[str]
) -> tuple[dict[str, list[Any]], list[Dropped]]:
    """Return the pieces of each column by its name, and what stands outside the pieces.

    The pieces of a column are in the order of `prefixes`: HDF5 lists names as text, 10 before 2.
    """
    order = {prefix: number for number, prefix in enumerate(prefixes)}
    grouped: dict[str, dict[int, Any]] = {}
    outside: list[Dropped] = []
    for name, dataset in datasets.items():
        prefix = "/".join([*name.split("/")[:2], ""]) if name.startswith(_PIECES) else ""
        if prefix in order:
            grouped.setdefault(name.removeprefix(prefix), {})[order[prefix]] = dataset
        elif not prefixes[0]:
            reason = "It is D4RL's second copy, in pieces, of the columns that are kept."
            outside.append(Dropped(name, reason))
        elif dataset.shape and not name.startswith(_METADATA):
            outside.append(Dropped(name, "It is not in the pieces that hold all other columns."))
        else:
            grouped.setdefault(name, {})[-1] = dataset
    return {name: [found[n] for n in sorted(found)] for name, found in grouped.items()}, outside


def _kind(name: str, pieces: Sequence[Any], rows: Sequence[int]) -> Column | _Scalar | _Refused:
    """Say what a dataset, in one piece or several, is to a flat file."""
    if any(map(lies_elsewhere, pieces)):
        return _Refused("has its values in another file, which is not followed")
    if pieces[0].shape == () and name not in KNOWN:
        value = _json_value(pieces[0])
        return _Refused("is a value that JSON cannot hold") if value is None else _Scalar(value)
    if name.startswith(_METADATA):
        return _Refused(
            "belongs to the recording policy and has no value per row; the raw file has it "
            "(`--keep-raw` keeps that)"
        )
    if len(pieces) != len(rows):
        return _Refused(f"is in {len(pieces)} of the {len(rows)} pieces")
    for piece, count in zip(pieces, rows, strict=True):
        if reason := _unfit(name, piece, count):
            return _Refused(reason)
    found = {(piece.dtype.newbyteorder("="), piece.shape[1:]) for piece in pieces}
    if len(found) > 1:
        return _Refused(
            f"has a dtype or shape of its own in some pieces: {sorted(map(str, found))}"
        )
    return Column(*found.pop())


def _unfit(name: str, dataset: Any, rows: int) -> str | None:
    """Say why a dataset is not a column of `rows` numeric rows, or return None."""
    if not dataset.shape or dataset.shape[0] != rows:
        found = dataset.shape[0] if dataset.shape else "no"
        return f"has {found} rows, expected {rows} as in 'observations'"
    dtype = dtype_of(dataset)
    if dtype is None or dtype.kind not in "biuf" or dtype.itemsize > 8:
        named = "unknown to numpy" if dtype is None else dtype
        return f"has dtype {named}, expected real numbers of at most 8 bytes, or bool"
    if name in _ONE_A_ROW and dataset.shape[1:] not in {(), (1,)}:
        return f"has shape {list(dataset.shape)}, expected [{rows}] or [{rows}, 1]"
    return None


def _json_value(dataset: Any) -> str | float | bool | None:
    """Read a single value, or return None where it is no number and no text, or a long one."""
    import h5py

    dtype = dtype_of(dataset)
    if dtype is None or dtype.itemsize > _TEXT or dataset.is_virtual:
        return None
    if dtype.kind not in "biufS" and h5py.check_string_dtype(dtype) is None:
        return None
    value = read_scalar(dataset.id)
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return plain.decode("utf-8", errors="replace") if len(plain) <= _TEXT else None
    return plain if isinstance(plain, (int, float, bool)) else None


def _scalar_name(name: str) -> str:
    return name.removeprefix(_METADATA)


def _rows(dataset: Any) -> int:
    return int(dataset.shape[0]) if dataset.shape else 0


def common_dtype(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return a dtype that holds every value of both exactly, or None where numpy has none.

    numpy's own promotion makes float64 of int64, which cannot hold whole numbers above 2^53.

    Example:
        >>> (
        ...     common_dtype(np.dtype("f4"), np.dtype("f8")),
        ...     common_dtype(np.dtype("i4"), np.dtype("f4")),
        ... )
        (dtype('float64'), dtype('float64'))
        >>> common_dtype(np.dtype("i8"), np.dtype("f8")) is None
        True
    """
    joint = np.result_type(one, other)
    return joint if all(_holds(joint, dtype) for dtype in (one, other)) else None


def _holds(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    if wide.kind != "f" or narrow.kind not in "iu":
        return bool(np.can_cast(narrow, wide))
    return bool(8 * narrow.itemsize - (narrow.kind == "i") <= np.finfo(wide).nmant + 1)
