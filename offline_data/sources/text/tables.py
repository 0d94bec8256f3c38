"""Rows of Parquet, Arrow, JSON lines, CSV and plain text files, as lists of columns."""

from __future__ import annotations

import csv
import gzip
import json
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from offline_data.errors import FormatError
from offline_data.files import describe_head
from offline_data.readers.arrow import iter_arrow, iter_parquet
from offline_data.strict_json import parse_json, read_whole, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import TextIO

    Columns: TypeAlias = dict[str, list[Any]]
    """Some rows: equally long lists of plain values by column name."""

ROWS = 1000
"""Rows that are read and tokenized at once."""

MAX_LINE = 64 << 20
"""Characters of the longest line that is read: one document."""


def read_rows(path: Path, wanted: Iterable[str] | None = None) -> Iterator[Columns]:
    """Yield the rows of a file in order, at most `ROWS` at a time.

    Args:
        path: A file with one of the suffixes of `SUFFIXES`.
        wanted: Columns to read, of those there are; None: all.

    Raises:
        FormatError: It is not of the format that its suffix names, or damaged.
        MissingDependencyError: pyarrow is not installed, for Parquet and Arrow.
    """
    reader = _READERS[suffix_of(path.name)]
    keep = None if wanted is None else set(wanted)
    for columns in reader(path):
        yield columns if keep is None else {k: v for k, v in columns.items() if k in keep}


def suffix_of(name: str) -> str:
    """Return the suffix of a data file, `.jsonl.gz` as one; empty if it is none.

    Example:
        >>> suffix_of("data/train-00000-of-00002.jsonl.gz"), suffix_of("README.md")
        ('.jsonl.gz', '')
    """
    return next((one for one in _READERS if name.lower().endswith(one)), "")


def _parquet(path: Path) -> Iterator[Columns]:
    return _tables(iter_parquet(path, rows=ROWS))


def _arrow(path: Path) -> Iterator[Columns]:
    return _tables(iter_arrow(path))


def _tables(tables: Iterator[Any]) -> Iterator[Columns]:
    for table in tables:
        for begin in range(0, table.num_rows, ROWS):
            yield cast("Columns", table.slice(begin, ROWS).to_pydict())


def _json(path: Path) -> Iterator[Columns]:
    """Read JSON lines, or one array of objects."""
    with _lines(path) as lines:
        first = next(lines, "")
    if first.lstrip()[:1] != "[":
        yield from _json_lines(path)
        return
    rows = parse_json(read_whole(path, MAX_LINE), str(path))
    for begin in range(0, len(rows), ROWS):
        some = rows[begin : begin + ROWS]
        for i, row in enumerate(some, begin):
            if not isinstance(row, dict):
                raise FormatError(f"{path}, item {i}, is {shown(row)}; expected an object")
        yield _joined(some)


def _json_lines(path: Path) -> Iterator[Columns]:
    with _lines(path) as lines:
        numbered = enumerate(lines, 1)
        while some := list(islice(numbered, ROWS)):
            yield _joined([_object(line, path, n) for n, line in some if line.strip()])


def _object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}, line {number}, is not JSON: {error}",
            hint="expected one object on each line",
        ) from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}, line {number}, is {shown(value)}; expected an object")
    return value


def _joined(rows: list[dict[str, Any]]) -> Columns:
    """Return columns of objects; None where an object lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _csv(path: Path) -> Iterator[Columns]:
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    with _lines(path) as lines:
        try:
            rows = csv.reader(lines, delimiter=delimiter, strict=True)
            header = next(rows, None)
            if not header:
                raise FormatError(f"{path} is empty: expected a line of column names")
            while some := list(islice(rows, ROWS)):
                for row in some:
                    if len(row) != len(header):
                        raise FormatError(
                            f"{path}, line {rows.line_num}, has {len(row)} cells; expected "
                            f"{len(header)}"
                        )
                yield {name: [row[i] for row in some] for i, name in enumerate(header)}
        except csv.Error as error:
            raise FormatError(f"{path}, line {rows.line_num}, is not CSV: {error}") from error


def _text(path: Path) -> Iterator[Columns]:
    with _lines(path) as lines:
        while some := list(islice(lines, ROWS)):
            yield {"text": [line.rstrip("\n") for line in some]}


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a UTF-8 file, compressed if its name ends with `.gz`, as an iterator of lines."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            yield _bounded(file, path)
    except UnicodeDecodeError as error:
        head = error.object[error.start : error.start + 8]
        raise FormatError(
            f"{path} is not UTF-8: {describe_head(head)}", hint="convert it with `iconv`"
        ) from error
    except (EOFError, gzip.BadGzipFile) as error:
        raise FormatError(
            f"{path} is damaged or cut short: {error}", hint="download or copy the file again"
        ) from error


def _bounded(file: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise FormatError(f"{path}, line {number}, has more than {MAX_LINE:,} characters")
        yield line


_READERS: dict[str, Callable[[Path], Iterator[Columns]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".json": _json,
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".json.gz"), _json_lines),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), _csv),
    **dict.fromkeys((".txt", ".txt.gz"), _text),
}
SUFFIXES = tuple(_READERS)
"""Suffixes of data files."""
