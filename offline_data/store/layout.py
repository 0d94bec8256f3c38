"""Every name and number in a dataset directory: files, tables, and where each leaf lies.

`cache_layout.md` documents the same for people; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from offline_data.episodes.fields import Key, join_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT_VERSION = 1
"""Version of the directory format that this package writes, and the newest it reads."""

MANIFEST = "manifest.json"
TEXT = "text.json"
META = "meta.json"
ROWS = "rows"
SUFFIX = ".memmap"

STEPS = "steps"
OBSERVATIONS = "observations"
EPISODES = "episodes"
TED = "ted"

LayoutName: TypeAlias = Literal["compact", "ted"]
LAYOUTS: tuple[LayoutName, ...] = ("compact", "ted")

WORD = 8
"""Packed rows are padded to whole words of this many bytes, so that a row is gathered as int64."""
BIG_LEAF = 4096
"""A leaf of at least this many bytes a row gets a file of its own beside the packed rows."""

TEXT_DTYPE = np.dtype("int32")
"""Codes of a text leaf; -1 stands for "the source has nothing here"."""

EPISODE = ("episode",)
"""Step leaf: number of the episode that the row belongs to, int64."""


@dataclass(frozen=True)
class LeafSpec:
    """Where one leaf lies: row `i` begins at byte `offset + i * stride` of `file`."""

    key: Key
    """Nested key; in `observations` the root key, which `next` has as well."""
    dtype: str
    """numpy name of the little-endian item type."""
    shape: tuple[int, ...]
    """Shape of one row."""
    file: str
    """Relative posix path inside the dataset directory."""
    offset: int
    """Bytes from the beginning of a row of `file`."""
    stride: int
    """Bytes between rows of `file`."""
    text: bool = False
    """Whether the values are codes into this leaf's vocabulary in `text.json`."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row of this leaf."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """Return the form the manifest stores."""
        return {**vars(self), "key": list(self.key), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LeafSpec:
        """Read the form the manifest stores."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        return cls(**{**known, "key": tuple(value["key"]), "shape": tuple(value["shape"])})


@dataclass(frozen=True)
class TableSpec:
    """One table: rows that belong together, as packed records and big leaves."""

    rows: int
    """Number of rows."""
    leaves: tuple[LeafSpec, ...]
    """All leaves, in the order in which they lie in a packed row, big ones last."""

    def __getitem__(self, key: Key) -> LeafSpec:
        """Return the leaf called `key`; raises `KeyError`."""
        for leaf in self.leaves:
            if leaf.key == key:
                return leaf
        raise KeyError(key)

    @property
    def files(self) -> dict[str, int]:
        """Every file of the table with its size in bytes."""
        return {leaf.file: leaf.stride * self.rows for leaf in self.leaves}

    def with_rows(self, rows: int) -> TableSpec:
        """Return the same table with another number of rows."""
        return replace(self, rows=rows)

    def to_json(self) -> dict[str, Any]:
        """Return the form the manifest stores."""
        return {"rows": self.rows, "leaves": [leaf.to_json() for leaf in self.leaves]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableSpec:
        """Read the form the manifest stores."""
        return cls(value["rows"], tuple(LeafSpec.from_json(leaf) for leaf in value["leaves"]))


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
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64))


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

    Example:
        >>> spec = pack("steps", [Column(("action",), np.dtype("float32"), (3,))])
        >>> spec.leaves[0].file, spec.leaves[0].stride
        ('steps/rows.memmap', 16)
    """
    ordered = sorted(columns, key=_rank)
    small = [column for column in ordered if packed and column.nbytes < BIG_LEAF]
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
