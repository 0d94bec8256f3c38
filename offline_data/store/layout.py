"""Every name and number in a dataset directory, as `cache_layout.md` documents them for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Annotated, Any, Literal, TypeAlias, cast

from offline_data.base.decode import Check, Count
from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import Key

FORMAT_VERSION = 3
"""Newest directory format read; 3 is written if a feature is a video, 2 if encoded, else 1."""

MANIFEST = "manifest.json"
TEXT = "text.json"
META = "meta.json"
ROWS = "rows"
SUFFIX = ".memmap"
BYTES = ".bytes"
OFFSETS = ".offsets"
FRAMES = ".frames"
VIEWS = ".views"  # folder next to a dataset, for what people keep about it
VIDEO = "video"  # encoding of a feature of frames of mp4 files

STEPS = "steps"
OBSERVATIONS = "observations"
EPISODES = "episodes"
TED = "ted"

LayoutName: TypeAlias = Literal["compact", "ted"]
LAYOUTS: tuple[LayoutName, ...] = ("compact", "ted")

AuditMode: TypeAlias = "float | Literal['auto', 'all', 'none']"
"""Rows that are compared with the source: a fraction in `(0, 1]`, all of them, or none. `auto`: all
where bits can be compared, else those of the first `AUDITED_WHOLE` bytes, and the share
`AUDITED_SHARE` of what is above."""

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
"""A feature of at least this many bytes a row gets a file of its own next to the packed rows."""

DTYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Dtypes that a feature can have, as numpy and torch name them, with their bytes."""

MAX_KEY_PARTS = 64  # parts of a nested key, each of which is a level of a batch's TensorDict


_is_part = re.compile(r"(?!\.{1,2}\Z)[^/\\\0\n]+").fullmatch
"""Return a match if a name can be a file on every operating system, except for its length."""


@lru_cache(maxsize=4096)
def _is_key(parts: tuple[str, ...]) -> bool:
    return 0 < len(parts) <= MAX_KEY_PARTS and all(map(_is_part, parts))


@lru_cache(maxsize=4096)
def _is_inside(name: str) -> bool:
    parts = name.split("/")
    short = len(name) < 64 or all(len(part.encode()) < 256 for part in parts)
    return short and all(map(_is_part, parts))


FileKey: TypeAlias = Annotated[tuple[str, ...], Check("a list of names", _is_key)]
Inside: TypeAlias = Annotated[str, Check("a path inside the directory", _is_inside)]
Dtype: TypeAlias = Annotated[str, Check(f"one of {', '.join(DTYPES)}", DTYPES.__contains__)]

TEXT_DTYPE = "int32"  # dtype of the codes of a text feature; -1 stands for a missing value

EPISODE = ("episode",)  # step feature: number of the episode that the row belongs to, int64

ROOT_FLAGS = (("done",), ("terminated",), ("truncated",))
"""Root flags of TED, False in every row; only `ted` stores them."""

CHANNELS = {
    ("jpeg", "uint8"): (1, 3), ("png", "uint8"): (1, 3, 4), ("png", "uint16"): (1,),
    (VIDEO, "uint8"): (3,), (VIDEO, "uint16"): (1,),
}  # fmt: skip
FRAME_BYTES = 8
"""Bytes of a row of a feature of videos: int32 numbers of the video and of its frame."""
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


@pickled_by_name
@dataclass(frozen=True)
class LeafSpec:
    """Place of one feature: row `i` begins at byte `offset + i * stride` of `file`."""

    key: FileKey
    """Nested key; in `observations` the root key, which `next` has as well."""
    dtype: Dtype
    """numpy name of the little-endian item type."""
    shape: tuple[Count, ...]
    """Shape of one row."""
    file: Inside
    """Relative posix path inside the dataset directory."""
    offset: Count
    stride: Count
    text: bool = False
    """Whether the values are codes into this feature's vocabulary in `text.json`."""
    encoding: str | None = None
    """`jpeg` or `png` if rows are such images, end to end in `file`; `video` if `file` has the video
    and frame of each row. `dtype` and `shape` are those of decoded ones, `offset` and `stride` 0."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row of this feature, decoded."""
        return DTYPES[self.dtype] * prod(self.shape)

    @property
    def offsets(self) -> str:
        """File of an encoded feature that says where its rows begin: int64 `[rows + 1]`."""
        return self.file.removesuffix(BYTES) + OFFSETS

    def to_json(self) -> dict[str, Any]:
        """Return the form the manifest stores."""
        fields = {**vars(self), "key": list(self.key), "shape": list(self.shape)}
        return {name: value for name, value in fields.items() if name != "encoding" or value}


@pickled_by_name
@dataclass(frozen=True)
class TableSpec:
    """One table: rows that belong together, as packed records and big features."""

    rows: Count
    leaves: tuple[LeafSpec, ...]
    """In the order in which they lie in a packed row, big ones last."""

    def __getitem__(self, key: Key) -> LeafSpec:
        for leaf in self.leaves:
            if leaf.key == key:
                return leaf
        raise KeyError(key)

    @property
    def by_key(self) -> dict[Key, LeafSpec]:
        """All features by key."""
        return {leaf.key: leaf for leaf in self.leaves}

    @property
    def files(self) -> dict[str, int]:
        """Bytes of every file of the table whose size follows from its rows."""
        sizes = {}
        for leaf in self.leaves:
            if leaf.encoding == VIDEO:
                sizes[leaf.file] = FRAME_BYTES * self.rows
            elif leaf.encoding:
                sizes[leaf.offsets] = 8 * (self.rows + 1)
            else:
                sizes[leaf.file] = leaf.stride * self.rows
        return sizes

    def with_rows(self, rows: int) -> TableSpec:
        """Return the same table with another number of rows."""
        return replace(self, rows=rows)

    def to_json(self) -> dict[str, Any]:
        """Return the form the manifest stores."""
        return {"rows": self.rows, "leaves": [leaf.to_json() for leaf in self.leaves]}


def with_counts(
    tables: Mapping[str, TableSpec], transitions: int, episodes: int
) -> dict[str, TableSpec]:
    """Return tables of steps and observations with the rows of that many steps and episodes."""
    rows = {OBSERVATIONS: transitions + episodes}
    return {name: table.with_rows(rows.get(name, transitions)) for name, table in tables.items()}


def file_sizes(tables: Mapping[str, TableSpec]) -> dict[str, int]:
    """Return the bytes of every file of some tables whose size follows from their rows."""
    return {name: size for table in tables.values() for name, size in table.files.items()}


def video_name(leaf: LeafSpec, number: int, *, times: bool = False) -> str:
    """Return the name of a video of a feature, or of the times of its frames."""
    stem = leaf.file.removesuffix(FRAMES)
    return f"{stem}.{VIDEO}/{number:06d}.{'times' if times else 'mp4'}"


def leaves_by_file(leaves: Mapping[Key, LeafSpec]) -> list[dict[Key, LeafSpec]]:
    """Group features that share a file, ordered by file, so that its rows are read once for all."""
    ordered = sorted(leaves.items(), key=lambda item: item[1].file)
    return [dict(group) for _, group in groupby(ordered, key=lambda item: item[1].file)]
