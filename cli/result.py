"""What a command hands back: values that `output.py` renders for people, scripts and pipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from offline_data.errors import OfflineDataError

Kind: TypeAlias = Literal["text", "count", "bytes", "number", "share"]
"""How a value is written: as it is, `1,234`, `3.5 MiB`, four digits, `12.5 %`."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    kind: Kind = "text"
    clip: bool = False
    """Whether a terminal cuts it at the edge, so that a row stays one line."""
    keep: bool = False
    """Whether other columns go before it where a terminal is narrow."""


@dataclass(frozen=True)
class Table:
    """Rows of raw values; None is "not known"."""

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
    """Named values, those that are None or empty left out."""

    fields: tuple[Field, ...]
    title: str = ""


Block: TypeAlias = "Table | Fields | str"


@dataclass(frozen=True)
class Result:
    """What one command found or did."""

    data: Any
    """For `--json`: dataclasses, mappings, sequences, paths, arrays and plain values."""
    blocks: tuple[Block, ...]
    """For people, in order."""
    ids: tuple[str, ...] = ()
    """For `--quiet`: a line each."""
    notes: tuple[str, ...] = ()
    """For stderr: what is worth knowing beside the data."""
    code: int = 0
    """Exit code where it is not 0 and not that of the failures."""
    failures: tuple[OfflineDataError, ...] = ()
    """What is wrong although there is a result; each is shown, the first gives the exit code."""
