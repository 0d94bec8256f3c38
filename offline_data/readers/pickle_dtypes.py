"""Item types of numpy out of a pickle: from a type string, then a state, to a checked dtype."""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np

from offline_data.readers.dtypes import check_shape, plain_dtype

_DEPTH = 8
_PARTS = 1000
_ALIGNED = 0x80
_UNITS = re.compile("[YMWDhms]|[munpfa]s|generic")


class ItemType:
    """A numpy dtype while it is being read; `dtype` is valid at any time.

    Args:
        code: Type string, as `numpy.dtype.__reduce__` gives it.
        align: False.
        copy: True.
    """

    __slots__ = ("_depth", "_parts", "_whole", "dtype")

    def __init__(self, code: object, align: object, copy: object) -> None:
        if type(code) is not str or align not in (0, False) or copy not in (1, True):
            raise TypeError
        self.dtype = plain_dtype(code)
        self._whole = False
        self._depth = 0
        self._parts = 1

    def set_state(self, state: object) -> None:
        """Take byte order, fields, time unit or inner shape; metadata are left out.

        Raises:
            ValueError: The state is not one of this type.
        """
        if type(state) is not tuple or (state[:1], len(state)) not in (((3,), 8), ((4,), 9)):
            raise ValueError("the state of an item type is of another version than 3 or 4")
        if self._whole:
            raise ValueError("it sets the state of an item type twice")
        _, order, inner, names, fields, size, _, flags, *metadata = state
        if order not in ("<", ">", "=", "|", b"<", b">", b"=", b"|"):
            raise ValueError("the byte order of an item type is none")
        if names is not None:
            dtype = self._record(names, fields, size, flags)
        elif inner is not None:
            dtype = self._inner(inner)
        else:
            dtype = self._simple(numpy_text(order).decode(), metadata)
        if size not in (-1, dtype.itemsize) or self.dtype.itemsize != dtype.itemsize:
            raise ValueError(f"the item type {dtype} is said to have another size")
        self.dtype, self._whole = dtype, True

    def _simple(self, order: str, metadata: list[Any]) -> np.dtype[Any]:
        dtype = self.dtype
        if metadata and dtype.kind in "mM":
            dtype = np.dtype(f"{dtype.kind}8{_unit(metadata[0])}")
        ordered: np.dtype[Any] = dtype.newbyteorder("=" if order == "|" else cast("Any", order))
        return ordered

    def _inner(self, inner: object) -> np.dtype[Any]:
        if type(inner) is not tuple or len(inner) != 2:
            raise ValueError("an item type has an inner shape that is none")
        return np.dtype((self._parts_of([inner[0]])[0], check_shape(inner[1])))

    def _record(self, names: object, fields: object, size: object, flags: object) -> np.dtype[Any]:
        if type(names) is not tuple or type(fields) is not dict:
            raise ValueError("a record has no names or no fields")
        if not all(type(name) is str for name in names) or set(names) != set(fields):
            raise ValueError("the fields of a record are not those it names")
        if type(size) is not int or type(flags) is not int:
            raise ValueError("a record has a size that is no number")
        pairs = [_field(fields[name], size) for name in names]
        layout = {
            "names": list(names),
            "formats": self._parts_of([kind for kind, _ in pairs]),
            "offsets": [offset for _, offset in pairs],
            "itemsize": size,
        }
        record: np.dtype[Any] = np.dtype(cast("Any", layout), align=bool(flags & _ALIGNED))
        return record

    def _parts_of(self, kinds: list[Any]) -> list[np.dtype[Any]]:
        """Return the types inside this one; raises `ValueError` where they are too many."""
        if not all(type(kind) is ItemType and not kind.dtype.hasobject for kind in kinds):
            raise ValueError("a record has a field that is neither number, text, time nor bytes")
        self._depth = 1 + max((kind._depth for kind in kinds), default=0)
        self._parts = 1 + sum(kind._parts for kind in kinds)
        if self._depth > _DEPTH or self._parts > _PARTS:
            raise ValueError(f"a record has more than {_PARTS} fields, or {_DEPTH} levels of them")
        return [kind.dtype for kind in kinds]


def numpy_text(content: object) -> bytes:
    """Return raw bytes, which Python 2 wrote as a string.

    Raises:
        ValueError: It is neither, or text beyond the first 256 characters.
    """
    if type(content) is str:
        return content.encode("latin-1")
    if type(content) is not bytes:
        raise ValueError("what should be the raw bytes of numpy values is something else")
    return content


def _field(field: object, size: int) -> tuple[ItemType, int]:
    if type(field) is not tuple or len(field) != 2 or type(field[0]) is not ItemType:
        raise ValueError("a field of a record is not an item type and an offset")
    kind, offset = field
    if type(offset) is not int or not 0 <= offset <= size - kind.dtype.itemsize:
        raise ValueError("a field of a record lies outside of it")
    return kind, offset


def _unit(metadata: object) -> str:
    """Return `[25s]` for the time unit in the last part of a state."""
    if type(metadata) is not tuple or len(metadata) != 2 or type(metadata[1]) is not tuple:
        raise ValueError("a time has no unit")
    name, count, divisor, _ = metadata[1]
    unit = numpy_text(name).decode("latin-1")
    if (
        not _UNITS.fullmatch(unit)
        or type(count) is not int
        or not 0 < count < 1 << 31
        or divisor != 1
    ):
        raise ValueError("a time has a unit that numpy does not know")
    return "" if unit == "generic" else f"[{count}{unit}]"
