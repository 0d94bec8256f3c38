"""Give every leaf of a table its place: packed side by side, or in a file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import Key, join_key
from offline_data.errors import FormatError
from offline_data.store.layout import BIG_LEAF, ROWS, SUFFIX, WORD, LeafSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np


@dataclass(frozen=True)
class Column:
    """What a leaf is, before it is given a place."""

    key: Key
    dtype: np.dtype[Any]
    """Item type on disk (for text: of the codes)."""
    shape: tuple[int, ...]
    text: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * prod(self.shape)


_FIRST_READ = ("episode", "observation", "action", "next", "state", "info")


def _rank(column: Column) -> tuple[int, int]:
    """Order of leaves in a packed row: what every algorithm reads first, flags after numbers."""
    head = column.key[1] if column.key[0] == "next" and len(column.key) > 2 else column.key[0]
    place = _FIRST_READ.index(head) if head in _FIRST_READ else _FIRST_READ.index("state")
    return place, -column.dtype.itemsize


def pack(table: str, columns: Iterable[Column], *, packed: bool = True) -> TableSpec:
    """Give every column of a table its place.

    Small leaves lie side by side in `<table>/rows.memmap`, each at a multiple of its item size,
    the row padded to a multiple of 8 bytes; a leaf of `BIG_LEAF` bytes or more, or every leaf
    where `packed` is false, has a file of its own.

    Raises:
        FormatError: A large leaf has the name of the file of the small ones.

    Example:
        >>> import numpy as np
        >>> spec = pack("steps", [Column(("action",), np.dtype("float32"), (3,))])
        >>> spec.leaves[0].file, spec.leaves[0].stride
        ('steps/rows.memmap', 16)
    """
    ordered = sorted(columns, key=_rank)
    small = [column for column in ordered if packed and column.nbytes < BIG_LEAF]
    if packed and any(one.key == (ROWS,) and one not in small for one in ordered):
        raise FormatError(
            f"A large leaf of {table} cannot be called {ROWS!r}: a file has that name"
        )
    offsets, width = _offsets(small)
    leaves = [
        _leaf(column, f"{table}/{ROWS}{SUFFIX}", offset, width)
        for column, offset in zip(small, offsets, strict=True)
    ]
    leaves += [
        _leaf(column, f"{table}/{join_key(column.key)}{SUFFIX}", 0, column.nbytes)
        for column in ordered
        if column not in small
    ]
    return TableSpec(0, tuple(leaves))


def _offsets(columns: list[Column]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for column in columns:
        begin = -(-end // column.dtype.itemsize) * column.dtype.itemsize
        offsets.append(begin)
        end = begin + column.nbytes
    return offsets, -(-end // WORD) * WORD


def _leaf(column: Column, file: str, offset: int, stride: int) -> LeafSpec:
    return LeafSpec(
        column.key, column.dtype.name, column.shape, file, offset, stride, text=column.text
    )
