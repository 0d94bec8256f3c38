"""Rows of Parquet, Arrow, JSON lines, CSV and plain text files, as lists of columns."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, TypeVar, cast

from offline_data.base.errors import FormatError
from offline_data.base.files import LFS, LFS_PULL, describe_head, read_head
from offline_data.base.json import parse_json, shown
from offline_data.base.plurals import plural
from offline_data.raw.arrow import iter_arrow, iter_parquet

if TYPE_CHECKING:
    Columns: TypeAlias = dict[str, list[Any]]
    """Some rows: equally long lists of plain values by column name."""

Row = TypeVar("Row")

ROWS = 1000
"""Most rows that are read and tokenized at once."""

CHARACTERS = 8 << 20
"""Characters, or bytes of Parquet and Arrow, after which no more rows are read at once."""

MAX_LINE = 64 << 20
"""Characters of the longest line that is read: one document."""


def read_rows(path: Path, wanted: Collection[str] | None = None) -> Iterator[Columns]:
    """Yield the rows of a file in order, at most `ROWS` at a time.

    Args:
        path: A file with one of the suffixes of `SUFFIXES`.
        wanted: Columns to read, None in rows that lack them; None: all that there are.

    Raises:
        FormatError: It is not of the format that its suffix names, or damaged.
        MissingDependencyError: pyarrow is not installed, for Parquet and Arrow.
    """
    for part in _parts(path):
        for rows in [part] if isinstance(part, dict) else _columns(part, wanted):
            nothing = [None] * len(next(iter(rows.values())))
            yield rows if wanted is None else {name: rows.get(name, nothing) for name in wanted}


def column_names(path: Path) -> list[str]:
    """Return the names of the columns that the first rows of a file have; raises as `read_rows`."""
    first = next(_parts(path), None)
    return [] if first is None else list(first if isinstance(first, dict) else first.column_names)


def _parts(path: Path) -> Iterator[Any]:
    """Yield some rows at a time: columns, or a `pyarrow.Table`."""
    head = read_head(path)
    if head.startswith(LFS):
        raise FormatError(f"{path} is not data: {describe_head(head)}", hint=LFS_PULL)
    return _READERS[suffix_of(path.name)](path)


def suffix_of(name: str) -> str:
    """Return the suffix of a data file, `.jsonl.gz` as one; empty if it is none.

    Example:
        >>> suffix_of("data/train-00000-of-00002.jsonl.gz"), suffix_of("README.md")
        ('.jsonl.gz', '')
    """
    return next((one for one in _READERS if name.lower().endswith(one)), "")


def _parquet(path: Path) -> Iterator[Any]:
    return _tables(iter_parquet(path, rows=ROWS), path)


def _arrow(path: Path) -> Iterator[Any]:
    return _tables(iter_arrow(path), path)


def _tables(tables: Iterator[Any], path: Path) -> Iterator[Any]:
    for table in tables:
        _check_names(table.column_names, path)
        if table.num_rows and not table.num_columns:
            raise FormatError(
                f"{path} has {plural(table.num_rows, 'row')} without columns; expected text"
            )
        yield table


def _check_names(names: Sequence[str], path: Path) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise FormatError(f"{path} has {plural(count, 'column')} called {name!r}")


def _columns(table: Any, wanted: Collection[str] | None) -> Iterator[Columns]:
    """Yield some rows of a table at a time, without other columns than those that are wanted."""
    table = table.select([n for n in table.column_names if wanted is None or n in wanted])
    rows = max(1, min(ROWS, CHARACTERS * table.num_rows // max(1, table.nbytes)))
    for begin in range(0, table.num_rows, rows):
        yield cast("Columns", table.slice(begin, rows).to_pydict())


def _some(rows: Iterator[Row], size: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Yield lists of `ROWS` rows, or of fewer whose sizes add up to `CHARACTERS`."""
    found: list[Row] = []
    total = 0
    for row in rows:
        found.append(row)
        total += size(row)
        if len(found) == ROWS or total >= CHARACTERS:
            yield found
            found, total = [], 0
    if found:
        yield found


def _json(path: Path) -> Iterator[Columns]:
    """Read JSON lines, or one array of objects."""
    with _lines(path) as lines:
        first = next(lines, "")
        whole = first.lstrip()[:1] == "["
        rows = parse_json(_joined_lines(first, lines, path), str(path)) if whole else None
    if rows is None:
        yield from _json_lines(path)
        return
    for begin in range(0, len(rows), ROWS):
        some = rows[begin : begin + ROWS]
        for i, row in enumerate(some, begin):
            if not isinstance(row, dict):
                raise FormatError(f"{path}, item {i}, is {shown(row)}; expected an object")
        yield _join_objects(some)


def _joined_lines(first: str, lines: Iterator[str], path: Path) -> str:
    """Return all lines of a file as one text of at most `MAX_LINE` characters."""
    found, total = [first], len(first)
    for line in lines:
        found.append(line)
        total += len(line)
        if total > MAX_LINE:
            raise FormatError(
                f"{path} is an array of more than {MAX_LINE:,} characters, which is read as a whole",
                hint="write an object on each line: `jq -c '.[]'`",
            )
    return "".join(found)


def _json_lines(path: Path) -> Iterator[Columns]:
    with _lines(path) as lines:
        for some in _some(enumerate(lines, 1), lambda one: len(one[1])):
            rows = [_object(line, path, n) for n, line in some if line.strip()]
            if rows:
                yield _join_objects(rows)


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


def _join_objects(rows: list[dict[str, Any]]) -> Columns:
    """Return columns of objects; None where an object lacks one."""
    # without a column, objects that have no field would not be counted
    names = dict.fromkeys(name for row in rows for name in row) or {"": None}
    return {name: [row.get(name) for row in rows] for name in names}


def _csv(path: Path) -> Iterator[Columns]:
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    csv.field_size_limit(MAX_LINE)  # the default is 128 KiB, and there is no other way to set it
    with _lines(path) as lines:
        try:
            rows = csv.reader(lines, delimiter=delimiter, strict=True)
            header = next(rows, None)
            if not header:
                raise FormatError(f"{path} is empty: expected a line of column names")
            _check_names(header, path)
            for some in _some(_full(rows, len(header), path), lambda row: sum(map(len, row))):
                yield {name: [row[i] for row in some] for i, name in enumerate(header)}
        except csv.Error as error:
            raise FormatError(f"{path}, line {rows.line_num}, is not CSV: {error}") from error


def _full(rows: Any, width: int, path: Path) -> Iterator[list[str]]:
    for row in rows:
        if len(row) != width:
            raise FormatError(
                f"{path}, line {rows.line_num}, has {plural(len(row), 'cell')}; expected {width}"
            )
        yield row


def _text(path: Path) -> Iterator[Columns]:
    with _lines(path) as lines:
        for some in _some(lines, len):
            yield {"text": [line.removesuffix("\n").removesuffix("\r") for line in some]}


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a UTF-8 file, compressed if its name ends with `.gz`, as an iterator of lines."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            yield _read_lines(file, path)
    except UnicodeDecodeError as error:
        head = error.object[error.start : error.start + 8]
        raise FormatError(
            f"{path} is not UTF-8: {describe_head(head)}", hint="convert it with `iconv`"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(
            f"{path} is damaged or cut short: {error}", hint="download or copy the file again"
        ) from error


def _read_lines(file: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise FormatError(f"{path}, line {number}, has more than {MAX_LINE:,} characters")
        yield line


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    **dict.fromkeys((".json", ".json.gz"), _json),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz"), _json_lines),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), _csv),
    **dict.fromkeys((".txt", ".txt.gz"), _text),
}
SUFFIXES = tuple(_READERS)
"""Suffixes of data files."""
