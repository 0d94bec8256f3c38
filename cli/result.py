"""Results of commands: values that `render.py` prints for people, scripts and pipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from offline_data.errors import OfflineDataError

Kind: TypeAlias = Literal["text", "count", "bytes", "number", "share"]
"""Format of a value: as it is, `1,234`, `3.5 MiB`, four digits, `12.5 %`."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    kind: Kind = "text"
    clip: bool = False
    """Whether it is cut at the edge of a terminal, so that a row stays one line."""
    keep: bool = False
    """Whether other columns are left out before it in a narrow terminal."""


@dataclass(frozen=True)
class Table:
    """Rows of raw values; None if unknown."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Field:
    """One named value; a sequence takes a line each."""

    label: str
    value: Any
    kind: Kind = "text"


@dataclass(frozen=True)
class Fields:
    """Named values; those that are None or empty are left out."""

    fields: tuple[Field, ...]
    title: str = ""


Block: TypeAlias = "Table | Fields | str"


@dataclass(frozen=True)
class Result:
    """Outcome of one command."""

    data: Any
    """For `--json`: dataclasses, mappings, sequences, paths, arrays and plain values."""
    blocks: tuple[Block, ...]
    """For people, in order."""
    ids: tuple[str, ...] = ()
    """For `--quiet`: one per line."""
    notes: tuple[str, ...] = ()
    """For stderr."""
    code: int = 0
    """Exit code where it is not 0 and not that of the failures."""
    failures: tuple[OfflineDataError, ...] = ()
    """Errors despite a result; each is shown, the first gives the exit code."""
