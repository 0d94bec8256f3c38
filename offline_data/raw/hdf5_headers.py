"""Recognising HDF5 datasets with equal object headers by comparing bytes, and reading small ones.

The object header contains dtype, shape, filters and storage of a dataset. Asking HDF5 for each takes
longer than reading a leaf of a short episode, and the leaves of all episodes have the same header,
except for the parts that are not compared here:

```
message              compared                      not compared
dataspace            version, rank, flags          lengths of the axes, largest length of the first
datatype             all
fill value           all
layout               version, class, item size     where the values or the index of the chunks lie,
                                                   the shape of a chunk, the bytes of values without chunks
modification time                                  all
nothing              its size                      its content
```

Headers with any other message, or of version 2, are never recognised. A dataset that is contiguous, or
whose chunks one node of a B-tree lists, is read from there. Source: HDF5 File Format Specification
3.0, III.A.1, IV.A.1.a and IV.A.2, https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

_PREFIX = 16
_LARGEST = 4096
_NOTHING, _DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _TIME = 0, 1, 3, 5, 8, 0x12
_SHARED = 0b10
_HAS_LARGEST = 0b1
_CONTIGUOUS, _CHUNKED = 1, 2
_NODE = struct.Struct("<4sBBHQQ")  # a B-tree's node: signature, type, level, entries, siblings
_UNDEFINED = 2**64 - 1
_CHUNKS = 64  # of one node of a B-tree, unless a file says otherwise
_SMALL = 1 << 18  # largest dataset in bytes read here; with larger ones HDF5 is as fast

_Span: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class _Template:
    """The header of a dataset, and which of its bytes others of its kind have, too."""

    mask: int  # ones where bytes are compared; the first byte is the lowest
    fixed: int  # the bytes that are compared
    size: int  # bytes of the header
    begin: int  # offset of the lengths of the axes
    axes: struct.Struct  # their format
    layout: int  # offset of the class of the layout


@dataclass(frozen=True)
class _KnownDataset:
    """A dataset whose header was recognised."""

    raw: bytes
    template: _Template

    @property
    def shape(self) -> tuple[int, ...]:
        return self.template.axes.unpack_from(self.raw, self.template.begin)


class KnownHeaders:
    """Headers of datasets in a file, open in HDF5 as `file` (low-level); a context manager."""

    def __init__(self, path: Path, file: Any) -> None:
        plan = file.get_create_plist()
        self._usual = plan.get_userblock() == 0 and tuple(plan.get_sizes()) == (8, 8)
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._known: dict[Hashable, _Template] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def find(self, key: Hashable, address: int) -> _KnownDataset | None:
        """Return the header at `address` if only its shape differs from `key`'s, else None."""
        known = self._known.get(key)
        if known is None:
            return None
        raw = os.pread(self._file, known.size, address)
        if len(raw) < known.size or int.from_bytes(raw, "little") & known.mask != known.fixed:
            return None
        return _KnownDataset(raw, known)

    def read(self, header: _KnownDataset, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Read a whole dataset of `dtype`; None: not small, in many chunks, or damaged."""
        shape, raw, layout = header.shape, header.raw, header.template.layout
        size = math.prod(shape) * dtype.itemsize
        if not 0 < size <= _SMALL:
            return None
        if raw[layout] == _CONTIGUOUS:
            address, stored = struct.unpack_from("<QQ", raw, layout + 1)
            address = address if stored == size else _UNDEFINED
        else:
            chunk = struct.unpack_from(f"<{len(shape)}I", raw, layout + 10)
            (tree,) = struct.unpack_from("<Q", raw, layout + 2)
            addresses = self._chunks(tree, shape, chunk, dtype.itemsize)
            if len(addresses) > 1 or chunk[1:] != shape[1:]:
                return self._joined(addresses, shape, chunk, dtype)
            (address,) = addresses
        if address >= 2**63:
            return None
        values = os.pread(self._file, size, address)
        if len(values) < size:
            return None
        return np.frombuffer(bytearray(values), dtype).reshape(shape)

    def _chunks(
        self, tree: int, shape: tuple[int, ...], chunk: tuple[int, ...], item: int
    ) -> list[int]:
        """Return the addresses of all chunks; `[_UNDEFINED]` unless one B-tree node lists them."""
        # All must be there, without filters skipped, in the order of their places, as HDF5 writes
        # them.
        size = math.prod(chunk) * item
        count = math.prod(-(-n // max(1, c)) for n, c in zip(shape, chunk, strict=True))
        if not size or count > _CHUNKS or count * size > 2 * _SMALL or tree >= 2**63:
            return [_UNDEFINED]
        key = struct.Struct(f"<II{len(chunk) + 1}QQ")
        raw = os.pread(self._file, _NODE.size + count * key.size, tree)
        node = b"TREE", 1, 0, count, _UNDEFINED, _UNDEFINED
        if len(raw) < _NODE.size + count * key.size or _NODE.unpack_from(raw) != node:
            return [_UNDEFINED]
        entries = list(key.iter_unpack(raw[_NODE.size :]))
        places = [(size, 0, *corner, 0) for corner in _corners(shape, chunk)]
        return [e[-1] for e in entries] if [e[:-1] for e in entries] == places else [_UNDEFINED]

    def _joined(
        self,
        addresses: list[int],
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> NDArray[Any] | None:
        """Read chunks at these addresses into their places; None if one is not in the file."""
        values, size = np.empty(shape, dtype), math.prod(chunk) * dtype.itemsize
        if max(addresses) >= 2**63:
            return None
        for corner, address in zip(_corners(shape, chunk), addresses, strict=True):
            raw = os.pread(self._file, size, address)
            if len(raw) < size:
                return None
            place = values[tuple(map(slice, corner, map(operator.add, corner, chunk)))]
            place[...] = np.frombuffer(raw, dtype).reshape(chunk)[tuple(map(slice, place.shape))]
        return values

    def add(self, key: Hashable, address: int) -> None:
        """Remember the header of a dataset, if it is of a kind that can be recognised."""
        template = _template(os.pread(self._file, _LARGEST, address)) if self._usual else None
        if template is not None:
            self._known[key] = template


@lru_cache(maxsize=4096)
def _corners(shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the first element of each chunk, in order."""
    return list(itertools.product(*(range(0, n, c) for n, c in zip(shape, chunk, strict=True))))


def _template(raw: bytes) -> _Template | None:
    """Return the compared bytes of a header that begins with `raw`; None if it is not simple."""
    if len(raw) < _PREFIX or raw[0] != 1:
        return None
    count, size = struct.unpack_from("<2xH4xI", raw)
    end, place, compared = _PREFIX + size, _PREFIX, [(0, _PREFIX)]
    axes: _Span | None = None
    layout = 0
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
            if (
                data[2] & _HAS_LARGEST
            ):  # lengths that the axes may grow to; all but the first are fixed
                compared.append((axes[1] + 8, axes[1] + 8 * data[1]))
            if axes[1] > place + length:
                return None
        elif kind == _LAYOUT and not layout and data[:1] == b"\3":
            layout = place + 1
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
    fixed = int.from_bytes(raw[:end], "little") & bits
    return _Template(bits, fixed, end, axes[0], lengths, layout)
