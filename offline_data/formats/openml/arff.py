r"""ARFF files, as OpenML publishes them, in blocks of rows: dense or sparse, plain or in gzip.

```
% comment
@RELATION weather
@ATTRIBUTE outlook {sunny, overcast, rainy}      nominal: a value is one of these words
@ATTRIBUTE 'wind speed' NUMERIC                  numeric: also REAL and INTEGER
@ATTRIBUTE remark STRING                         text: also DATE
@DATA
sunny, 3.5, 'it\'s dry'
{1 ?, 2 "no wind"}                               sparse: `?` is missing; omitted values are the
                                                 first word, 0, or the empty text
```

A quoted value is never missing, and its escapes (`\n`, `\'`, `\u00e9`) are interpreted. Keywords are
case-insensitive. The file is UTF-8.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.files import describe_head, human_bytes, is_unicode, read_head
from offline_data.base.json import shown
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, Skipped
from offline_data.episode.joining import skip_hint
from offline_data.raw.archive import name_damage

BLOCK = 1 << 21  # characters read at once
_LONGEST_LINE = 64 << 20
_HEADER = 32 << 20  # characters before @data: names and lists of categories
_CELLS = 1 << 20  # values held at once as text
_GZIP = b"\x1f\x8b"

_QUOTED = r"""(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\")"""
_CELL = re.compile(rf"\s*(?:{_QUOTED}|([^,]*))\s*(,|$)", re.DOTALL)
_INDEXED = re.compile(rf"\s*(\d{{1,9}})\s+(?:{_QUOTED}|([^,]*))\s*(,|$)", re.DOTALL)
_ATTRIBUTE = re.compile(rf"@attribute\s+(?:{_QUOTED}|([^\s{{'\"]+))\s*(.*)", re.IGNORECASE)
_NUMBER = re.compile(
    r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+|inf|infinity|nan)(e[-+]?[0-9]+)?\s*", re.IGNORECASE
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}

Kind = Literal["numeric", "nominal", "text"]


@dataclass(frozen=True)
class Attribute:
    """One column of a table."""

    name: str
    kind: Kind
    categories: tuple[str, ...] | None = None
    """Words of a nominal column in the order of their codes; None if the header has no list."""


@dataclass(frozen=True)
class Block:
    """A run of rows of a table."""

    columns: list[NDArray[Any]]
    """`[rows]` of each column. Numeric: float64, NaN for missing values. Nominal: int64 codes, -1 for
    missing values, or `str` words if the header has no list. Text: `str`. Missing objects are None.
    Without any row the list is empty."""
    skipped: tuple[Skipped, ...] = ()  # rows left out because they cannot be read

    @property
    def rows(self) -> int:
        return len(self.columns[0]) if self.columns else 0


@dataclass(frozen=True)
class ArffFile:
    """An ARFF file whose header has been read; see `open_arff`."""

    path: Path
    columns: tuple[Attribute, ...]
    first: int  # number of the first line after `@data`, from 1
    dropped: tuple[Dropped, ...] = ()  # always empty: unsupported attributes are errors

    def blocks(self, *, skip_bad: bool = False) -> Iterator[Block]:
        """Yield runs of rows, at most some megabytes of text at a time.

        Args:
            skip_bad: Whether rows that cannot be read are left out, and named in `Block.skipped`.

        Raises:
            FormatError: A row of another number of values, a word that the header does not list,
                no number where one should be, a quote that does not end; names the line. Or the
                file is not UTF-8, or has NUL bytes.
        """
        reader, size = _Rows(self), max(1, _CELLS // len(self.columns))
        number, lines = self.first, _read_lines(self.path, self.first)
        while block := list(islice(lines, size)):
            if skip_bad:
                yield from reader.read_good(block, number)
            else:
                try:
                    yield Block(reader.read(block, number))
                except FormatError as error:
                    rows = (partial(reader.read, [line], 0) for line in block if line.strip())
                    hint = skip_hint(number - self.first, rows)
                    raise FormatError(error.message, hint=hint) from None
            number += len(block)


def is_arff(path: Path) -> bool:
    """Return True if a plain file begins as ARFF does: comments, then `@relation`."""
    with name_damage(path):
        read_head(path)  # raises our error if the file cannot be read
        with _open_bytes(path) as file:
            text = file.read(1 << 18).decode("latin-1").removeprefix("\xef\xbb\xbf")
    begin = next((line for line in text.splitlines() if line.strip() and line[0] != "%"), "")
    return begin.lstrip().lower().startswith(("@relation", "@attribute"))


def open_arff(path: Path) -> ArffFile:
    """Read the header of an ARFF file.

    Raises:
        FormatError: It is not ARFF, or is not UTF-8; is a damaged gzip file; has an attribute of
            another kind, or a name or a word twice; has no attributes or no `@data`.
        NotFoundError, AccessError: There is no such file, or it may not be read.
    """
    if not is_arff(path):
        found = describe_head(read_head(path))
        raise FormatError(f"{path} is not an ARFF file: {found}", hint="download it again")
    columns: dict[str, Attribute] = {}
    size = 0
    for number, line in enumerate(_read_lines(path), 1):
        size += len(line) + 1
        if size > _HEADER:
            raise FormatError(f"The header of {path} has more than {human_bytes(_HEADER)}")
        text = line.strip()
        word = text[:11].lower()
        if not text or text.startswith("%") or word.startswith("@relation"):
            continue
        if word.startswith("@data"):
            if not columns:
                raise FormatError(f"{path} declares no attributes")
            return ArffFile(path, tuple(columns.values()), number + 1)
        column = _read_attribute(text, f"{path}, line {number},")
        if column.name in columns:
            raise FormatError(f"{path} declares the attribute {shown(column.name)} twice")
        columns[column.name] = column
    raise FormatError(f"{path} has no @data: it is cut short", hint="download it again")


def _read_attribute(line: str, where: str) -> Attribute:
    found = _ATTRIBUTE.fullmatch(line)
    if found is None:
        raise FormatError(f"{where} is neither @attribute NAME TYPE nor @data, but {shown(line)}")
    name = _value(found.groups()[:3], where) or "?"
    kind = found[4]
    word = re.split("[^a-z]", kind.lower(), maxsplit=1)[0]
    if word in {"numeric", "real", "integer"}:
        return Attribute(name, "numeric")
    if word in {"string", "date"}:
        return Attribute(name, "text")
    if not kind.startswith("{") or not kind.endswith("}"):
        raise FormatError(
            f"{where} declares {shown(name)} as {shown(kind)}; expected numeric, real, integer, "
            "string, date or {a, b, …}"
        )
    words = ["?" if cell is None else cell for cell in _split_quoted(kind[1:-1].strip(), where)]
    if len(set(words)) < len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise FormatError(f"{where} lists {shown(twice)} twice among the words of {shown(name)}")
    return Attribute(name, "nominal", tuple(words))


class _Rows:
    """Reads lines of `@data` to columns.

    `str.split`, and `map` of `float` or of a dictionary's `get`, convert all values of a column at
    once; only blocks with other syntax are read by a loop over values.
    """

    def __init__(self, file: ArffFile) -> None:
        self._path, self._columns, self._count = file.path, file.columns, len(file.columns)
        self._codes: list[dict[str | None, int]] = [
            {None: -1, **{word: code for code, word in enumerate(column.categories or ())}}
            for column in file.columns
        ]
        omitted = {"numeric": "0", "text": ""}
        self._omitted = [
            omitted.get(column.kind, (column.categories or (None,))[0]) for column in file.columns
        ]

    def read_good(self, lines: list[str], first: int) -> Iterator[Block]:
        """Read lines, those that cannot be read aside, which are found by halving."""
        try:
            yield Block(self.read(lines, first))
        except FormatError as error:
            if len(lines) == 1:
                yield Block([], (Skipped.of(self._path, error, f", line {first}"),))
                return
            half = len(lines) // 2
            yield from self.read_good(lines[:half], first)
            yield from self.read_good(lines[half:], first + half)

    def read(self, lines: list[str], first: int) -> list[NDArray[Any]]:
        """Read lines, of which the first has the number `first`; empty if there is no row."""
        rows = [line.strip() for line in lines]
        numbers = [number for number, row in enumerate(rows, first) if row and row[0] != "%"]
        if not numbers:
            return []
        if len(numbers) < len(rows):
            rows = [rows[number - first] for number in numbers]
        whole = ",".join(rows)
        if {row.count(",") for row in rows} == {self._count - 1} and not any(
            mark in whole for mark in "'\"{"
        ):
            cells = _split(whole)
        else:
            by_row = map(self._read_row, numbers, rows)
            cells = [cell for row in by_row for cell in row]
        # Python's float also reads 1_000 and the digits of other scripts
        plain = "_" not in whole and whole.isascii()
        return [
            self._convert(place, cells[place :: self._count], numbers, plain=plain)
            for place in range(self._count)
        ]

    def _read_row(self, number: int, text: str) -> Sequence[str | None]:
        where = f"{self._path}, line {number},"
        if text.startswith("{"):
            return self._read_sparse(text, where)
        quoted = "'" in text or '"' in text
        row = _split_quoted(text, where) if quoted else _split(text)
        if len(row) != self._count:
            raise FormatError(f"{where} has {plural(len(row), 'value')}; expected {self._count}")
        return row

    def _read_sparse(self, text: str, where: str) -> Sequence[str | None]:
        if not text.endswith("}"):
            raise FormatError(f"{where} begins with {{ and does not end with }}: it is cut short")
        given: dict[int, str | None] = {}
        for index, *groups in _match_all(_INDEXED, text[1:-1].strip(), where):
            place = int(index)
            if place >= self._count or place in given:
                twice = (
                    " twice"
                    if place in given
                    else f"; there are {plural(self._count, 'attribute')}"
                )
                raise FormatError(f"{where} has a value {place}{twice}")
            given[place] = _value(groups, where)
        return [given.get(place, omitted) for place, omitted in enumerate(self._omitted)]

    def _convert(
        self, place: int, values: Sequence[Any], numbers: list[int], *, plain: bool
    ) -> NDArray[Any]:
        """Return the values of a column as an array, or the error of the first that is none."""
        column, codes = self._columns[place], self._codes[place]
        try:
            if column.kind == "nominal":
                return np.fromiter(map(codes.__getitem__, values), np.int64, len(values))
            if column.kind == "numeric" and plain:
                return np.fromiter(map(float, values), np.float64, len(values))
        except TypeError:  # a missing number
            values = ["nan" if value is None else value for value in values]
            return self._convert(place, values, numbers, plain=plain)
        except (KeyError, ValueError):
            pass  # spaces around a word, or an error
        missing = "nan" if column.kind == "numeric" else None
        values = [missing if value is None else value.strip() for value in values]
        if column.kind == "text":
            return np.array([*values, None], object)[:-1]
        if column.kind == "nominal":
            expected = f"one of its {plural(len(codes) - 1, 'word')}"
            bad = [value not in codes for value in values]
        else:
            expected = "a number"
            bad = [not _NUMBER.fullmatch(value) for value in values]
        if True in bad:
            row = bad.index(True)
            raise FormatError(
                f"{self._path}, line {numbers[row]}, has {shown(values[row])} for "
                f"{shown(column.name)}; expected {expected}"
            )
        if column.kind == "nominal":
            return np.array([codes[value] for value in values], np.int64)
        return np.fromiter(map(float, values), np.float64, len(values))


def _split(text: str) -> list[str | None]:
    """Split values without quotes; a missing one is None."""
    cells: list[Any] = text.split(",")
    if "?" in text:
        cells = [None if cell == "?" or cell.strip() == "?" else cell for cell in cells]
    return cells


def _split_quoted(text: str, where: str) -> list[str | None]:
    return [_value(groups, where) for groups in _match_all(_CELL, text, where)]


def _match_all(pattern: re.Pattern[str], text: str, where: str) -> Iterator[Sequence[str]]:
    """Yield the groups of each value, up to the end of the text."""
    place, comma = 0, "," if text else ""
    while comma:
        found = pattern.match(text, place)
        if found is None:
            raise FormatError(f"{where} has {shown(text[place:])} where INDEX VALUE should be")
        *groups, comma = found.groups()
        yield groups
        place = found.end()


def _value(groups: Sequence[str | None], where: str) -> str | None:
    """Return a value of which the groups of a pattern are in single, double and no quotes."""
    single, double, plain = groups
    if plain is None:
        inner = _ESCAPE.sub(_unescape, (single if double is None else double) or "")
        if not is_unicode(inner):
            raise FormatError(f"{where} has half of a surrogate pair, which is not a character")
        return inner
    word = plain.rstrip()
    if word[:1] in {"'", '"'}:
        raise FormatError(f"{where} has a quote that does not end: {shown(word)}")
    return None if word == "?" else word


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)


def _open_bytes(path: Path) -> IO[bytes]:
    packed = read_head(path, len(_GZIP)) == _GZIP
    return cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb")


def _read_lines(path: Path, first: int = 1) -> Iterator[str]:
    """Yield the lines from number `first` on, of which none may fill the memory."""
    rest, number = "", 1
    with name_damage(path), _open_bytes(path) as raw, io.TextIOWrapper(raw, "utf-8-sig") as file:
        while block := _read_block(file, path):
            *whole, rest = (rest + block).split("\n")
            yield from whole[max(0, first - number) :]
            number += len(whole)
            if len(rest) > _LONGEST_LINE:
                raise FormatError(f"{path} has a line of more than {human_bytes(_LONGEST_LINE)}")
        if rest:
            yield rest


def _read_block(file: IO[str], path: Path) -> str:
    try:
        block = file.read(BLOCK)
    except UnicodeDecodeError as error:
        hint = "convert it: `iconv -f latin1 -t utf8`, where it is Latin-1"
        raise FormatError(f"{path} is not UTF-8: {error.reason}", hint=hint) from error
    if "\0" in block:
        raise FormatError(f"{path} has a NUL byte: it is damaged", hint="download it again")
    return block
