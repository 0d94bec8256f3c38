"""The log of a recording: its finished episodes, appended one by one until they become a dataset.

A record of the file is valid as a whole or skipped:

```
8 bytes    MAGIC
4 bytes    CRC-32 of all that follows, little-endian
8 bytes    number of bytes after this field, little-endian
…          a JSON object, a newline, and arrays without gaps
```

Written bytes are never changed. Where a process was killed in the middle of a record, the next process
appends behind it, and the reader searches for the next valid record.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from offline_data.base.decode import Check, Count, at_least, decode
from offline_data.base.errors import FormatError
from offline_data.base.files import disk_errors, sync_folder, write_durably
from offline_data.base.json import check_depth
from offline_data.episode.fields import REWARD, Key, check_key, join_key, split_key
from offline_data.store.layout import DTYPES

SYNC_SECONDS = 60.0  # until a finished episode is synced to the disk, at most

_MAGIC = b"\x93odrec\r\n"
_HEAD = struct.Struct("<IQ")
_SMALL = 1 << 20  # bytes up to which a record is joined in memory, to be written by one call

Head: TypeAlias = Mapping[str, Any]  # `kind` is `begin`, `schema`, `episode` or `change`


class _OptionalBegin(TypedDict, total=False):
    replaces: str | None


class _BeginRecord(_OptionalBegin):
    id: str
    base: str | None


class _Spaces(TypedDict):
    observation: dict[str, Any]
    action: dict[str, Any]


class _Reports(TypedDict, total=False):
    notes: list[str]
    dropped: list[tuple[str, str]]


class _SchemaRecord(_Reports):
    spaces: _Spaces
    environment: dict[str, Any]
    leaves: list[
        tuple[
            str,
            Annotated[str, Check("a dtype", {*DTYPES, "object"}.__contains__)],
            list[Count],
            Literal["steps", "observations"],
        ]
    ]


class _EpisodeRecord(_Reports):
    serial: Count
    length: Annotated[int, at_least(1)]
    terminated: bool
    truncated: bool
    interrupted: bool
    seed: Annotated[int, Check("an int64", lambda seed: -(1 << 63) <= seed < 1 << 63)]
    options: str | None
    marks: dict[str, bool | int | float | str]


class _OptionalChange(TypedDict, total=False):
    discarded: bool
    marks: dict[str, bool | int | float | str]


class _ChangeRecord(_OptionalChange):
    serial: Count


_KINDS: Mapping[Any, type[Any]] = {
    "begin": _BeginRecord,
    "schema": _SchemaRecord,
    "episode": _EpisodeRecord,
    "change": _ChangeRecord,
}


@dataclass(frozen=True)
class LogLeaf:
    """A feature of all episodes of a recording."""

    key: Key
    dtype: str  # numpy's name; `object` for text
    shape: tuple[int, ...]
    table: Literal["steps", "observations"]  # `T` or `T + 1` rows

    def rows(self, length: int) -> int:
        """Return the number of rows in an episode of `length` steps."""
        return length + (self.table == "observations")

    def nbytes(self, length: int) -> int:
        """Return the bytes of an episode in the body of its record."""
        return self.rows(length) * prod(self.shape) * DTYPES.get(self.dtype, 0)


@dataclass(frozen=True)
class LogEpisode:
    """An episode of a log. Its arrays are views of the file."""

    head: dict[str, Any]  # as changed by later records
    body: memoryview
    leaves: Sequence[LogLeaf]

    @property
    def length(self) -> int:
        """Number of steps."""
        return int(self.head["length"])

    def columns(self) -> dict[LogLeaf, NDArray[Any]]:
        """Return the rows of each feature, text as `str`."""
        found: dict[LogLeaf, NDArray[Any]] = {}
        begin = 0
        for leaf in self.leaves:
            rows = leaf.rows(self.length)
            if leaf.dtype == "object":
                found[leaf] = np.array(self.head["texts"][join_key(leaf.key)], object)
                continue
            dtype = np.dtype(leaf.dtype)
            count = rows * int(np.prod(leaf.shape, dtype=np.int64))
            flat = np.frombuffer(self.body, dtype, count, begin)
            found[leaf] = flat.reshape(rows, *leaf.shape)
            begin += flat.nbytes
        return found


@dataclass
class LogContent:
    """Content of a log."""

    id: str
    base: str | None  # revision of the dataset that it continues
    replaces: str | None = None  # revision
    schema: dict[str, Any] = field(default_factory=dict)  # spaces, environment, features
    episodes: dict[int, LogEpisode] = field(default_factory=dict)  # not discarded, by serial
    notes: dict[str, None] = field(default_factory=dict)
    dropped: dict[tuple[str, str], None] = field(default_factory=dict)
    next_serial: int = 0
    lost: int = 0  # bytes that belong to no valid record

    @property
    def leaves(self) -> tuple[LogLeaf, ...]:
        """Features of all episodes; empty before the first one."""
        return leaves_of(self.schema)


def leaves_of(schema: Mapping[str, Any]) -> tuple[LogLeaf, ...]:
    """Return the features of a `schema` record."""
    listed = schema.get("leaves", ())
    return tuple(LogLeaf(split_key(k), d, tuple(s), t) for k, d, s, t in listed)


class RecordingLog:
    """A log to which records are appended; each is with the operating system before the call returns.

    A record is synced to the disk within `SYNC_SECONDS`, by a thread. Raises `NoSpaceError`,
    `AccessError`; of a record that could not be written, nothing stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            sync_folder(path.parent)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def append(self, head: Head, columns: Sequence[NDArray[Any]] = ()) -> None:
        """Append a record."""
        parts = _record_of(head, columns)
        with self._lock, disk_errors(self.path):
            end = os.fstat(self._file.fileno()).st_size
            try:
                for part in parts:
                    rest = memoryview(part)
                    while len(rest):
                        rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(end)
                raise
            if self._timer is None:
                self._timer = threading.Timer(SYNC_SECONDS, self._sync)
                self._timer.daemon = True
                self._timer.start()

    def _sync(self) -> None:
        with self._lock:
            self._timer = None
            if not self._file.closed:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close the file."""
        with self._lock, disk_errors(self.path):
            if self._timer is not None:
                self._timer.cancel()
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()


def begin_log(path: Path, head: Head) -> None:
    """Write a log of one record over another; a kill leaves either. Raises as `RecordingLog`."""
    with disk_errors(path):
        write_durably(path, b"".join(_record_of(head)))


def _record_of(head: Head, columns: Sequence[NDArray[Any]] = ()) -> list[Any]:
    parts: list[Any] = [json.dumps(head).encode() + b"\n"]
    parts += [np.ascontiguousarray(c).reshape(-1).view(np.uint8) for c in columns if c.size]
    size = sum(len(part) for part in parts)
    if size < _SMALL:
        parts = [b"".join(parts)]
    crc = zlib.crc32(struct.pack("<Q", size))
    for part in parts:
        crc = zlib.crc32(part, crc)
    parts[0] = _MAGIC + _HEAD.pack(crc, size) + parts[0]
    return parts


def read_recording(path: Path) -> LogContent | None:
    """Read a log; None if there is none, or it has no episode and replaces nothing.

    Raises `FormatError` for a record of another form, or an episode before what describes it.
    """
    where = f"{path} is damaged"
    hint = "delete it, or Recorder(…, force=True) does so"
    with disk_errors(path):
        if not path.exists() or not path.stat().st_size:
            return None
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found: LogContent | None = None
    leaves: tuple[LogLeaf, ...] = ()
    valid = 0
    for line, body, size in _records(data):
        valid += size
        try:
            kind, head = _read_head(line, where)
            if kind == "schema":
                leaves = _check_leaves(leaves_of(head))
            elif kind == "episode":
                _check_episode(head, body, leaves)
        except (ValueError, RecursionError, FormatError) as error:
            said = error.message if isinstance(error, FormatError) else f"{where}: {error}"
            raise FormatError(said, hint=hint) from error
        if kind == "begin":
            found = LogContent(head["id"], head["base"], head.get("replaces"))
            continue
        if found is None or (kind == "episode" and not leaves):
            raise FormatError(f"{where}: a record of its schema is missing", hint=hint)
        if kind == "schema":
            found.schema = dict(head)
        elif kind == "episode":
            found.episodes[head["serial"]] = LogEpisode(dict(head), body, leaves)
            found.next_serial = head["serial"] + 1
        elif head.get("discarded"):
            found.episodes.pop(head["serial"], None)
        elif head["serial"] in found.episodes:
            found.episodes[head["serial"]].head["marks"] |= head.get("marks", {})
        found.notes.update(dict.fromkeys(head.get("notes", ())))
        found.dropped.update(dict.fromkeys(map(tuple, head.get("dropped", ()))))
    if found is not None:
        found.lost = len(data) - valid
    return found if found is not None and (found.episodes or found.replaces) else None


def _read_head(line: bytes, where: str) -> tuple[str, dict[str, Any]]:
    value = json.loads(line)
    check_depth(value)
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"a record has no kind of {', '.join(_KINDS)}")
    return kind, decode(_KINDS[kind], value, where, kind, lenient=True)


def _check_leaves(leaves: tuple[LogLeaf, ...]) -> tuple[LogLeaf, ...]:
    by_key = {check_key(leaf.key): leaf for leaf in leaves}
    if len(by_key) < len(leaves):
        raise ValueError("a feature is listed twice")
    if by_key.get(REWARD) != LogLeaf(REWARD, "float64", (1,), "steps"):
        raise ValueError("its rewards are missing")
    return leaves


def _check_episode(head: Mapping[str, Any], body: memoryview, leaves: Sequence[LogLeaf]) -> None:
    if leaves and sum(leaf.nbytes(head["length"]) for leaf in leaves) != len(body):
        raise ValueError("an episode has too few or too many bytes")
    texts = head.get("texts", {})
    for leaf in leaves:
        column = texts.get(join_key(leaf.key)) if isinstance(texts, dict) else None
        if leaf.dtype == "object" and not (
            isinstance(column, list)
            and len(column) == leaf.rows(head["length"])
            and all(isinstance(text, str) for text in column)
        ):
            raise ValueError(f"an episode has other texts of {join_key(leaf.key)} than rows")


def _records(data: mmap.mmap) -> Iterator[tuple[bytes, memoryview, int]]:
    """Yield head, body and size of all valid records."""
    whole, at = memoryview(data), data.find(_MAGIC)
    while at >= 0:
        begin = at + len(_MAGIC) + _HEAD.size
        if begin > len(data):
            return
        crc, size = _HEAD.unpack_from(data, at + len(_MAGIC))
        stop = begin + size
        counted = zlib.crc32(struct.pack("<Q", size))
        if stop <= len(data) and zlib.crc32(whole[begin:stop], counted) == crc:
            line = data.find(b"\n", begin, stop)
            line = stop if line < 0 else line
            yield data[begin:line], whole[min(line + 1, stop) : stop], stop - at
            at = data.find(_MAGIC, stop)
        else:
            at = data.find(_MAGIC, at + 1)
