r"""ARFF files, as Weka and OpenML write them, in blocks of rows: dense or sparse, plain or in gzip.

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
case-insensitive. The file is UTF-8, or else Latin-1.
"""

from __future__ import annotations

import codecs
import io
import math
import re
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import numpy as np

from offline_data.episodes import Skipped
from offline_data.episodes.joining import SKIP_HINT
from offline_data.errors import FormatError
from offline_data.files import describe_head, human_bytes, is_unicode, read_head
from offline_data.plurals import plural
from offline_data.readers.archive import damage_named
from offline_data.strict_json import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Dropped

BLOCK = 1 << 21
"""Characters read at once."""
_LONGEST_LINE = 64 << 20
_HEADER = 32 << 20  # characters before @data: names and lists of categories
_CELLS = 1 << 20  # values held at once as text
_GZIP = b"\x1f\x8b"

_QUOTED = r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\""""
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
    skipped: tuple[Skipped, ...] = ()
    """Rows left out because they cannot be read."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0]) if self.columns else 0


@dataclass(frozen=True)
class ArffFile:
    """An ARFF file whose header has been read; see `open_arff`."""

    path: Path
    columns: tuple[Attribute, ...]
    encoding: str
    """`utf-8-sig` or `latin-1`."""
    first: int
    """Number of the first line after `@data`, from 1."""
    dropped: tuple[Dropped, ...] = ()
    """None: every kind of attribute is read, or is an error."""

    def blocks(self, *, skip_bad: bool = False) -> Iterator[Block]:
        """Yield runs of rows, at most some megabytes of text at a time.

        Args:
            skip_bad: Whether rows that cannot be read are left out, and named in `Block.skipped`.

        Raises:
            FormatError: A row of another number of values, a word that the header does not list,
                no number where one should be, a quote that does not end; names the line.
        """
        reader, size = _Rows(self), max(1, _CELLS // len(self.columns))
        with damage_named(self.path), _open_text(self.path, self.encoding) as file:
            lines = _lines(file, self.path)
            for _ in islice(lines, self.first - 1):
                pass
            number = self.first
            while block := list(islice(lines, size)):
                if skip_bad:
                    yield from reader.read_good(block, number)
                else:
                    try:
                        rows = reader.read(block, number)
                    except FormatError as error:
                        raise FormatError(error.message, hint=SKIP_HINT) from None
                    yield Block(rows)
                number += len(block)


def is_arff(path: Path) -> bool:
    """Return True if a plain file begins as ARFF does: comments, then `@relation`."""
    with damage_named(path):
        head = read_head(path, 1 << 18)
        if head.startswith(_GZIP):
            with _open_bytes(path) as file:
                head = file.read(1 << 18)
    text = head.decode("latin-1").removeprefix("\xef\xbb\xbf")
    words = (line.strip() for line in text.splitlines())
    begin = next((line for line in words if line and not line.startswith("%")), "")
    return begin.lower().startswith(("@relation", "@attribute"))


def open_arff(path: Path) -> ArffFile:
    """Read the header of an ARFF file; its rows are only looked at for their encoding.

    Raises:
        FormatError: It is not ARFF, is UTF-16 or has NUL bytes, is a damaged gzip file; has an
            attribute of another kind, or a name or a word twice; has no attributes or no `@data`.
        NotFoundError, AccessError: There is no such file, or it may not be read.
    """
    if not is_arff(path):
        found = describe_head(read_head(path))
        raise FormatError(f"{path} is not an ARFF file: {found}", hint="download it again")
    encoding = _encoding(path)
    columns: list[Attribute] = []
    size = 0
    with damage_named(path), _open_text(path, encoding) as file:
        for number, line in enumerate(_lines(file, path), 1):
            size += len(line) + 1
            if size > _HEADER:
                raise FormatError(f"The header of {path} has more than {human_bytes(_HEADER)}")
            text = line.strip()
            word = text[:11].lower()
            if not text or text.startswith("%") or word.startswith("@relation"):
                continue
            if word.startswith("@data"):
                return ArffFile(path, _checked(columns, path), encoding, number + 1)
            columns.append(_attribute(text, f"{path}, line {number},"))
    raise FormatError(f"{path} has no @data: it is cut short", hint="download it again")


def _checked(columns: list[Attribute], path: Path) -> tuple[Attribute, ...]:
    names = [column.name for column in columns]
    if not names:
        raise FormatError(f"{path} declares no attributes")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"{path} declares the attribute {shown(twice)} twice")
    return tuple(columns)


def _attribute(line: str, where: str) -> Attribute:
    found = _ATTRIBUTE.fullmatch(line)
    if found is None:
        raise FormatError(f"{where} is no @attribute NAME TYPE and no @data: {shown(line)}")
    quoted, double, plain, kind = found.groups()
    name = plain or _unescaped(quoted if quoted is not None else double)
    word = (re.match("[a-z]*", kind.lower()) or [""])[0]
    if word in {"numeric", "real", "integer"}:
        return Attribute(name, "numeric")
    if word in {"string", "date"}:
        return Attribute(name, "text")
    if not kind.startswith("{") or not kind.endswith("}"):
        raise FormatError(
            f"{where} declares {shown(name)} as {shown(kind)}; expected numeric, real, integer, "
            "string, date or {a, b, …}"
        )
    cells = _cells(kind[1:-1], where)
    words = tuple("?" if cell is None else cell for cell in cells)
    if words == ("",):
        words = ()
    if len(set(words)) < len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise FormatError(f"{where} lists {shown(twice)} twice among the words of {shown(name)}")
    return Attribute(name, "nominal", words)


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

    def read_good(self, lines: list[str], first: int) -> Iterator[Block]:
        """Read lines, those that cannot be read aside, which are found by halving."""
        try:
            yield Block(self.read(lines, first))
        except FormatError as error:
            if len(lines) == 1:
                yield Block([], (Skipped(f"{self._path.name}, line {first}", error.message),))
                return
            half = len(lines) // 2
            yield from self.read_good(lines[:half], first)
            yield from self.read_good(lines[half:], first + half)

    def read(self, lines: list[str], first: int) -> list[NDArray[Any]]:
        """Read lines, of which the first has the number `first`; empty if there is no row."""
        whole = "\n".join(lines)
        if not any(mark in whole for mark in "'\"{%"):
            rows = [line for line in lines if line and not line.isspace()]
            if not rows:
                return []
            if {line.count(",") for line in rows} == {self._count - 1}:
                cells = _plain(",".join(rows))
                return self._columns_of(cells, lines, first, whole)
        rows_of_cells = [
            self._row(text, f"{self._path}, line {number},")
            for number, line in enumerate(lines, first)
            if (text := line.strip()) and not text.startswith("%")
        ]
        if not rows_of_cells:
            return []
        flat = [cell for row in rows_of_cells for cell in row]
        return self._columns_of(flat, lines, first, whole)

    def _row(self, text: str, where: str) -> Sequence[str | None]:
        if text.startswith("{"):
            return self._sparse(text, where)
        row = _cells(text, where) if "'" in text or '"' in text else _plain(text)
        if len(row) != self._count:
            raise FormatError(f"{where} has {plural(len(row), 'value')}; expected {self._count}")
        return row

    def _sparse(self, text: str, where: str) -> Sequence[str | None]:
        if not text.endswith("}"):
            raise FormatError(f"{where} begins with {{ and does not end with }}: it is cut short")
        row: list[str | None] = [_left_out(column) for column in self._columns]
        seen = set()
        for index, quoted, double, plain in _matches(_INDEXED, text[1:-1].strip(), where):
            place = int(index)
            if place >= self._count or place in seen:
                raise FormatError(
                    f"{where} has a value {place}"
                    + (" twice" if place in seen else f"; there are {self._count} attributes")
                )
            seen.add(place)
            row[place] = _value(quoted, double, plain, where)
        return row

    def _columns_of(
        self, cells: Sequence[str | None], lines: list[str], first: int, whole: str
    ) -> list[NDArray[Any]]:
        # Python's float also reads 1_000 and the digits of other scripts
        odd = "_" in whole or not whole.isascii()
        arrays: list[NDArray[Any]] = []
        for place, column in enumerate(self._columns):
            values = cells[place :: self._count]
            where = partial(self._line, lines, first)
            if column.kind == "numeric":
                arrays.append(_numbers(values, column, where, odd=odd))
            elif column.kind == "nominal":
                arrays.append(_codes_of(values, column, self._codes[place], where))
            else:
                texts = [value if value is None else value.strip() for value in values]
                _check_text(texts, column, where)
                arrays.append(np.array([*texts, None], object)[:-1])
        return arrays

    def _line(self, lines: list[str], first: int, row: int) -> str:
        """Name the line of a row of a block."""
        numbers = (
            number
            for number, line in enumerate(lines, first)
            if line.strip() and not line.strip().startswith("%")
        )
        return f"{self._path}, line {next(islice(numbers, row, None))},"


def _left_out(column: Attribute) -> str | None:
    if column.kind == "nominal":
        return column.categories[0] if column.categories else None
    return "0" if column.kind == "numeric" else ""


def _plain(text: str) -> list[str | None]:
    """Split values without quotes; a missing one is None."""
    cells: list[Any] = text.split(",")
    if "?" in text:
        cells = [None if cell == "?" or cell.strip() == "?" else cell for cell in cells]
    return cells


def _cells(text: str, where: str) -> list[str | None]:
    """Split values with quotes; a missing one is None."""
    return [
        _value(quoted, double, plain, where)
        for quoted, double, plain in _matches(_CELL, text, where)
    ]


def _matches(pattern: re.Pattern[str], text: str, where: str) -> Iterator[Sequence[str]]:
    """Yield the groups of each value, up to the end of the text."""
    place = 0
    while text:
        found = pattern.match(text, place)
        if found is None:
            raise FormatError(f"{where} has {shown(text[place:])} where INDEX VALUE should be")
        *groups, comma = found.groups()
        yield groups
        if not comma:
            return
        place = found.end()
    if pattern is _CELL:
        yield [None, None, ""]  # type: ignore[list-item]


def _value(quoted: str | None, double: str | None, plain: str | None, where: str) -> str | None:
    inner = quoted if quoted is not None else double
    if inner is not None:
        return _unescaped(inner)
    word = (plain or "").rstrip()
    if word[:1] in {"'", '"'}:
        raise FormatError(f"{where} has a quote that does not end: {shown(word)}")
    return None if word == "?" else word


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, text) if "\\" in text else text


def _numbers(
    values: Sequence[str | None], column: Attribute, where: Callable[[int], str], *, odd: bool
) -> NDArray[np.float64]:
    if not odd:
        try:
            return np.fromiter(map(float, values), np.float64, len(values))  # type: ignore[arg-type]
        except (ValueError, TypeError):
            pass  # a missing value, or none that is a number
    numbers = np.full(len(values), math.nan)
    for row, value in enumerate(values):
        if value is not None:
            if not _NUMBER.fullmatch(value):
                raise FormatError(
                    f"{where(row)} has {shown(value)} for {shown(column.name)}; expected a number"
                )
            numbers[row] = float(value)
    return numbers


def _codes_of(
    values: Sequence[str | None],
    column: Attribute,
    codes: dict[str | None, int],
    where: Callable[[int], str],
) -> NDArray[np.int64]:
    try:
        return np.fromiter(map(codes.__getitem__, values), np.int64, len(values))
    except KeyError:
        stripped = [value if value is None else value.strip() for value in values]
    found = list(map(codes.get, stripped))
    if None in found:
        row = found.index(None)
        raise FormatError(
            f"{where(row)} has {shown(values[row])} for {shown(column.name)}, which is none of "
            f"its {len(codes) - 1:,} declared words"
        )
    return np.array(found, np.int64)


def _check_text(
    texts: Sequence[str | None], column: Attribute, where: Callable[[int], str]
) -> None:
    for row, text in enumerate(texts):
        if text is not None and not text.isascii() and not is_unicode(text):
            raise FormatError(
                f"{where(row)} has half of a surrogate pair for {shown(column.name)}: no Unicode"
            )


# ---- bytes and lines ---------------------------------------------------------------------------


def _open_bytes(path: Path) -> IO[bytes]:
    if read_head(path, len(_GZIP)) == _GZIP:
        import gzip

        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _open_text(path: Path, encoding: str) -> IO[str]:
    return io.TextIOWrapper(_open_bytes(path), encoding=encoding)


def _encoding(path: Path) -> str:
    decoder, encoding = codecs.getincrementaldecoder("utf-8")(), "utf-8-sig"
    place = 0
    with damage_named(path), _open_bytes(path) as file:
        while block := file.read(BLOCK):
            if (at := block.find(b"\0")) >= 0:
                raise FormatError(
                    f"{path} has a NUL byte at {place + at:,}: it is damaged, or UTF-16",
                    hint="download it again, or save it as UTF-8",
                )
            place += len(block)
            if encoding != "latin-1":
                try:
                    decoder.decode(block)
                except UnicodeDecodeError:
                    encoding = "latin-1"
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            encoding = "latin-1"
    return encoding


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines, of which none may fill the memory."""
    rest = ""
    while block := file.read(BLOCK):
        *whole, rest = (rest + block).split("\n")
        yield from whole
        if len(rest) > _LONGEST_LINE:
            raise FormatError(f"{path} has a line of more than {human_bytes(_LONGEST_LINE)}")
    if rest:
        yield rest
