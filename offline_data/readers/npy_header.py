"""Headers of `.npy` files, read by their documented grammar and nothing beyond it.

The format is NEP 1 and `numpy.lib.format`, versions 1.0 to 3.0. numpy's own reader of headers
warns about those of Python 2, and shows a type to `numpy.dtype` before it is checked.
"""

from __future__ import annotations

import ast
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from offline_data.errors import FormatError
from offline_data.readers.dtypes import check_shape, plain_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

MAGIC = b"\x93NUMPY"
"""First bytes of every `.npy` file."""

_LONGEST = 10_000
"""Bytes of a header; numpy believes no more either."""
_WIDTHS = {1: 2, 2: 4, 3: 4}
"""Bytes of the length of the header, by version."""
_TOKEN = re.compile(r"""'[^'\\]*'|"[^"\\]*"|[0-9]+L?|True|False|[{}\[\](),: \n]""")


@dataclass(frozen=True)
class NpyHeader:
    """What a `.npy` file says of its array."""

    shape: tuple[int, ...]
    """Shape of the array."""
    dtype: np.dtype[Any]
    """Item type: numbers, text, times, raw bytes, records of them, or objects."""
    fortran: bool
    """Whether the first axis changes fastest."""
    size: int
    """Bytes before the first value."""


def read_header(stream: IO[bytes], *, where: str) -> NpyHeader:
    """Read the header that a stream begins with; the next byte is the first of the values.

    Raises:
        FormatError: It is none, is longer than 10,000 bytes, or names a type that `plain_dtype`
            refuses.
    """
    with npy_errors(where):
        return _read(stream)


@contextmanager
def npy_errors(where: str) -> Iterator[None]:
    """Turn what a damaged `.npy` file makes the block raise into `FormatError` naming the file."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError) as error:
        raise FormatError(
            f"{where} cannot be read as a .npy file: {error}", hint="fetch or copy it again"
        ) from error


def _read(stream: IO[bytes]) -> NpyHeader:
    start = _exactly(stream, len(MAGIC) + 2)
    if not start.startswith(MAGIC):
        raise ValueError(f"it begins with {start!r}, not with {MAGIC!r}")
    major, minor = start[len(MAGIC) :]
    if major not in _WIDTHS or minor:
        raise ValueError(f"it is of version {major}.{minor}; 1.0, 2.0 and 3.0 are read")
    length = int.from_bytes(_exactly(stream, _WIDTHS[major]), "little")
    if length > _LONGEST:
        raise ValueError(f"its header has {length} bytes; {_LONGEST} at most are read")
    text = _exactly(stream, length).decode("utf-8" if major == 3 else "latin-1")
    return _header(_literal(text), len(start) + _WIDTHS[major] + length)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            raise ValueError("it ends too early")
        data += more
    return data


def _literal(text: str) -> object:
    """Return the value of a header; whole numbers may be spelled as Python 2 does."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ValueError("its header is no dictionary of text and whole numbers")
    plain = (token.removesuffix("L") if token[0].isdigit() else token for token in tokens)
    try:
        return ast.literal_eval(" ".join(plain).strip())
    except (MemoryError, RecursionError, SyntaxError, TypeError) as error:
        raise ValueError(f"its header cannot be read: {error}") from error


def _header(fields: object, size: int) -> NpyHeader:
    if type(fields) is not dict or set(fields) != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header has not exactly descr, fortran_order and shape")
    if type(fields["fortran_order"]) is not bool:
        raise ValueError("its header says neither True nor False for fortran_order")
    shape = check_shape(fields["shape"])
    return NpyHeader(shape, _dtype(fields["descr"]), fields["fortran_order"], size)


def _dtype(descr: object) -> np.dtype[Any]:
    if type(descr) is str:
        return plain_dtype(descr)
    _check_record(descr)
    record = np.lib.format.descr_to_dtype(cast("Any", descr))
    if record.hasobject:
        raise ValueError("its records have fields of objects")
    return record


def _check_record(descr: object) -> None:
    """Raise `ValueError` unless `descr` is a list of names, types and inner shapes."""
    if type(descr) is not list:
        raise ValueError("its item type is neither a type string nor a list of fields")
    for field in descr:
        if type(field) is not tuple or len(field) not in {2, 3} or type(field[0]) is not str:
            raise ValueError("a field of its records is not a name, a type and maybe a shape")
        check_shape(field[2] if len(field) == 3 else ())
        if type(field[1]) is str:
            plain_dtype(field[1])
        else:
            _check_record(field[1])
