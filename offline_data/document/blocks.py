"""Blocks of a result, which say once what is shown of it; each medium has a renderer.

A spec names values: words `label[=key][:kind]`, of which the key is that of the
JSON, or the path of it (`episodes.same`), and `_` in a label is a space. Without a key, the label is it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

Kind: TypeAlias = Literal["text", "count", "bytes", "number", "share", "code", "verbatim"]
"""Notation of a value: unchanged, `1,234`, `3.5 MiB`, four digits, `12.5 %`; as a name in code, or with
its line breaks, where a medium can show that."""

WORDS: tuple[Kind, ...] = ("text", "code", "verbatim")
"""Kinds of texts; the others are numbers, which are right-aligned in a table."""


@dataclass(frozen=True)
class TableColumn:
    """One column of a table."""

    title: str
    kind: Kind = "text"
    clip: bool = False  # whether it is truncated, so that a row stays on one line
    keep: bool = False  # whether other columns are omitted before it in a narrow terminal


class Table(NamedTuple):
    """Rows of raw values; None for unknown values."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    listed: bool = False  # whether terminals print it as lines; see `text.lines_of`
    more: int = 0  # rows that are left out

    def first(self, count: int) -> Table:
        """Return the table with its first rows only."""
        left_out = max(0, len(self.rows) - count)
        return self._replace(rows=self.rows[:count], more=self.more + left_out)

    def filled(self) -> Iterator[tuple[TableColumn, list[Any]]]:
        """Yield the columns that have a value, and their values."""
        for place, column in enumerate(self.columns):
            values = [row[place] for row in self.rows]
            if any(value is not None and value != "" for value in values):
                yield column, values


def table(
    spec: str, items: Iterable[Any], title: str = "", **computed: Callable[[Any], Any]
) -> Table:
    """Return a table with a row for each item: an object, a mapping, or a tuple of the values.

    A word of the spec may end with `:clip` or `:keep`; see `TableColumn`. `computed` has functions
    of an item, by key.
    """
    words = list(_words(spec))
    columns = [
        TableColumn(label, kind, "clip" in marks, "keep" in marks)
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

    def values(self) -> list[Any]:
        """Return its values, except unknown and empty ones."""
        several = self.value if isinstance(self.value, (list, tuple)) else [self.value]
        return [value for value in several if value is not None and value != ""]


class Fields:
    """Named values; None and empty ones are omitted."""

    def __init__(self, *fields: Field, title: str = "") -> None:
        self.fields, self.title = fields, title


def fields_of(item: Any, spec: str, **computed: Any) -> Fields:
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


Line: TypeAlias = list[tuple[str, str]]
"""Parts of a line, each with a role that has a style: an id, a severity, `hint`, or none."""


class Lines(NamedTuple):
    """Lines of text."""

    lines: Sequence[Sequence[tuple[str, str]]]
    wrap: bool = True  # whether a terminal wraps them; False for formats that programs read


Block: TypeAlias = Table | Fields | Lines
"""A part of a result."""
