"""Every name and number in a dataset directory: files, tables, and where each leaf lies.

`cache_layout.md` documents the same for people; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_data.episodes.fields import Key

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

DTYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Item types that a leaf can have, as numpy and torch name them, with their bytes."""

TEXT_DTYPE = "int32"
"""Item type of codes of a text leaf; -1 stands for "the source has nothing here"."""

EPISODE = ("episode",)
"""Step leaf: number of the episode that the row belongs to, int64."""

ROOT_FLAGS = (("done",), ("terminated",), ("truncated",))
"""Root flags of TED, False in every row; only `ted` stores them."""


@dataclass(frozen=True)
class LeafSpec:
    """Place of one leaf: row `i` begins at byte `offset + i * stride` of `file`."""

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
        return DTYPES[self.dtype] * prod(self.shape)

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
