"""Writing a dataset directory: rows are counted, audited and hashed; the manifest comes last."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, NoSpaceError
from offline_data.base.files import disk_errors, human_bytes, require_bytes
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, join_key
from offline_data.episode.notes import join_notes
from offline_data.store.audit import Audit, check_episodes
from offline_data.store.copies import place_file
from offline_data.store.layout import (
    DEFAULT_AUDIT,
    EPISODES,
    MANIFEST,
    TEXT,
    AuditMode,
    TableSpec,
    file_sizes,
    with_counts,
)
from offline_data.store.manifest import Manifest, dump_manifest
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.tables import (
    Column,
    LayoutWriter,
    Schema,
    TableWriter,
    Vocabularies,
    encode_column,
    meta_files,
    pack,
    schema_of,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.episode import Dropped, EpisodeBatch, Skipped

_LARGE = 16 << 20  # bytes of an append that is queued alone
_IN_FLIGHT = 3  # maximum number of queued appends
_SYNC = 32 << 20  # bytes of a file between two syncs
_HASHED = 1 << 20  # bytes that are read and hashed at once; fits the processor's cache
_LARGEST_RATIO = 10_000
"""Bytes of rows per byte of raw files beyond which their announced number is wrong; deflate reaches
1,032."""


Digest: TypeAlias = "Mapping[str, Any]"  # `size` and `sha256` of a file, as manifests have them


class HashedFile:
    """A file that is hashed as it grows: by `append`, or by others and then `read_to`."""

    def __init__(self, path: Path, mode: str = "xb") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.handle: Any = path.open(mode, buffering=0)
        self.size = 0  # bytes that are hashed
        self._hash, self._synced = hashlib.sha256(), -1

    def append(self, data: memoryview) -> None:
        rest = data
        while len(rest):
            rest = rest[self.handle.write(rest) :]
        self._hash.update(data)
        self.size += len(data)
        # Syncing as bytes come costs nothing compared to reading; at the end it would have to wait.
        if self.size - self._synced > _SYNC:
            self.sync()

    def read_to(self, stop: int) -> None:
        """Read and hash the bytes up to this place, or to the end."""
        chunk = memoryview(bytearray(_HASHED))
        while self.size < stop and (count := self.handle.readinto(chunk[: stop - self.size])):
            self._hash.update(chunk[:count])
            self.size += count

    def sync(self) -> None:
        """Force new bytes to the disk."""
        if self._synced < self.size:
            os.fsync(self.handle.fileno())
            self._synced = self.size

    @property
    def digest(self) -> Digest:
        """Size and digest of the bytes so far."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


class Sink:
    """Appends to the files of one staging folder; writing and hashing run in a background thread.

    At most a few appends are queued. An error of the disk is raised by a later call, as
    `NoSpaceError` or `AccessError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, HashedFile] = {}
        self._linked: dict[str, Digest] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="offline-data-sink")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            file.handle.close()

    def append(self, name: str, data: Any) -> None:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")

        def write() -> None:
            if name not in self._files:
                self._files[name] = HashedFile(self.folder / name)
            self._files[name].append(view)

        if view.nbytes > _LARGE:
            self.drain()
        self.run(write)

    def link(self, name: str, source: Path, digest: Digest) -> None:
        def write() -> None:
            place_file(source.resolve(), self.folder / name, digest, SILENT, move=True)
            self._linked[name] = digest

        self.run(write)

    def run(self, job: Callable[[], None]) -> None:
        """Run `job` after all appends so far, before all later ones."""
        self.drain(_IN_FLIGHT - 1)
        self._waiting.append(self._pool.submit(job))

    def drain(self, most: int = 0) -> None:
        """Wait until at most `most` jobs are queued; raises errors of finished ones."""
        with disk_errors(self.folder):
            while len(self._waiting) > most:
                self._waiting.popleft().result()

    def finish(self) -> dict[str, Digest]:
        """Wait for all jobs and sync all files; returns size and digest of each."""
        self.drain()
        with disk_errors(self.folder):
            for file in self._files.values():
                file.sync()
        return {**{name: file.digest for name, file in self._files.items()}, **self._linked}


class DatasetCounts:
    """Counts over batches: steps, flags, episodes, and non-finite values."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.non_finite: dict[str, Counter[str]] = {}
        self.notes: tuple[str, ...] = ()
        self.dropped: dict[Dropped, None] = {}
        self.skipped: dict[Skipped, None] = {}

    def add(self, batch: EpisodeBatch) -> None:
        self.skipped.update(dict.fromkeys(batch.skipped))
        self.notes = join_notes((*self.notes, *batch.notes, *batch.warnings))
        if not len(batch.lengths):
            return
        ended = batch.steps[TERMINATED][batch.last_rows, 0].astype(bool)
        unknown = int((~batch.final_observation & ~ended).sum())
        self.counts.update(
            transitions=batch.transitions,
            episodes=len(batch.lengths),
            valid_transitions=batch.transitions - unknown,
            terminated=int(batch.steps[TERMINATED].sum()),
            truncated=int(batch.steps[TRUNCATED].sum()),
            without_final_observation=int((~batch.final_observation).sum()),
        )
        for key, values in {**batch.steps, **batch.observations}.items():
            if values.dtype.kind not in "fc":
                continue
            if not np.isfinite(values).all():
                found = {"nan": int(np.isnan(values).sum()), "inf": int(np.isinf(values).sum())}
                self.add_non_finite(join_key(key), found)
        self.dropped.update(dict.fromkeys(batch.dropped))

    def add_counted(
        self, counts: Mapping[str, int], non_finite: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Add the counts of a part that was counted before."""
        self.counts.update(counts)
        for leaf, found in non_finite.items():
            self.add_non_finite(leaf, found)

    def add_non_finite(self, leaf: str, counts: Mapping[str, int]) -> None:
        """Add the counts of a feature, `nan` and `inf`."""
        self.non_finite.setdefault(leaf, Counter()).update(counts)

    def non_finite_json(self) -> dict[str, dict[str, int]]:
        """Return `{leaf: {"nan": n, "inf": n}}`, both always present."""
        return {k: {"nan": c["nan"], "inf": c["inf"]} for k, c in self.non_finite.items()}


@dataclass(frozen=True)
class AnnouncedSize:
    """Announced size of the data, if known: space for it is checked before writing."""

    transitions: int | None = None
    episodes: int | None = None
    raw_bytes: int | None = None  # bytes of the raw files


class DatasetWriter:
    """Writes batches to a staging folder; `finish` completes the dataset directory.

    `folder` is empty or absent, and not cleaned up after an error; `header` the manifest with
    layout and the fields about the source. For `audit` and `part` see `Audit`.

    Raises:
        FormatError: A batch does not conform to the first one.
        AuditError: A value read back differs.
        NoSpaceError, AccessError: Of the disk.
    """

    def __init__(
        self,
        folder: Path,
        header: Manifest,
        *,
        audit: AuditMode = DEFAULT_AUDIT,
        part: float = 1.0,
        announced: AnnouncedSize | None = None,
    ) -> None:
        keep_freed_memory()
        self.folder = folder
        self._header = header
        self._announced = announced or AnnouncedSize()
        self._audit = Audit(audit, part)
        self._counts = DatasetCounts()
        self._words = Vocabularies()
        self._sink = Sink(folder)
        self._begun: tuple[Schema, LayoutWriter] | None = None
        self._episodes: list[dict[Key, NDArray[Any]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.__exit__()

    def append(self, batch: EpisodeBatch) -> None:
        """Append whole episodes, which are written and audited in the background."""
        if not len(batch.lengths):
            self._counts.add(batch)
            return
        self._begun = self._begun or self._begin(batch)
        schema, rows = self._begun
        first_row, first = self._counts.counts["transitions"], self._counts.counts["episodes"]
        schema.conform(batch, first)
        rows.append(batch, first)
        self._episodes.append(episode_table(batch))
        self._counts.add(batch)
        # Read here, because later batches change both meanwhile.
        written = replace(self._header, tables=rows.tables, digests=rows.linked)
        reader = DatasetReader(self.folder, written)
        reader.vocabularies = self._words.by_table()
        self._sink.run(lambda: self._audit.check(batch, reader, first_row, first))

    def finish(self) -> Manifest:
        """Write the remaining files, check that the dataset opens, and write the manifest."""
        if self._begun is None:
            raise FormatError(f"{self._header.id} has no episodes")
        self._sink.drain()  # the audit runs there
        counts = self._counts.counts
        for what in ("transitions", "episodes"):
            stated, found = getattr(self._announced, what), counts[what]
            if stated is not None and stated != found:
                self._counts.notes += (f"The source states {stated:,} {what}; it has {found:,}.",)
        schema, rows = self._begun
        columns = join_episodes(self._episodes)
        audit = self._audit.to_json(counts["transitions"])
        contents = Contents(
            rows.tables, columns, schema.episodes, self._counts, audit, schema.two_copies
        )
        return finalize(self._sink, self._header, contents, self._words)

    def _begin(self, batch: EpisodeBatch) -> tuple[Schema, LayoutWriter]:
        schema = schema_of(batch)
        writer = LayoutWriter(self._header.layout, schema, self._sink, self._words)
        transitions = self._announced.transitions or batch.transitions
        episodes = self._announced.episodes or len(batch.lengths)
        needed = sum(file_sizes(with_counts(writer.tables, transitions, episodes)).values())
        needed += schema.encoded_bytes(transitions, transitions + episodes)
        try:
            require_bytes(self.folder, with_margin(needed), self._header.id)
        except NoSpaceError as error:
            raw = self._announced.raw_bytes
            if raw is None or needed <= _LARGEST_RATIO * raw:
                raise
            raise FormatError(
                f"{self._header.id} has {plural(transitions, 'step')} according to its "
                "metadata, "
                f"{human_bytes(needed)}; its files of {human_bytes(raw)} are too small for them",
                hint="the metadata are wrong: correct them, or fetch the files again",
            ) from error
        return schema, writer


def keep_freed_memory() -> None:
    """Make this process take new arrays from the memory of freed ones, of which glibc keeps 64 MiB.

    It returns more to the system than twice the largest array freed so far, and fresh pages for every
    array would take longer than filling them.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)  # larger ones do not count


def with_margin(size: int) -> int:
    """Return the free bytes that are required to write `size` bytes of rows with metadata.

    Example:
        >>> with_margin(100_000), with_margin(1 << 40) - (1 << 40)
        (1150138, 67108864)
    """
    return size + min(64 << 20, (1 << 20) + size // 64)


def episode_table(batch: EpisodeBatch) -> dict[Key, NDArray[Any]]:
    """Return `[E, …]` columns of the episode table for a batch; see `join_episodes`."""
    last = batch.last_rows
    return {
        ("start",): batch.starts,
        ("length",): batch.lengths,
        ("return",): batch.returns,
        ("terminated",): batch.steps[TERMINATED][last, 0].astype(bool),
        ("truncated",): batch.steps[TRUNCATED][last, 0].astype(bool),
        ("final_observation",): batch.final_observation,
        **batch.episodes,
    }


def join_episodes(tables: Sequence[Mapping[Key, NDArray[Any]]]) -> dict[Key, NDArray[Any]]:
    """Join episode tables; `start` becomes rows of the whole."""
    columns = {key: np.concatenate([table[key] for table in tables]) for key in tables[0]}
    lengths = columns["length",].astype(np.int64)
    columns["start",] = np.cumsum(lengths) - lengths
    return columns


@dataclass(frozen=True)
class Contents:
    """Facts about the rows written so far, for `finalize`."""

    tables: Mapping[str, TableSpec]  # tables whose files are complete
    episodes: Mapping[Key, NDArray[Any]]  # `[E, …]` columns of the episode table; text as `str`
    given: Mapping[Key, Column]  # dtypes of episode columns that do not follow from the arrays
    counts: DatasetCounts
    audit: Mapping[str, Any]  # the manifest's entry on rows that were read back
    two_copies: tuple[Key, ...] = ()
    digests: Mapping[str, Digest] = field(default_factory=dict)
    """Digests of files that the sink did not write."""


def finalize(sink: Sink, header: Manifest, contents: Contents, words: Vocabularies) -> Manifest:
    """Write the episode table and metadata, check that all can be read, and write the manifest.

    Adds words of episode columns to `words`. Raises `AuditError`, `NoSpaceError`, `AccessError`.
    """
    counts, columns, rows = contents.counts, {}, {}
    for key, values in contents.episodes.items():
        columns[key] = contents.given.get(key, Column(key, values.dtype, values.shape[1:]))
        rows[key] = encode_column(EPISODES, columns[key], values, words).__getitem__
    writer = TableWriter(pack(EPISODES, columns.values()), sink)
    writer.append(rows, counts.counts["episodes"])
    tables = {**contents.tables, EPISODES: writer.spec}
    for name, table in tables.items():
        for path, text in meta_files(name, table).items():
            sink.append(path, text.encode())
    listed = words.dump()
    if listed is not None:
        sink.append(TEXT, listed.encode())
    digests = {**contents.digests, **sink.finish()}
    manifest = replace(
        header,
        tables=tables,
        counts=dict(counts.counts),
        created=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        notes=join_notes([*header.notes, *counts.notes]),
        dropped=tuple(map(vars, dict.fromkeys([*header.dropped_leaves, *counts.dropped]))),
        skipped=(*header.skipped, *map(vars, counts.skipped)),
        non_finite=counts.non_finite_json(),
        audit=contents.audit,
        two_copies=contents.two_copies,
        digests=dict(sorted(digests.items())),
    )
    check_episodes(DatasetReader(sink.folder, manifest), contents.episodes)
    sink.append(MANIFEST, dump_manifest(manifest).encode())
    sink.finish()
    open_reader(sink.folder)
    return manifest
