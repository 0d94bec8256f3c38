"""Recognising HDF5 datasets with equal object headers by comparing bytes.

The object header contains dtype, shape, filters and storage of a dataset. Asking HDF5 for each takes
longer than reading a leaf of a short episode, and the leaves of all episodes have the same header,
except for the parts that are not compared here:

```
message              compared                      not compared
dataspace            version, rank, flags          lengths of the axes
datatype             all
fill value           all
layout               version, class, item size     where the values or the index of the chunks lie,
                                                   the shape of a chunk, the bytes of values without chunks
modification time                                  all
nothing              its size                      its content
```

Headers with any other message, or of version 2, are never recognised. Source: HDF5 File Format
Specification 3.0, IV.A.1.a and IV.A.2, https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import os
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self

_PREFIX = 16
_LARGEST = 4096
_NOTHING, _DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _TIME = 0, 1, 3, 5, 8, 0x12
_SHARED = 0b10
_CONTIGUOUS, _CHUNKED = 1, 2

_Span: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class _Template:
    """The header of a dataset, and which of its bytes others of its kind have, too."""

    mask: int
    """Ones where bytes are compared; the first byte is the lowest."""
    fixed: int
    """The bytes that are compared."""
    size: int
    """Bytes of the header."""
    begin: int
    """Offset of the lengths of the axes."""
    axes: struct.Struct
    """Their format."""


class KnownHeaders:
    """Headers of datasets in one file that is open in HDF5; a context manager.

    Args:
        path: The file.
        file: The low-level file, for the sizes of its numbers.
    """

    def __init__(self, path: Path, file: Any) -> None:
        plan = file.get_create_plist()
        self._usual = plan.get_userblock() == 0 and tuple(plan.get_sizes()) == (8, 8)
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._known: dict[Hashable, _Template] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def shape_of(self, key: Hashable, address: int) -> tuple[int, ...] | None:
        """Return the shape of a dataset that differs from the one added as `key` in nothing else.

        None for all others. `address` is that of its object header.
        """
        known = self._known.get(key)
        if known is None:
            return None
        raw = os.pread(self._file, known.size, address)
        if len(raw) < known.size or int.from_bytes(raw, "little") & known.mask != known.fixed:
            return None
        return known.axes.unpack_from(raw, known.begin)

    def add(self, key: Hashable, address: int) -> None:
        """Remember the header of a dataset, if it is of a kind that can be recognised."""
        template = _template(os.pread(self._file, _LARGEST, address)) if self._usual else None
        if template is not None:
            self._known[key] = template


def _template(raw: bytes) -> _Template | None:
    """Return the compared bytes of a header that begins with `raw`; None if it is not simple."""
    if len(raw) < _PREFIX or raw[0] != 1:
        return None
    count, size = struct.unpack_from("<2xH4xI", raw)
    end, place, compared = _PREFIX + size, _PREFIX, [(0, _PREFIX)]
    axes: _Span | None = None
    layout = False
    for _ in range(count):
        if place + 8 > min(end, len(raw)):
            return None
        kind, length, flags = struct.unpack_from("<HHB", raw, place)
        compared.append((place, place + 8))
        place += 8
        data = raw[place : place + length]
        if flags & _SHARED or place + length > min(end, len(raw)):
            return None
        if kind == _DATASPACE and axes is None and data[:1] in {b"\1", b"\2"}:
            begin = place + (8 if data[0] == 1 else 4)
            axes = begin, begin + 8 * data[1]
            compared.append((place, begin))
            if axes[1] > place + length:
                return None
        elif kind == _LAYOUT and not layout and data[:1] == b"\3":
            layout = True
            if data[1] == _CHUNKED:
                item = place + 11 + 4 * (data[2] - 1)
                compared += [(place, place + 3), (item, item + 4)]
            elif data[1] == _CONTIGUOUS:
                compared.append((place, place + 2))
            else:
                return None
        elif kind in {_DATATYPE, _FILL_VALUE}:
            compared.append((place, place + length))
        elif kind not in {_NOTHING, _TIME}:
            return None
        place += length
    if axes is None or not layout or place > end:
        return None
    mask = bytearray(end)
    for begin, stop in compared:
        mask[begin:stop] = b"\xff" * (stop - begin)
    bits = int.from_bytes(mask, "little")
    lengths = struct.Struct(f"<{(axes[1] - axes[0]) // 8}Q")
    return _Template(bits, int.from_bytes(raw[:end], "little") & bits, end, axes[0], lengths)
