"""Look at a D4RL HDF5 file without reading its columns, and hold it to the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import Dropped
from offline_data.errors import FormatError
from offline_data.readers.hdf5_links import datasets_in, dtype_of, lies_elsewhere
from offline_data.readers.hdf5_tree import read_scalar
from offline_data.sources.d4rl.file import KNOWN, REQUIRED, Column, FlatFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_ONE_A_ROW = ("rewards", "terminals", "timeouts")
_PIECES = "virtual/"
_METADATA = "metadata/"
_ENDS_OF_D3RLPY = "episode_terminals"


def has_columns(file: Any) -> bool:
    """Tell whether an open file has the names that a D4RL file has."""
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
            that of the observations; or no row is there at all.
    """
    datasets, targets = datasets_in(file)
    prefixes = _prefixes(datasets)
    _check_names(datasets, prefixes[0], path)
    grouped, outside = _grouped(datasets, prefixes)
    rows = [_rows(dataset) for dataset in grouped["observations"]]
    if not sum(rows):
        raise FormatError(f"{path} has no rows: 'observations' has shape [0]")
    kinds = {name: _kind(name, pieces, rows) for name, pieces in grouped.items()}
    columns = {name: kind for name, kind in kinds.items() if isinstance(kind, Column)}
    refused = _refused(kinds, path)
    _check_next(columns, path)
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


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return the prefix of each piece, in order; one empty prefix for the usual file."""
    pieces = {name.split("/")[1] for name in names if name.startswith(_PIECES)}
    numbers = sorted(int(piece) for piece in pieces if piece.isdecimal())
    if not numbers or all(name in names for name in REQUIRED):
        return [""]
    return [f"{_PIECES}{number}/" for number in numbers]


def _check_names(names: Iterable[str], prefix: str, path: Path) -> None:
    if _ENDS_OF_D3RLPY in names:
        raise FormatError(
            f"{path} is not a D4RL file: it has {_ENDS_OF_D3RLPY!r}, which d3rlpy writes"
        )
    missing = [prefix + name for name in REQUIRED if prefix + name not in names]
    if missing:
        raise FormatError(
            f"{path} is not a D4RL file: expected datasets {', '.join(map(repr, missing))}; "
            f"found {', '.join(sorted(names)[:12]) or 'none'}"
        )


def _grouped(
    datasets: Mapping[str, Any], prefixes: Sequence[str]
) -> tuple[dict[str, list[Any]], list[Dropped]]:
    """Return the pieces of each column by its name, and what stands outside the pieces."""
    grouped: dict[str, list[Any]] = {}
    outside: list[Dropped] = []
    for name, dataset in datasets.items():
        prefix = next((p for p in prefixes if name.startswith(p)), "")
        if not prefix and name.startswith(_PIECES):
            reason = "It is D4RL's second copy, in pieces, of the columns that are kept."
            outside.append(Dropped(name, reason))
        elif prefixes[0] and not prefix and dataset.shape and not name.startswith(_METADATA):
            outside.append(Dropped(name, "It is not in the pieces that hold all other columns."))
        else:
            grouped.setdefault(name.removeprefix(prefix), []).append(dataset)
    return grouped, outside


def _kind(name: str, pieces: Sequence[Any], rows: Sequence[int]) -> Column | _Scalar | _Refused:
    """Say what a dataset, in one piece or several, is to a flat file."""
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
    if dtype is None or dtype.kind not in "biuf":
        return f"has dtype {dtype or 'unknown to numpy'}, expected real numbers or bool"
    if name in _ONE_A_ROW and dataset.shape[1:] not in {(), (1,)}:
        return f"has shape {list(dataset.shape)}, expected [{rows}] or [{rows}, 1]"
    if lies_elsewhere(dataset):
        return "has its values in another file, which is not followed"
    return None


def _json_value(dataset: Any) -> str | float | bool | None:
    value = read_scalar(dataset.id) if dtype_of(dataset) is not None else None
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return plain.decode("utf-8", errors="replace")
    return plain if isinstance(plain, (str, int, float, bool)) else None


def _scalar_name(name: str) -> str:
    return name.removeprefix(_METADATA)


def _rows(dataset: Any) -> int:
    return int(dataset.shape[0]) if dataset.shape else 0
