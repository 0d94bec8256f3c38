"""Joining rows that were written in parts, file by file: dataset directories, or those of tasks.

Rows are copied as bytes, without reading columns, and those of dataset directories checked against
the digests of their part. Five kinds of values differ between a part and the whole:

```
part                     0          1                    2
episode of a row         0 1 2      0 1    → 3 4         0 …  → 5 …
code of a text           its words  → that of the same word in the joined vocabulary
offset of an image       0 90 170   0 80   → 170 250     0 …  → 250 …
number of a video        0 0 1      0 1    → 1 2         0 …  → 3 …
row of an episode        0 3        0 2    → 4 6         0 …  → 7 …
```

With `consume`, the row files of a dataset directory are deleted once its rows are synced, to save
space; the rest of it (manifest, episodes, vocabularies) is enough to resume after a kill.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
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
from offline_data.store.layout import (
    EPISODE,
    EPISODES,
    FRAME_BYTES,
    VIDEO,
    LeafSpec,
    TableSpec,
    with_counts,
)
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.reader import DatasetReader
from offline_data.store.tables import Column, Vocabularies
from offline_data.store.video import number_videos
from offline_data.store.writer import (
    Contents,
    DatasetCounts,
    Digest,
    HashedFile,
    Sink,
    finalize,
    join_episodes,
)

_CHUNK = 8 << 20  # bytes of whole rows that are read, rewritten and written at once

_DURABLE = 64 << 20  # bytes that are joined before they are synced and their parts consumed


class DamagedPartError(IntegrityError):
    """The files of a part, the one of number `part`, do not match its manifest."""

    def __init__(self, message: str, *, hint: str | None = None, part: int = -1) -> None:
        super().__init__(message, hint=hint)
        self.part = part


@dataclass(frozen=True)
class RowsPart:
    """Rows in files of their own, as in a dataset directory, to be joined with those of others."""

    folder: Path
    name: str  # for messages
    tables: Mapping[str, TableSpec]  # tables of rows, the same in all parts but for their number
    episodes: int
    files: Mapping[str, Mapping[str, Any]]
    """Size of each file of rows, and its sha256 if it is to be compared; both of files of videos."""
    words: Mapping[str, Mapping[Key, Sequence[str]]] = field(default_factory=dict)
    """Vocabularies by table, where they differ between parts."""

    @classmethod
    def of(cls, folder: Path, manifest: Manifest, name: str = "") -> RowsPart:
        """Return the rows of a dataset directory, without words."""
        tables = {name: table for name, table in manifest.tables.items() if name != EPISODES}
        return cls(folder, name, tables, manifest.counts["episodes"], manifest.digests)

    @cached_property
    def leaves(self) -> list[LeafSpec]:
        """All features of rows."""
        return [leaf for table in self.tables.values() for leaf in table.leaves]

    @cached_property
    def strides(self) -> dict[str, int]:
        """Bytes of a row in each file of rows, sorted by name; 1 in one of images."""
        strides = {leaf.file: max(1, leaf.stride) for leaf in self.leaves}
        strides |= {leaf.file: FRAME_BYTES for leaf in self.leaves if leaf.encoding == VIDEO}
        return dict(sorted({**strides, **dict.fromkeys(self.offsets, 8)}.items()))

    @cached_property
    def offsets(self) -> dict[str, str]:
        """The offsets file of every encoded feature, with the file of its images."""
        encoded = [leaf for leaf in self.leaves if leaf.encoding not in {None, VIDEO}]
        return {leaf.offsets: leaf.file for leaf in encoded}

    @property
    def row_files(self) -> set[str]:
        """All files of rows, those of videos and their times included."""
        videos = [leaf for leaf in self.leaves if leaf.encoding == VIDEO]
        return {
            *self.strides,
            *(x for leaf in videos for x in number_videos(leaf, [self.files])[1]),
        }

    def added(self, *, first: bool) -> dict[str, int]:
        """Return the bytes it adds to each file; the leading 0 of offsets counts only once."""
        return {
            name: int(self.files[name]["size"]) - (8 if name in self.offsets and not first else 0)
            for name in self.strides
        }


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
        header: Manifest to which tables, counts, digests, notes and dropped features are added.
        names: Names of the parts in messages, else those of their folders.
        consume: Whether parts may be deleted as their rows are written.

    Raises:
        FormatError: A part has another schema; names the part and the feature.
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
    manifests = [reader.manifest for reader in readers]
    named = names or [part.name for part in parts]
    for name, manifest in zip(named[1:], manifests[1:], strict=True):
        _check_same(manifests[0], manifest, named[0], name)
    done, joined = joined_parts(parts, folder), list[RowsPart]()
    for number, reader in enumerate(readers):
        part = RowsPart.of(reader.path, reader.manifest, named[number])
        try:
            if number >= done:  # else its rows may be consumed
                reader.check_files()
            _check_small_files(part)
            joined.append(replace(part, words=reader.vocabularies))
        except ManifestError as error:
            raise DamagedPartError(error.message, hint=error.shell_hint, part=number) from error

    def delete(some: Sequence[RowsPart]) -> None:
        for path in [part.folder / name for part in some for name in part.row_files]:
            path.unlink(missing_ok=True)

    def keep(first: int, stop: int) -> None:
        for inner in {file.parent for file in folder.rglob("*")}:
            sync_folder(inner)
        journal = {"parts": stop, "of": _identity(manifests[:stop])}
        write_durably(_journal(folder), json.dumps(journal).encode())
        if consume:
            delete(joined[first:stop])

    if consume:  # left by a kill
        with disk_errors(folder):
            delete(joined[:done])
    words = Vocabularies()
    total = sum(sum(part.added(first=True).values()) for part in joined)
    with progress.task(f"join {header.name}", total, "B") as bar:
        digests = join_rows(joined, folder, words, bar, done=done, keep=keep)
    counts, audit = _counts(manifests)
    transitions, episodes = counts.counts["transitions"], counts.counts["episodes"]
    tables = with_counts(joined[0].tables, transitions, episodes)
    leaves = manifests[0].tables[EPISODES].leaves
    given = {x.key: Column(x.key, np.dtype(x.dtype), x.shape, text=x.text) for x in leaves}
    columns = join_episodes(
        [
            {key: one.as_text(key, np.array(one.episodes[key]), EPISODES) for key in one.episodes}
            for one in readers
        ]
    )
    contents = Contents(tables, columns, given, counts, audit, manifests[0].two_copies, digests)
    manifest = finalize_joined(folder, header, contents, words)
    _journal(folder).unlink(missing_ok=True)
    return manifest


def finalize_joined(
    folder: Path, header: Manifest, contents: Contents, words: Vocabularies
) -> Manifest:
    """Delete what an interrupted attempt left next to the files of rows, and `finalize` them."""
    with disk_errors(folder):
        for path in [path for path in folder.rglob("*") if not path.is_dir()]:
            if path.relative_to(folder).as_posix() not in contents.digests:
                path.unlink()
    with Sink(folder) as sink:
        return finalize(sink, header, contents, words)


def join_rows(
    parts: Sequence[RowsPart],
    folder: Path,
    words: Vocabularies,
    bar: Task = SILENT,
    *,
    done: int = 0,
    keep: Callable[[int, int], None] | None = None,
) -> dict[str, Digest]:
    """Write the rows of parts to files of a folder, each in a thread; returns their digests.

    Words of the parts are added to `words`. Of existing files the rows of the first `done` parts are
    kept. With `keep` rows are synced after every `_DURABLE` bytes at least, and it is called with the
    first of the parts that they are from, and the one after the last. Raises `DamagedPartError`.
    """
    numbers: dict[str, list[NDArray[np.int32]]] = {}
    videos: dict[str, tuple[int, str]] = {}
    for leaf in [leaf for leaf in parts[0].leaves if leaf.encoding == VIDEO]:
        numbers[leaf.file], sources = number_videos(leaf, [part.files for part in parts])
        videos |= sources
    changes: list[dict[str, list[_Change]]] = []
    sizes, kept, episodes = Counter[str](), Counter[str](), 0
    for number, part in enumerate(parts):
        codes = {file: of_parts[number] for file, of_parts in numbers.items()}
        changes.append(_changes(part, words, episodes, sizes, codes))
        episodes += part.episodes
        sizes.update(part.added(first=number == 0))
        kept = sizes.copy() if number < done else kept

    def append(name: str, first: int, stop: int) -> int:
        file, stride, before = files[name], parts[0].strides[name], files[name].size
        for number, part in enumerate(parts[first:stop], first):
            sha = hashlib.sha256()
            expected, of = part.files[name].get("sha256"), changes[number].get(name, ())
            skip = 8 if number and name in part.offsets else 0
            with (part.folder / name).open("rb") as source:
                while data := source.read(max(1, _CHUNK // stride) * stride):
                    if expected is not None:
                        sha.update(data)
                    rows: Any = bytearray(data) if of else data
                    for change in of:
                        change.apply(rows)
                    file.append(memoryview(rows)[skip:])
                    skip = 0
            if expected not in {None, sha.hexdigest()}:
                message = f"{part.name} is damaged: {part.folder / name} was changed"
                raise DamagedPartError(message, part=number)
        file.sync()
        return file.size - before

    with disk_errors(folder), ExitStack() as stack:
        files = {name: _grow(folder / name, kept[name]) for name in parts[0].strides}
        for file in files.values():
            stack.callback(file.handle.close)
        bar.advance(kept.total())
        threads = min(len(files), 2 * (os.cpu_count() or 1))
        pool = ThreadPoolExecutor(threads, thread_name_prefix="offline-data-join")
        stack.enter_context(pool)
        for first, stop in _batches(parts, done, _DURABLE if keep else inf):
            work = [pool.submit(append, name, first, stop) for name in files]
            for name, (number, old) in videos.items():  # each from the first part that has it
                if first <= number < stop:
                    part = parts[number]
                    (folder / name).unlink(missing_ok=True)  # of an interrupted attempt
                    place_file(part.folder / old, folder / name, part.files[old], SILENT, move=True)
            for one in work:
                bar.advance(one.result())
            if keep:
                keep(first, stop)
    linked = {name: parts[number].files[old] for name, (number, old) in videos.items()}
    return {**{name: file.digest for name, file in files.items()}, **linked}


def _grow(path: Path, size: int) -> HashedFile:
    """Open a file to append to its first bytes, or a new one in its place."""
    if not size:
        path.unlink(missing_ok=True)
        return HashedFile(path)
    file = HashedFile(path, "r+b")
    file.handle.truncate(size)
    file.read_to(size)
    return file


def _batches(parts: Sequence[RowsPart], first: int, least: float) -> Iterator[tuple[int, int]]:
    """Yield ranges of parts that have at least that many bytes together, but for the last one."""
    size = 0
    for number in range(first, len(parts)):
        size += sum(parts[number].added(first=number == 0).values())
        if size >= least or number == len(parts) - 1:
            yield first, number + 1
            first, size = number + 1, 0


def _check_small_files(part: RowsPart) -> None:
    """Raise `ManifestError` if a file other than those of rows, which `join` hashes, was changed."""
    rows = part.row_files
    for name, entry in part.files.items():
        if name not in rows:
            try:
                found = hashlib.sha256((part.folder / name).read_bytes()).hexdigest()
            except OSError as error:
                raise ManifestError(f"{part.folder / name} cannot be read: {error}") from error
            if found != entry["sha256"]:
                raise ManifestError(f"{part.folder / name} was changed")


def joined_parts(parts: Sequence[Path], folder: Path) -> int:
    """Return how many leading parts, by their manifests, have all rows in an unfinished join."""
    try:
        journal = read_json(_journal(folder))
        done = journal["parts"]
        manifests = [read_manifest(part) for part in parts[:done]]
        sizes = Counter[str]()
        for number, manifest in enumerate(manifests):
            sizes.update(RowsPart.of(folder, manifest).added(first=number == 0))
        whole = journal["of"] == _identity(manifests) and all(
            (folder / name).stat().st_size >= size for name, size in sizes.items()
        )
    except (OSError, IntegrityError, LookupError, TypeError):
        return 0
    return done if whole else 0


def _journal(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.joined")


def _identity(manifests: Sequence[Manifest]) -> str:
    parts = "".join(one.sha256 or json.dumps(one.to_json(), default=str) for one in manifests)
    return hashlib.sha256(f"{len(manifests)} {parts}".encode()).hexdigest()


def _check_same(first: Manifest, other: Manifest, first_name: str, name: str) -> None:
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
    counts = DatasetCounts()
    for manifest in manifests:
        counts.add_counted(manifest.counts, manifest.non_finite)
        counts.notes = join_notes((*counts.notes, *manifest.notes))
        counts.dropped.update(dict.fromkeys(manifest.dropped_leaves))
        counts.skipped.update(dict.fromkeys(manifest.skipped_episodes))
    audits = [manifest.audit for manifest in manifests]
    added = {
        name: sum(audit.get(name, 0) for audit in audits)
        for name in ("rows", "of", "episodes", "differences")
    }
    return counts, {"mode": audits[0].get("mode", "none"), **added}


@dataclass(frozen=True)
class _Change:
    """Rewriting of one feature in the rows of a part."""

    leaf: LeafSpec
    add: int = 0  # number to add to each value
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
    part: RowsPart,
    words: Vocabularies,
    episodes: int,
    sizes: Mapping[str, int],
    videos: Mapping[str, NDArray[np.int32]],
) -> dict[str, list[_Change]]:
    # `episodes` and `sizes` are those of the parts before together
    codes = {
        (table, key): words.encode(table, key, np.array([*known, None], object))
        for table, leaves in part.words.items()
        if table in part.tables
        for key, known in leaves.items()
    }
    changes: dict[str, list[_Change]] = {}
    for name, table in part.tables.items():
        for leaf in table.leaves:
            root = leaf.key[1:] if leaf.key[0] == "next" else leaf.key  # they share a vocabulary
            new = codes.get((name, leaf.key), codes.get((name, root)))
            if leaf.key == EPISODE and episodes:
                changes.setdefault(leaf.file, []).append(_Change(leaf, add=episodes))
            elif leaf.encoding == VIDEO:
                numbers = replace(leaf, dtype="int32", shape=(), stride=FRAME_BYTES)
                of = np.append(videos[leaf.file], np.int32(-1))
                changes.setdefault(leaf.file, []).append(_Change(numbers, codes=of))
            elif leaf.encoding:
                ends = replace(leaf, dtype="int64", shape=(), stride=8)
                changes[leaf.offsets] = [_Change(ends, add=sizes.get(leaf.file, 0))]
            elif leaf.text and new is not None and (new[:-1] != np.arange(len(new) - 1)).any():
                changes.setdefault(leaf.file, []).append(_Change(leaf, codes=new))
    return changes
