"""Every name and number in a dataset directory, as `cache_layout.md` documents them for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_data.episodes.fields import Key

FORMAT_VERSION = 2
"""Newest directory format that is read; 2 is written if a leaf is encoded, else 1."""

MANIFEST = "manifest.json"
TEXT = "text.json"
META = "meta.json"
ROWS = "rows"
SUFFIX = ".memmap"
BYTES = ".bytes"
OFFSETS = ".offsets"

STEPS = "steps"
OBSERVATIONS = "observations"
EPISODES = "episodes"
TED = "ted"

LayoutName: TypeAlias = Literal["compact", "ted"]
LAYOUTS: tuple[LayoutName, ...] = ("compact", "ted")

AuditMode: TypeAlias = "float | Literal['auto', 'all', 'none']"
"""Rows that are compared with the source: a fraction in `(0, 1]`, all of them, or none. `auto`: all
of the first `AUDITED_WHOLE` bytes, and the share `AUDITED_SHARE` of what is above."""

DEFAULT_AUDIT: AuditMode = "auto"
AUDITED_WHOLE, AUDITED_SHARE = 1 << 30, 0.01


def parse_audit(text: str) -> AuditMode:
    """Read `auto`, `all`, `none` or a fraction.

    Example:
        >>> parse_audit("0.05"), parse_audit("all")
        (0.05, 'all')
    """
    if text in {"auto", "all", "none"}:
        return cast("AuditMode", text)
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise UsageError(f"Audit is {text!r}; expected auto, all, none or a fraction in (0, 1]")
    return fraction


WORD = 8
"""Packed rows are padded to whole words of this many bytes, so that a row is gathered as int64."""
BIG_LEAF = 4096
"""A leaf of at least this many bytes a row gets a file of its own beside the packed rows."""

DTYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Dtypes that a leaf can have, as numpy and torch name them, with their bytes."""

TEXT_DTYPE = "int32"
"""Dtype of the codes of a text leaf; -1 stands for a missing value."""

EPISODE = ("episode",)
"""Step leaf: number of the episode that the row belongs to, int64."""

ROOT_FLAGS = (("done",), ("terminated",), ("truncated",))
"""Root flags of TED, False in every row; only `ted` stores them."""

CHANNELS = {("jpeg", "uint8"): (1, 3), ("png", "uint8"): (1, 3, 4), ("png", "uint16"): (1,)}
MAX_SIDE, MAX_PIXELS = 65_500, 1 << 26
"""Limits of an encoded image: that of libjpeg, and 200 MB when decoded."""


def fits_encoding(encoding: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Return True if rows of this type and shape, `[H, W]` or `[H, W, C]`, can be such images.

    Example:
        >>> fits_encoding("png", "uint16", (48, 64)), fits_encoding("jpeg", "uint8", (3, 48, 64))
        (True, False)
    """
    channels = shape[2:] or (1,)
    return (
        2 <= len(shape) <= 3
        and channels[0] in CHANNELS.get((encoding, dtype), ())
        and 1 <= min(shape[:2]) <= max(shape[:2]) <= MAX_SIDE
        and prod(shape[:2]) <= MAX_PIXELS
    )


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
    stride: int
    text: bool = False
    """Whether the values are codes into this leaf's vocabulary in `text.json`."""
    encoding: str | None = None
    """`jpeg` or `png` if rows are such images, end to end in `file`; `dtype` and `shape` are those
    of decoded ones, `offset` and `stride` are 0."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row of this leaf, decoded."""
        return DTYPES[self.dtype] * prod(self.shape)

    @property
    def offsets(self) -> str:
        """File of an encoded leaf that says where its rows begin: int64 `[rows + 1]`."""
        return self.file.removesuffix(BYTES) + OFFSETS

    def to_json(self) -> dict[str, Any]:
        """Return the form the manifest stores."""
        fields = {**vars(self), "key": list(self.key), "shape": list(self.shape)}
        return {name: value for name, value in fields.items() if name != "encoding" or value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LeafSpec:
        """Read the form the manifest stores."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        return cls(**{**known, "key": tuple(value["key"]), "shape": tuple(value["shape"])})


@dataclass(frozen=True)
class TableSpec:
    """One table: rows that belong together, as packed records and big leaves."""

    rows: int
    leaves: tuple[LeafSpec, ...]
    """In the order in which they lie in a packed row, big ones last."""

    def __getitem__(self, key: Key) -> LeafSpec:
        """Return the leaf called `key`; raises `KeyError`."""
        for leaf in self.leaves:
            if leaf.key == key:
                return leaf
        raise KeyError(key)

    @property
    def by_key(self) -> dict[Key, LeafSpec]:
        """All leaves by key."""
        return {leaf.key: leaf for leaf in self.leaves}

    @property
    def files(self) -> dict[str, int]:
        """Bytes of every file of the table whose size follows from its rows."""
        sizes = {leaf.file: leaf.stride * self.rows for leaf in self.leaves if not leaf.encoding}
        return sizes | {leaf.offsets: 8 * (self.rows + 1) for leaf in self.leaves if leaf.encoding}

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


def leaves_by_file(leaves: Mapping[Key, LeafSpec]) -> list[dict[Key, LeafSpec]]:
    """Group leaves that share a file, ordered by file, so that its rows are read once for all."""
    ordered = sorted(leaves.items(), key=lambda item: item[1].file)
    return [dict(group) for _, group in groupby(ordered, key=lambda item: item[1].file)]
