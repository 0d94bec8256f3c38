"""What stands behind an opcode in a pickle: lengths, numbers, text and bytes, each read whole.

The encodings are those that Python's `pickletools` documents, one for each opcode.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = re.compile(rb"[+-]?[0-9]{1,4000}")
"""More digits take Python quadratic time, or are refused by it."""
_BAD_ESCAPE = re.compile(rb"\\(?!x[0-9a-fA-F]{2}|[nrtabfv'\"])")


class Arguments:
    """The bytes of a pickle and how far they were read.

    Methods raise `ValueError` where the bytes end too early or cannot be read; `byte`, of which
    most pickles are full, `IndexError`.

    Args:
        data: The whole pickle.
    """

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start = self.at
        end = start + count
        if not start <= end <= len(self.data):
            raise ValueError(f"{count} bytes are announced, {len(self.data) - start} follow")
        self.at = end
        return self.data[start:end]

    def byte(self) -> int:
        """Return the next byte."""
        value = self.data[self.at]
        self.at += 1
        return value

    def unsigned(self, width: int) -> int:
        """Return a little-endian number of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def signed(self, width: int) -> int:
        """Return a little-endian number in two's complement."""
        return int.from_bytes(self.take(width), "little", signed=True)

    def line(self) -> bytes:
        """Return what is left of a line, without its end."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise ValueError("a line does not end")
        start, self.at = self.at, end + 1
        return self.data[start:end]

    def decimal(self) -> int:
        """Return the number that a line writes out."""
        return _decimal(self.line())


def _decimal(line: bytes) -> int:
    if not _NUMBER.fullmatch(line):
        raise ValueError(f"{line[:40]!r} is no whole number")
    return int(line)


def _text(width: int) -> Callable[[Arguments], str]:
    return lambda source: str(source.take(source.unsigned(width)), "utf-8", "surrogatepass")


def _short_text(source: Arguments) -> str:
    return str(source.take(source.byte()), "utf-8", "surrogatepass")


def _bytes(width: int) -> Callable[[Arguments], bytes]:
    return lambda source: source.take(source.unsigned(width))


def _old_text(width: int) -> Callable[[Arguments], str]:
    return lambda source: str(source.take(source.signed(width)), "latin-1")


def _long(width: int) -> Callable[[Arguments], int]:
    return lambda source: source.signed(source.signed(width))


def _number_or_flag(source: Arguments) -> int | bool:
    line = source.line()
    flags = {b"00": False, b"01": True}
    return flags[line] if line in flags else _decimal(line)


def _escaped(source: Arguments) -> str:
    """Read a string as Python 2 prints it; the bytes it had become the first 256 characters."""
    line = source.line()
    if len(line) < 2 or line[:1] not in {b"'", b'"'} or line[-1:] != line[:1]:
        raise ValueError(f"{line[:40]!r} is no string in quotes")
    body = line[1:-1]
    if _BAD_ESCAPE.search(body.replace(rb"\\", b"")):
        raise ValueError("a string has an escape that Python 2 does not write")
    return body.decode("unicode_escape")


READERS: dict[str, Callable[[Arguments], Any]] = {
    "INT": _number_or_flag,
    "BININT": lambda source: source.signed(4),
    "BININT1": Arguments.byte,
    "BININT2": lambda source: source.unsigned(2),
    "LONG": lambda source: _decimal(source.line().removesuffix(b"L")),
    "LONG1": lambda source: source.signed(source.byte()),
    "LONG4": _long(4),
    "FLOAT": lambda source: float(source.line()),
    "BINFLOAT": lambda source: struct.unpack(">d", source.take(8))[0],
    "STRING": _escaped,
    "BINSTRING": _old_text(4),
    "SHORT_BINSTRING": lambda source: str(source.take(source.byte()), "latin-1"),
    "BINBYTES": _bytes(4),
    "SHORT_BINBYTES": lambda source: source.take(source.byte()),
    "BINBYTES8": _bytes(8),
    "BYTEARRAY8": lambda source: bytearray(source.take(source.unsigned(8))),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "UNICODE": lambda source: str(source.line(), "raw-unicode-escape"),
    "BINUNICODE": _text(4),
    "SHORT_BINUNICODE": _short_text,
    "BINUNICODE8": _text(8),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_SET": lambda _: set(),
}
"""How the opcodes that only put one value on the stack read it, by name."""
