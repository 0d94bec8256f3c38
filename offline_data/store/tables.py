"""Writing batches as tables: the columns of a dataset, the place of each feature, and the rows."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.exact import exact
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.store.encoded import EncodedWriter, PixelColumn
from offline_data.store.layout import (
    BIG_LEAF,
    BYTES,
    DTYPES,
    EPISODE,
    FRAMES,
    META,
    OBSERVATIONS,
    ROOT_FLAGS,
    ROWS,
    STEPS,
    SUFFIX,
    TED,
    TEXT_DTYPE,
    VIDEO,
    WORD,
    LayoutName,
    LeafSpec,
    TableSpec,
)
from offline_data.store.video import VideoWriter

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

    Rows = Callable[[slice], NDArray[Any]]
    """Returns the values of a column for a slice of a batch's rows in the table."""

CHUNK = 4 << 20  # bytes of packed rows that are built at once

STORABLE = frozenset(map(np.dtype, DTYPES))  # dtypes that a feature can have

_PACKING_ORDER = ("episode", "observation", "action", "next", "state", "info")
_TENSORDICT = "<class 'tensordict._td.TensorDict'>"


@dataclass(frozen=True)
class Column:
    """Key, dtype and shape of a feature, before it has a place in a file."""

    key: Key
    dtype: np.dtype[Any]  # dtype on disk (for text: of the codes)
    shape: tuple[int, ...]  # shape of one row
    text: bool = False
    encoding: str | None = None
    row_bytes: float = field(default=0, compare=False)  # mean bytes of an encoded row, if known

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * prod(self.shape)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key in a packed row: what all algorithms read first, wide items before flags."""
        root = self.key[1] if self.key[0] == "next" and len(self.key) > 2 else self.key[0]
        place = root if root in _PACKING_ORDER else "state"
        return _PACKING_ORDER.index(place), -self.dtype.itemsize


@dataclass(frozen=True)
class Schema:
    """The columns of a dataset, by table."""

    steps: Mapping[Key, Column]
    observations: Mapping[Key, Column]
    episodes: Mapping[Key, Column]
    coded: bool = False  # whether text is given as codes with known vocabularies, not as `str`

    @property
    def two_copies(self) -> tuple[Key, ...]:
        """Root step features with a stored `next`; see `Manifest.two_copies`."""
        return tuple(key for key in self.steps if key[0] != "next" and next_of(key) in self.steps)

    @property
    def has_encoded(self) -> bool:
        """Whether a feature is encoded, so that the length of its file is not known in advance."""
        return any(c.encoding for c in (*self.steps.values(), *self.observations.values()))

    def encoded_bytes(self, steps: int, observations: int) -> int:
        """Estimate the bytes of encoded images for these numbers of rows."""
        tables = ((self.steps, steps), (self.observations, observations))
        return int(sum(c.row_bytes * rows for table, rows in tables for c in table.values()))

    def conform(self, batch: EpisodeBatch, first_episode: int) -> None:
        """Raise `FormatError`, which names the episodes, unless all columns conform to this schema."""
        where = f"episodes {first_episode} to {first_episode + len(batch.lengths) - 1}"
        for what, columns, found in (
            ("step", self.steps, batch.steps),
            ("observation", self.observations, batch.observations),
            ("episode", self.episodes, batch.episodes),
        ):
            missing, surplus = columns.keys() - found.keys(), found.keys() - columns.keys()
            if missing or surplus:
                names = ", ".join(sorted(join_key(key) for key in missing or surplus))
                verb = "lack" if missing else "have, unlike the first ones,"
                raise FormatError(f"{where} {verb} {what} features {names}")
            for key, values in found.items():
                name = f"{what} feature {join_key(key)!r} of {where}"
                self._conform_column(name, columns[key], values)

    def _conform_column(self, name: str, column: Column, values: NDArray[np.generic]) -> None:
        if values.shape[1:] != column.shape:
            raise FormatError(
                f"{name} has rows of shape {list(values.shape[1:])}, expected {list(column.shape)}"
            )
        if column.encoding and column.encoding != getattr(values, "encoding", None):
            raise FormatError(
                f"{name} is not {column.encoding}, as the first rows are",
                hint="a feature is encoded throughout or not at all: --step decode makes it so",
            )
        codes = self.coded and column.text and values.dtype == column.dtype
        if (values.dtype == object) != column.text and not codes:
            raise FormatError(f"{name} is {values.dtype}, expected {column.dtype}")


def schema_of(batch: EpisodeBatch) -> Schema:
    """Return the schema of a first batch; raises `FormatError` for a dtype that torch lacks."""
    tables = (batch.steps, batch.observations, batch.episodes)
    steps, observations, episodes = (
        {key: _column(key, rows) for key, rows in table.items()} for table in tables
    )
    return Schema(steps, observations, episodes)


def _column(key: Key, values: NDArray[np.generic]) -> Column:
    if values.dtype == object:
        return Column(key, np.dtype(TEXT_DTYPE), values.shape[1:], text=True)
    dtype = values.dtype.newbyteorder("<") if values.dtype.byteorder == ">" else values.dtype
    if dtype not in STORABLE:
        raise FormatError(
            f"Feature {join_key(key)!r} has dtype {values.dtype}, which no tensor has"
        )
    encoding = getattr(values, "encoding", None)
    mean = values.nbytes / max(1, len(values)) if encoding else 0
    return Column(key, np.dtype(dtype), values.shape[1:], encoding=encoding, row_bytes=mean)


def table_specs(layout: LayoutName, schema: Schema) -> dict[str, TableSpec]:
    """Return the tables of steps and observations of a layout, without rows.

    Raises `FormatError` for a feature whose file name is taken, or that may not be encoded, and for
    more files than the process may open.
    """
    episode = Column(EPISODE, np.dtype("int64"), ())
    if layout != TED:
        return {
            STEPS: pack(STEPS, [episode, *schema.steps.values()]),
            OBSERVATIONS: pack(OBSERVATIONS, schema.observations.values()),
        }
    columns = [episode, *schema.steps.values()]
    for column in [*columns, *schema.observations.values()]:
        if column.encoding:
            raise FormatError(
                f"Layout {TED} has plain memory maps, and feature {join_key(column.key)!r} is encoded "
                f"({column.encoding})",
                hint="choose layout compact, or decode the images: "
                "`offline-data preprocess ID --step decode --out NAME`",
            )
    for column in schema.observations.values():
        columns += [column, Column(next_of(column.key), column.dtype, column.shape, column.text)]
    columns += [Column(key, np.dtype(bool), (1,)) for key in (*ROOT_FLAGS, DONE)]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if len(columns) > most // 2 > 0:  # each is open for writing, and mapped to compare it
        raise FormatError(
            f"Layout {TED} has a file for each feature, {len(columns):,} here, and a process may open "
            f"{most:,} files (`ulimit -n`)",
            hint="choose layout compact, which packs small features into one file",
        )
    return {TED: pack(TED, columns, packed=False)}


def pack(table: str, columns: Iterable[Column], *, packed: bool = True) -> TableSpec:
    """Return the place of every column of a table.

    Small features are packed into rows of `<table>/rows.memmap`, each at a multiple of its item
    size, the row padded to a multiple of 8 bytes. A feature of `BIG_LEAF` bytes or more, or every
    feature if not `packed`, has a file of its own; raises `FormatError` for the name `rows`.

    Example:
        >>> spec = pack("steps", [Column(("action",), np.dtype("float32"), (3,))])
        >>> spec.leaves[0].file, spec.leaves[0].stride
        ('steps/rows.memmap', 16)
    """
    small, alone, end = [], [], 0
    for c in sorted(columns, key=lambda column: column.rank):
        of = c.key, c.dtype.name, c.shape
        if packed and c.nbytes < BIG_LEAF and not c.encoding:
            offset = -(-end // c.dtype.itemsize) * c.dtype.itemsize
            small.append(LeafSpec(*of, f"{table}/{ROWS}{SUFFIX}", offset, 0, c.text))
            end = offset + c.nbytes
        elif packed and c.key == (ROWS,):
            raise FormatError(
                f"A large feature of {table} cannot be called {ROWS!r}: a file has that name"
            )
        else:
            suffix, stride = (BYTES, 0) if c.encoding else (SUFFIX, c.nbytes)
            suffix = FRAMES if c.encoding == VIDEO else suffix
            file = f"{table}/{join_key(c.key)}{suffix}"
            alone.append(LeafSpec(*of, file, 0, stride, c.text, c.encoding))
    width = -(-end // WORD) * WORD
    return TableSpec(0, (*(replace(leaf, stride=width) for leaf in small), *alone))


def meta_files(name: str, table: TableSpec) -> dict[str, str]:
    """Return the `meta.json` files of a table's folder and its subfolders: `{path: text}`.

    With them tensordict (0.8 to 0.14) opens the folder as it is, without encoded features: feature
    `a` of a folder is `a.memmap`, and packed rows are whole words.
    """
    folders: dict[str, dict[str, Any]] = {name: {}}
    packed = f"{name}/{ROWS}{SUFFIX}"
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for leaf in table.leaves:
        if leaf.file != packed and not leaf.encoding:
            tensors[leaf.file] = leaf.dtype, leaf.shape
        elif leaf.stride:
            tensors[packed] = "int64", (leaf.stride // WORD,)
    for file, (dtype, shape) in tensors.items():
        parts = file.removesuffix(SUFFIX).split("/")
        for depth in range(1, len(parts) - 1):
            parent, child = "/".join(parts[:depth]), parts[depth]
            folders.setdefault(parent, {})[child] = {"type": "TensorDict"}
        folders.setdefault("/".join(parts[:-1]), {})[parts[-1]] = {
            "device": "cpu",
            "shape": [table.rows, *shape],
            "dtype": f"torch.{dtype}",
            "is_nested": False,
        }
    tail = {"shape": [table.rows], "device": "cpu", "_type": _TENSORDICT}
    return {f"{path}/{META}": json.dumps({**leaves, **tail}) for path, leaves in folders.items()}


class Vocabularies:
    """Vocabularies of text features: words in order of first appearance."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, Key], dict[str | None, int]] = {}

    def know(self, table: str, key: Key, words: Iterable[str]) -> None:
        """Add the vocabulary of a feature whose codes have already been written."""
        self._codes[table, key] = {None: -1, **{word: code for code, word in enumerate(words)}}

    def encode(self, table: str, key: Key, values: NDArray[np.object_]) -> NDArray[np.int32]:
        """Convert an array of texts to codes, None to -1; raises `FormatError` for other values."""
        codes = self._codes.setdefault((table, key), {None: -1})

        def code_of(value: Any) -> int:
            if not isinstance(value, str | None):
                raise FormatError(
                    f"Text feature {join_key(key)!r} has a value of type {type(value).__name__}, "
                    "expected str"
                )
            return codes.setdefault(value, len(codes) - 1)

        return np.fromiter(map(code_of, values.flat), TEXT_DTYPE, values.size).reshape(values.shape)

    def by_table(self) -> dict[str, dict[Key, list[str]]]:
        """Return a copy of all vocabularies so far: `{table: {key: words}}`; a code is an index."""
        tables: dict[str, dict[Key, list[str]]] = {}
        for (table, key), codes in self._codes.items():
            tables.setdefault(table, {})[key] = [word for word in codes if word is not None]
        return tables

    def dump(self) -> str | None:
        """Return all vocabularies as the text of `text.json`, or None if there are none."""
        entries = [
            {"table": table, "key": list(key), "words": words}
            for table, leaves in self.by_table().items()
            for key, words in leaves.items()
        ]
        return json.dumps(entries, ensure_ascii=True, indent=0) + "\n" if entries else None


def encode_column(
    table: str, column: Column, values: NDArray[np.generic], words: Vocabularies
) -> NDArray[Any]:
    """Return the stored form of `values`: codes for text, exactly cast numbers otherwise.

    Numbers of a text feature are codes already. Raises `FormatError` if the dtype lacks a number.

    Example:
        >>> column = Column(("a",), np.dtype("float32"), ())
        >>> encode_column("steps", column, np.array([1, 2]), Vocabularies()).dtype.name
        'float32'
    """
    if column.text and values.dtype == object:
        return words.encode(table, column.key, values.astype(object, copy=False))
    if values.dtype == column.dtype:
        return values
    cast = exact(values, column.dtype)
    if cast is None:
        raise FormatError(
            f"Feature {join_key(column.key)!r} has {values.dtype} values that {column.dtype}, "
            "the type of the first episodes, cannot hold"
        )
    return cast


class Appends(Protocol):
    """Appends bytes to files of a folder."""

    def append(self, name: str, data: Any) -> None:
        """Append a contiguous array or bytes to file `name`; `data` must not change afterwards."""

    def link(self, name: str, source: Path, digest: Mapping[str, Any]) -> None:
        """Make file `name` a hard link to one of known size and sha256, or a copy."""


class TableWriter:
    """Appends rows to the files of one table, except those `given`, which have them already."""

    def __init__(self, spec: TableSpec, sink: Appends, given: Collection[str] = ()) -> None:
        self.spec = spec
        self._sink = sink
        leaves = [leaf for leaf in spec.leaves if leaf.encoding]
        self._videos = [
            VideoWriter(x, sink.append, sink.link) for x in leaves if x.encoding == VIDEO
        ]
        self._encoded: list[EncodedWriter | VideoWriter] = [
            *self._videos,
            *(EncodedWriter(leaf, sink.append) for leaf in leaves if leaf.encoding != VIDEO),
        ]
        by_file: dict[str, list[LeafSpec]] = {}
        for leaf in [x for x in spec.leaves if not x.encoding and x.file not in given]:
            by_file.setdefault(leaf.file, []).append(leaf)
            sink.append(leaf.file, b"")
        self._records = {
            file: (_record(leaves), leaves) for file, leaves in by_file.items() if leaves[0].stride
        }

    @property
    def linked(self) -> dict[str, dict[str, Any]]:
        """Digests of the files of videos so far."""
        return {k: entry for video in self._videos for k, entry in video.linked.items()}

    def append(self, columns: Mapping[Key, Rows], rows: int) -> None:
        """Append `rows` rows of every column."""
        for writer in self._encoded:
            writer.append(columns[writer.leaf.key](slice(0, rows)))
        for file, (dtype, leaves) in self._records.items():
            of = columns[leaves[0].key]
            if len(leaves) == 1 and isinstance(of(slice(0, 1)), PixelColumn):
                pixels: Any = of(slice(0, rows))
                for block in pixels.blocks():
                    self._sink.append(file, block)
                continue
            step = max(1, CHUNK // dtype.itemsize)
            for begin in range(0, rows, step):
                part = slice(begin, min(begin + step, rows))
                records = np.zeros(part.stop - begin, dtype)
                for i, leaf in enumerate(leaves):
                    records[str(i)] = columns[leaf.key](part)
                self._sink.append(file, records.view(np.uint8))
        self.spec = self.spec.with_rows(self.spec.rows + rows)


def _record(leaves: list[LeafSpec]) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": [str(i) for i in range(len(leaves))],
            "formats": [(leaf.dtype, leaf.shape) for leaf in leaves],
            "offsets": [leaf.offset for leaf in leaves],
            "itemsize": leaves[0].stride,
        }
    )


class LayoutWriter:
    """Appends batches of one schema to the tables of a layout, and new words to `words`.

    `compact`: packed steps (`N` rows) and packed observations (`N + E` rows); `ted`: every TED
    feature in a file of its own, `next` and root flags stored. Files `given` have all rows already.
    """

    def __init__(
        self,
        layout: LayoutName,
        schema: Schema,
        sink: Appends,
        words: Vocabularies,
        given: Collection[str] = (),
    ) -> None:
        self._schema, self._words = schema, words
        specs = table_specs(layout, schema)
        self._writers = {name: TableWriter(spec, sink, given) for name, spec in specs.items()}

    @property
    def tables(self) -> dict[str, TableSpec]:
        """Tables with the rows appended so far."""
        return {name: writer.spec for name, writer in self._writers.items()}

    @property
    def linked(self) -> dict[str, dict[str, Any]]:
        return {k: entry for table in self._writers.values() for k, entry in table.linked.items()}

    def append(self, batch: EpisodeBatch, first_episode: int) -> None:
        """Append one batch whose first episode has this number."""
        steps, observations = (TED, TED) if TED in self._writers else (STEPS, OBSERVATIONS)
        rows = self._append_encoded(steps, batch.steps, self._schema.steps)
        rows[EPISODE] = (batch.episode_of + first_episode).__getitem__
        seen = self._append_encoded(observations, batch.observations, self._schema.observations)
        if TED in self._writers:
            for key, column in seen.items():
                rows[key] = _take_rows(column, batch.root_rows)
                rows[next_of(key)] = _take_rows(column, batch.next_rows)
            ended = batch.steps[TERMINATED].astype(bool) | batch.steps[TRUNCATED].astype(bool)
            rows[DONE] = ended.__getitem__
            rows.update(dict.fromkeys(ROOT_FLAGS, lambda _: np.zeros(1, bool)))
        else:
            self._writers[OBSERVATIONS].append(seen, batch.transitions + len(batch.lengths))
        self._writers[steps].append(rows, batch.transitions)

    def _append_encoded(
        self,
        table: str,
        values: Mapping[Key, NDArray[np.generic]],
        columns: Mapping[Key, Column],
    ) -> dict[Key, Rows]:
        return {
            key: encode_column(table, columns[key], array, self._words).__getitem__
            for key, array in values.items()
        }


def _take_rows(column: Rows, index: NDArray[np.int64]) -> Rows:
    def rows(part: slice) -> NDArray[Any]:
        wanted = index[part]
        first = int(wanted[0])
        run = column(slice(first, int(wanted[-1]) + 1))
        return run[wanted - first]

    return rows
