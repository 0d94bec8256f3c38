"""Joining dataset directories of equal schema into one, file by file.

Rows are copied as bytes, without reading columns, and checked against the digests of their part.
Four kinds of values differ between a part and the whole and are rewritten:

```
part                     0          1                    2
episode of a row         0 1 2      0 1    → 3 4         0 …  → 5 …
code of a text           its words  → that of the same word in the joined vocabulary
offset of an image       0 90 170   0 80   → 170 250     0 …  → 250 …
number of a video        0 0 1      0 1    → 1 2         0 …  → 3 …
```

With `consume`, the row files of a part are deleted once its rows are synced, so that joining takes
hardly any additional space; the rest of a part (manifest, episodes, vocabularies) is enough to
resume after a kill.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, IntegrityError, ManifestError
from offline_data.base.files import disk_errors, sync_folder, write_durably
from offline_data.base.json import read_json
from offline_data.base.progress import SILENT, Progress, Task
from offline_data.episode import Key
from offline_data.episode.fields import join_key
from offline_data.episode.notes import join_notes
from offline_data.store.copies import place_file
from offline_data.store.layout import EPISODE, EPISODES, FRAME_BYTES, VIDEO, LeafSpec, with_counts
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.reader import DatasetReader
from offline_data.store.tables import Column, Vocabularies
from offline_data.store.video import number_videos
from offline_data.store.writer import Contents, DatasetCounts, FileDigest, Sink, finalize

_CHUNK = 8 << 20
"""Bytes of whole rows that are read, rewritten and written at once."""

_DURABLE = 64 << 20
"""Bytes that are joined before they are synced and their parts consumed."""


class DamagedPartError(IntegrityError):
    """The files of a part do not match its manifest.

    Attributes:
        part: Its number among the parts.
    """

    def __init__(self, message: str, *, hint: str | None = None, part: int = -1) -> None:
        super().__init__(message, hint=hint)
        self.part = part


def join(
    parts: Sequence[Path],
    folder: Path,
    header: Manifest,
    progress: Progress = SILENT,
    *,
    names: Sequence[str] = (),
    consume: bool = False,
) -> Manifest:
    """Join dataset directories into a new one, in their order; it is not published yet.

    After a kill, a call with the same parts resumes. Rows, vocabularies and bytes are those that a
    `DatasetWriter` would write if given all batches.

    Args:
        parts: The directories, at least one, of equal layout and schema.
        folder: The new directory; may contain the work of an interrupted call.
        header: Manifest without tables, counts, digests and statistics. Notes and dropped leaves of
            the parts are added.
        names: Names of the parts in messages; None: those of their folders.
        consume: Whether parts may be deleted as their rows are written.

    Raises:
        FormatError: A part has another schema; names the part and the leaf.
        DamagedPartError: A part is damaged.
        AuditError, NoSpaceError, AccessError: See `finalize`.

    Example:
        >>> import tempfile
        >>> from dataclasses import replace
        >>> from pathlib import Path
        >>> from offline_data.testing.toy import toy_batch, write_toy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     parts = [Path(folder) / name for name in ("a", "b")]
        ...     made = [write_toy(part, [toy_batch([2, 1])]) for part in parts]
        ...     header = replace(made[0], tables={}, counts={}, digests={})
        ...     join(parts, Path(folder) / "both", header).counts["episodes"]
        4
    """
    readers = [DatasetReader(part) for part in parts]
    named = names or [part.name for part in parts]
    for name, reader in zip(named[1:], readers[1:], strict=True):
        _check_same(readers[0].manifest, reader.manifest, named[0], name)
    done = joined_parts(parts, folder)
    for number, reader in enumerate(readers):
        try:
            if number >= done:  # else its rows may be consumed
                reader.check_files()
            _check_small_files(reader)
        except ManifestError as error:
            raise DamagedPartError(error.message, hint=error.shell_hint, part=number) from error
    words, joining = Vocabularies(), _Joining(folder, readers, named, done)
    manifests = [reader.manifest for reader in readers]
    numbers = joining.number_videos()
    before = 0
    for number, reader in enumerate(readers):
        codes = {file: of_parts[number] for file, of_parts in numbers.items()}
        joining.changes.append(_changes(reader, words, before, codes))
        before += reader.episode_count
    total = sum(sum(_row_files(manifest).values()) for manifest in manifests)
    with progress.task(f"join {header.name}", total, "B") as bar:
        digests = joining.run(bar, consume=consume)
    first, (counts, audit) = manifests[0], _counts(manifests)
    transitions, episodes = counts.counts["transitions"], counts.counts["episodes"]
    tables = {name: table for name, table in first.tables.items() if name != EPISODES}
    tables = with_counts(tables, transitions, episodes)
    leaves = first.tables[EPISODES].leaves
    given = {x.key: Column(x.key, np.dtype(x.dtype), x.shape, text=x.text) for x in leaves}
    columns = _episode_columns(readers)
    contents = Contents(tables, columns, given, counts, audit, first.two_copies, digests)
    for left in _files(folder) - digests.keys():  # of an interrupted attempt
        (folder / left).unlink()
    with Sink(folder) as sink:
        manifest = finalize(sink, header, contents, words)
    _journal(folder).unlink(missing_ok=True)
    return manifest


def _check_small_files(reader: DatasetReader) -> None:
    """Raise `ManifestError` if a file other than those of rows, which `join` hashes, was changed."""
    others = {*_row_files(reader.manifest), *_video_files(reader.manifest)}
    for name, entry in reader.manifest.digests.items():
        if name not in others:
            try:
                found = hashlib.sha256((reader.path / name).read_bytes()).hexdigest()
            except OSError as error:
                raise ManifestError(f"{reader.path / name} cannot be read: {error}") from error
            if found != entry["sha256"]:
                raise ManifestError(f"{reader.path / name} was changed")


def joined_parts(parts: Sequence[Path], folder: Path) -> int:
    """Return how many leading parts have all their rows in an unfinished join.

    Only the manifests of these parts are needed.
    """
    try:
        journal = read_json(_journal(folder))
        done = journal["parts"]
        manifests = [read_manifest(part) for part in parts[:done]]
        sizes = Counter[str]()
        for number, manifest in enumerate(manifests):
            sizes.update(_grown(manifest, first=number == 0))
        whole = journal["of"] == _identity(manifests) and all(
            (folder / name).stat().st_size >= size for name, size in sizes.items()
        )
    except (OSError, IntegrityError, LookupError, TypeError):
        return 0
    return done if whole else 0


def _journal(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.joined")


def _identity(manifests: Sequence[Manifest]) -> str:
    """Return digits that identify the parts."""
    told = "".join(one.sha256 or json.dumps(one.to_json(), default=str) for one in manifests)
    return hashlib.sha256(f"{len(manifests)} {told}".encode()).hexdigest()


def _files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}


def _row_files(manifest: Manifest) -> dict[str, int]:
    """Return the files of all tables except that of episodes, with their sizes in bytes."""
    leaves = [x for name, t in manifest.tables.items() if name != EPISODES for x in t.leaves]
    files = {leaf.file for leaf in leaves} | _offset_files(manifest).keys()
    return {name: int(manifest.digests[name]["size"]) for name in sorted(files)}


def _offset_files(manifest: Manifest) -> dict[str, str]:
    """Return the offsets file of every encoded leaf, with the file of its images."""
    leaves = [leaf for table in manifest.tables.values() for leaf in table.leaves]
    return {leaf.offsets: leaf.file for leaf in leaves if leaf.encoding not in {None, VIDEO}}


def _video_leaves(manifest: Manifest) -> list[LeafSpec]:
    return [x for table in manifest.tables.values() for x in table.leaves if x.encoding == VIDEO]


def _video_files(manifest: Manifest) -> list[str]:
    """Return the files of videos, with those of their times."""
    digests = [manifest.digests]
    return [x for leaf in _video_leaves(manifest) for x in number_videos(leaf, digests)[1]]


def _grown(manifest: Manifest, *, first: bool) -> dict[str, int]:
    """Return the bytes that a part adds to each file; the leading 0 of offsets counts only once."""
    offsets = _offset_files(manifest)
    return {
        name: size - (8 if name in offsets and not first else 0)
        for name, size in _row_files(manifest).items()
    }


def _check_same(first: Manifest, other: Manifest, first_name: str, name: str) -> None:
    """Raise `FormatError` at the first leaf that differs between two parts."""
    tables = [*dict.fromkeys([*first.tables, *other.tables])]
    if (first.layout, first.two_copies) != (other.layout, other.two_copies):
        raise FormatError(f"{name} has another layout than {first_name}")
    for table in tables:
        ours, theirs = (
            {leaf.key: leaf for leaf in one.tables[table].leaves} for one in (first, other)
        )
        for key in dict.fromkeys([*ours, *theirs]):
            if ours.get(key) != theirs.get(key):
                raise FormatError(
                    f"{name} does not fit {first_name}: {join_key(key)!r} of {table} is "
                    f"{_describe_leaf(theirs.get(key))}, expected {_describe_leaf(ours.get(key))}"
                )


def _describe_leaf(leaf: LeafSpec | None) -> str:
    if leaf is None:
        return "absent"
    kind = "text" if leaf.text else leaf.encoding or leaf.dtype
    return f"{kind} {list(leaf.shape)}"


def _counts(manifests: Sequence[Manifest]) -> tuple[DatasetCounts, dict[str, Any]]:
    """Sum up the counts, and the rows compared with the source."""
    counts = DatasetCounts()
    for manifest in manifests:
        counts.counts.update(manifest.counts)
        for leaf, found in manifest.non_finite.items():
            counts.add_non_finite(leaf, found)
        counts.notes = join_notes((*counts.notes, *manifest.notes))
        counts.dropped.update(dict.fromkeys(manifest.dropped_leaves))
        counts.skipped.update(dict.fromkeys(manifest.skipped_episodes))
    audits = [manifest.audit for manifest in manifests]
    added = {
        name: sum(audit.get(name, 0) for audit in audits)
        for name in ("rows", "of", "episodes", "differences")
    }
    return counts, {"mode": audits[0].get("mode", "none"), **added}


def _episode_columns(readers: Sequence[DatasetReader]) -> dict[Key, NDArray[Any]]:
    """Join the episode tables; text as `str`, `start` as rows of the whole."""
    columns = {
        key: np.concatenate([r.as_text(key, np.array(r.episodes[key]), EPISODES) for r in readers])
        for key in readers[0].episodes
    }
    lengths = columns["length",].astype(np.int64)
    columns["start",] = np.cumsum(lengths) - lengths
    return columns


@dataclass(frozen=True)
class _Change:
    """Rewriting of one leaf in the rows of a part."""

    leaf: LeafSpec
    add: int = 0
    """Number to add to each value."""
    codes: NDArray[np.int32] | None = None
    """New code, or number of a video, of each old one, with -1 at the end."""

    def apply(self, rows: bytearray) -> None:
        """Rewrite whole rows in place; raises `IntegrityError` for a code without a word."""
        leaf, dtype = self.leaf, np.dtype(self.leaf.dtype)
        inner = [dtype.itemsize * prod(leaf.shape[i + 1 :]) for i in range(len(leaf.shape))]
        shape = (len(rows) // leaf.stride, *leaf.shape)
        values: NDArray[Any] = np.ndarray(shape, dtype, rows, leaf.offset, (leaf.stride, *inner))
        if self.codes is None:
            values += self.add
        elif values.size:
            if not -1 <= values.min() <= values.max() < len(self.codes) - 1:
                lacking = "rows without a video" if leaf.encoding else "codes without a word"
                raise IntegrityError(f"{join_key(leaf.key)!r} has {lacking}")
            values[...] = self.codes[values]


def _changes(
    reader: DatasetReader,
    words: Vocabularies,
    before: int,
    videos: Mapping[str, NDArray[np.int32]],
) -> dict[str, list[_Change]]:
    """Return the changes in each file of a part, and add its words to the joined vocabularies.

    `before` is the number of episodes in the parts before, `videos` the new numbers of videos.
    """
    codes = {
        (table, key): words.encode(table, key, np.array([*known, None], object))
        for table, leaves in reader.vocabularies.items()
        if table != EPISODES
        for key, known in leaves.items()
    }
    changes: dict[str, list[_Change]] = {}
    for name, table in reader.manifest.tables.items():
        for leaf in table.leaves if name != EPISODES else ():
            root = leaf.key[1:] if leaf.key[0] == "next" else leaf.key  # they share a vocabulary
            new = codes.get((name, leaf.key), codes.get((name, root)))
            if leaf.key == EPISODE and before:
                changes.setdefault(leaf.file, []).append(_Change(leaf, add=before))
            elif leaf.encoding == VIDEO:
                numbers = replace(leaf, dtype="int32", shape=(), stride=FRAME_BYTES)
                of = np.append(videos[leaf.file], np.int32(-1))
                changes.setdefault(leaf.file, []).append(_Change(numbers, codes=of))
            elif leaf.text and new is not None and (new[:-1] != np.arange(len(new) - 1)).any():
                changes.setdefault(leaf.file, []).append(_Change(leaf, codes=new))
    return changes


class _Grown:
    """A file of the joined dataset: existing bytes are hashed, the rest is appended."""

    def __init__(self, path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.size, self._hash = 0, hashlib.sha256()
        self._handle = path.open("r+b" if path.exists() else "x+b", buffering=0)
        self._handle.truncate(size)
        while chunk := self._handle.read(_CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)

    def append(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        while len(rest):
            rest = rest[self._handle.write(rest) :]
        self._hash.update(data)
        self.size += len(data)

    def sync(self) -> None:
        os.fsync(self._handle.fileno())

    def close(self) -> None:
        self._handle.close()

    @property
    def digest(self) -> FileDigest:
        return FileDigest(self.size, self._hash.hexdigest())


class _Joining:
    """The row files of a join, which grow part by part; the files of a part in parallel."""

    def __init__(
        self, folder: Path, readers: Sequence[DatasetReader], names: Sequence[str], done: int
    ) -> None:
        self._folder, self._readers, self._names, self._done = folder, readers, names, done
        self.changes: list[dict[str, list[_Change]]] = []
        """Changes in each part, by file name."""
        manifest = readers[0].manifest
        self._images = _offset_files(manifest)
        leaves = [leaf for table in manifest.tables.values() for leaf in table.leaves]
        self._strides = {leaf.file: max(1, leaf.stride) for leaf in leaves}
        self._strides |= {leaf.file: FRAME_BYTES for leaf in leaves if leaf.encoding == VIDEO}
        self._videos: dict[str, tuple[int, str]] = {}
        """Part and name there of each file of a video."""

    def number_videos(self) -> dict[str, list[NDArray[np.int32]]]:
        """Return the new numbers of the videos of each part, by file of rows."""
        numbers = {}
        digests = [reader.manifest.digests for reader in self._readers]
        for leaf in _video_leaves(self._readers[0].manifest):
            numbers[leaf.file], sources = number_videos(leaf, digests)
            self._videos |= sources
        return numbers

    def run(self, bar: Task, *, consume: bool) -> dict[str, FileDigest]:
        """Append every missing part; returns size and digest of each file."""
        sizes = Counter[str]()
        for number, reader in enumerate(self._readers[: self._done]):
            sizes.update(_grown(reader.manifest, first=number == 0))
        names = list(_row_files(self._readers[0].manifest))
        with disk_errors(self._folder), ExitStack() as stack:
            files = {name: _Grown(self._folder / name, sizes[name]) for name in names}
            for file in files.values():
                stack.callback(file.close)
            bar.advance(sum(sizes.values()))
            if consume:  # left by a kill
                self._delete(self._readers[: self._done])
            threads = min(len(files), 2 * (os.cpu_count() or 1))
            pool = ThreadPoolExecutor(threads, thread_name_prefix="offline-data-join")
            stack.enter_context(pool)
            waiting, last = 0, len(self._readers) - 1
            for number in range(self._done, len(self._readers)):
                ends = {name: files[images].size for name, images in self._images.items()}
                work = [
                    pool.submit(self._append, number, name, files[name], ends.get(name, 0))
                    for name in names
                ]
                self._link_videos(number)
                for one in work:
                    waiting += one.result()
                    bar.advance(one.result())
                if waiting >= _DURABLE or number == last:
                    self._make_durable(files.values())
                    waiting, before, self._done = 0, self._done, number + 1
                    manifests = [reader.manifest for reader in self._readers[: self._done]]
                    journal = {"parts": self._done, "of": _identity(manifests)}
                    write_durably(_journal(self._folder), json.dumps(journal).encode())
                    if consume:
                        self._delete(self._readers[before : self._done])
            linked = {
                name: FileDigest(**self._readers[part].manifest.digests[old])
                for name, (part, old) in self._videos.items()
            }
            return {**{name: file.digest for name, file in files.items()}, **linked}

    def _link_videos(self, number: int) -> None:
        """Link the videos that no part before this one has."""
        for name, (part, old) in self._videos.items():
            if part == number:
                reader = self._readers[part]
                (self._folder / name).unlink(missing_ok=True)  # of an interrupted attempt
                digest = reader.manifest.digests[old]
                place_file(reader.path / old, self._folder / name, digest, SILENT, move=True)

    def _append(self, number: int, name: str, file: _Grown, end: int) -> int:
        """Append one file of a part; returns its bytes.

        For offsets, `end` is the end of the images of the parts before. Raises `IntegrityError` if
        the file is damaged.
        """
        reader, sha, before = self._readers[number], hashlib.sha256(), file.size
        stride, changes = self._strides.get(name, 8), self.changes[number].get(name, ())
        with (reader.path / name).open("rb") as source:
            if name in self._images:
                data = source.read()
                sha.update(data)
                offsets = np.frombuffer(data, "<i8")
                file.append((offsets[1 if number else 0 :] + end).tobytes())
            else:
                while data := source.read(max(1, _CHUNK // stride) * stride):
                    sha.update(data)
                    rows = bytearray(data)
                    for change in changes:
                        change.apply(rows)
                    file.append(rows)
        if sha.hexdigest() != reader.manifest.digests[name]["sha256"]:
            message = f"{self._names[number]} is damaged: {reader.path / name} was changed"
            raise DamagedPartError(message, part=number)
        return file.size - before

    def _make_durable(self, files: Iterable[_Grown]) -> None:
        for file in files:
            file.sync()
        for folder in {file.parent for file in self._folder.rglob("*")}:
            sync_folder(folder)

    def _delete(self, joined: Sequence[DatasetReader]) -> None:
        """Delete the row files of parts."""
        for reader in joined:
            for name in (*_row_files(reader.manifest), *_video_files(reader.manifest)):
                (reader.path / name).unlink(missing_ok=True)
