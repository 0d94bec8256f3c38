"""Results of commands, which `render.py` prints for people, scripts and pipes.

A spec says once what is shown of a value: words `label[=key][:kind]`, of which the key is that of the
JSON, or the path of it (`episodes.same`), and `_` in a label is a space. Without a key, the label is it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from offline_data.base.errors import OfflineDataError

# Unchanged, `1,234`, `3.5 MiB`, four digits, `12.5 %`.
Kind: TypeAlias = Literal["text", "count", "bytes", "number", "share"]


@dataclass(frozen=True)
class TableColumn:
    """One column of a table."""

    title: str
    kind: Kind = "text"
    clip: bool = False  # whether it is truncated to the terminal, so that a row stays on one line
    keep: bool = False  # whether other columns are omitted before it in a narrow terminal


class Table(NamedTuple):
    """Rows of raw values; None for unknown values."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Any]]
    title: str = ""


def table(
    spec: str, items: Iterable[Any], title: str = "", **computed: Callable[[Any], Any]
) -> Table:
    """Return a table with a row for each item: an object, a mapping, or a tuple of the values.

    A word of the spec may end with `:clip` or `:keep`; see `TableColumn`. `computed` has functions
    of an item, by key.
    """
    words = list(_words(spec))
    columns = [
        TableColumn(label.upper(), kind, "clip" in marks, "keep" in marks)
        for label, _, kind, marks in words
    ]
    rows = [
        item
        if isinstance(item, tuple)
        else [computed[key](item) if key in computed else _value(item, key) for _, key, *_ in words]
        for item in items
    ]
    return Table(columns, rows, title)


def non_empty(*tables: Table) -> list[Table]:
    """Return the tables that have rows."""
    return [table for table in tables if table.rows]


class Field(NamedTuple):
    """One named value; a sequence is printed as one line per item."""

    label: str
    value: Any
    kind: Kind = "text"


class Fields:
    """Named values; None and empty ones are omitted."""

    def __init__(self, *fields: Field, title: str = "") -> None:
        self.fields, self.title = fields, title


def card(item: Any, spec: str, **computed: Any) -> Fields:
    """Return values of an object or a mapping, or `computed` ones, as named values."""
    return Fields(
        *(
            Field(label, computed[key] if key in computed else _value(item, key), kind)
            for label, key, kind, _ in _words(spec)
        )
    )


def _words(spec: str) -> Iterator[tuple[str, str, Kind, list[str]]]:
    """Yield label, key, kind and marks of the words of a spec."""
    for word in spec.split():
        name, *marks = word.split(":")
        label, _, key = name.partition("=")
        kind = next((mark for mark in marks if mark not in {"clip", "keep"}), "text")
        yield label.replace("_", " "), key or label, cast("Kind", kind), marks


def _value(item: Any, path: str) -> Any:
    """Return a value of an object or a mapping; None if a mapping lacks it."""
    for key in path.split("."):
        item = item.get(key) if isinstance(item, Mapping) else getattr(item, key)
    return item


class Lines(NamedTuple):
    """Lines of parts, each with a role that has a style; see `render`."""

    lines: Sequence[Sequence[tuple[str, str]]]
    wrap: bool = True  # whether a terminal wraps them; False for formats that programs read


class Drawing(NamedTuple):
    """Lines that are drawn for a width."""

    draw: Callable[[int], list[str]]  # takes the width in characters; a pipe has 80


Block: TypeAlias = Table | Fields | Lines | Drawing | str


@dataclass(frozen=True)
class Result:
    """Outcome of one command."""

    data: Any  # for `--json`: dataclasses, mappings, sequences, paths, arrays and plain values
    blocks: Sequence[Block]  # printed for people
    ids: Sequence[str] = ()  # printed with `--quiet`, one per line
    notes: Sequence[str] = ()  # notes on stderr
    code: int = 0  # exit code if not 0 and not that of a failure
    failures: Sequence[OfflineDataError] = ()  # shown besides; the first sets the exit code


def combine(data: Any, results: Sequence[Result], code: int = 0) -> Result:
    """Combine results; adjacent lines, and tables with the same columns, are merged."""
    blocks: list[Block] = []
    for block in (block for result in results for block in result.blocks):
        last = blocks[-1] if blocks else None
        if isinstance(block, Table) and isinstance(last, Table) and block.columns == last.columns:
            blocks[-1] = Table(last.columns, (*last.rows, *block.rows))
        elif isinstance(block, str) and isinstance(last, str):
            blocks[-1] = f"{last}\n{block}"
        else:
            blocks.append(block)
    ids = [text for result in results for text in result.ids]
    notes = [note for result in results for note in result.notes]
    failures = [error for result in results for error in result.failures]
    return Result(data, blocks, ids, notes, code, failures)
