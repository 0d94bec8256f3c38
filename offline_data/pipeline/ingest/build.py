"""Raw data into a dataset directory: read batch by batch, in order, and written.

Raw files are converted in a child process (`conversion.py`), which starts others to read where
that pays; what needs no parsing, a dataset directory of this package, in this process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offline_data.base.ahead import Ahead
from offline_data.base.config import Settings, usable_cores
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.ids import DatasetId
from offline_data.base.plurals import plural
from offline_data.base.version import __version__
from offline_data.episode.notes import join_notes
from offline_data.formats.base import PART_BYTES, Part, RandomAccess, RawDataset, Release, Shard
from offline_data.formats.corrections import reading_of
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.parsing import ParsedDataset
from offline_data.pipeline.jobs.executors import BYTES_A_SECOND
from offline_data.store.layout import LayoutName
from offline_data.store.library import Entry
from offline_data.store.manifest import HistoryStep, Manifest

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.episode import Dropped, EpisodeBatch, Skipped

_PARTS_PER_WORKER = 6
"""Parts a worker should get at least, so that none waits long for the last."""

_PROBES = 16
"""The first part is begun with two pieces of a sixteenth, to see how long reading takes."""

_WORTH_WORKERS = 1.0
"""Seconds that worker processes must be expected to save, to pay for their start."""
_PIPED_A_SECOND = 500e6
"""Bytes of rows that pass a pipe in a second."""


class StrictError(FormatError):
    """A sound source with a feature that cannot be kept, where `strict` allows none."""


class NoEpisodesError(NotFoundError):
    """A shard without episodes, or without any that were requested or could be read."""

    skipped: tuple[Skipped, ...] = ()
    """Episodes and features that are not in the dataset."""

    @classmethod
    def among(
        cls, seen: int, skipped: Sequence[Skipped], episodes: tuple[int | None, int | None] | None
    ) -> Self:
        """Return the error for a source of `seen` episodes besides those left out, and a range."""
        said = [
            f"The source has {plural(seen, 'episode')}" if seen else "The source has no episodes"
        ]
        if skipped:
            more = f", and {len(skipped) - 1:,} more" if len(skipped) > 1 else ""
            said.append(f"skipped {skipped[0].where}: {skipped[0].reason}{more}")
        if episodes:
            said.append("none is in the requested range")
        error = cls("; ".join(said))
        error.skipped = tuple(skipped)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Keep what was left out when it crosses a process boundary."""
        return (*super().__reduce__(), {"skipped": self.skipped})


@dataclass(frozen=True)
class BuildJob:
    """One dataset to be built."""

    id: DatasetId
    """Its id, with the revision that is written."""
    adapter: str
    """Source whose adapter reads the raw files."""
    layout: LayoutName
    """Layout to write."""
    destination: Path
    """The dataset directory."""
    options: Options = field(default_factory=Options)
    """Options of this run."""
    files: tuple[dict[str, Any], ...] = ()
    """Raw files, for the manifest."""
    parents: tuple[str, ...] = ()
    """Ids of datasets it is made from."""
    recorded_options: Mapping[str, Any] | None = None
    """Options the manifest keeps, where they are not those of this run (a change of layout, a shard
    of a dataset)."""
    history: tuple[HistoryStep, ...] = ()
    """Steps that the manifest keeps, where the dataset is only written in another layout."""
    reading: int | None = None
    """`converter.reading` of the dataset that is written in another layout; None: the adapter's now."""


@dataclass(frozen=True)
class Build:
    """A dataset to be built from the raw files of a release."""

    release: Release
    job: BuildJob
    copied: Entry | None = None
    """Dataset that is copied, since the options change nothing of it."""


def destination_of(dataset: DatasetId, settings: Settings) -> Path:
    """Return the directory of a dataset with a revision."""
    return settings.root / dataset.folder / (dataset.revision or "unversioned")


class DatasetBuild:
    """A dataset directory that is being written from raw data, batch by batch, in order.

    `job.options.episodes` are counted in the shard (None: `raw` has only one). Up to `workers`
    processes read, where `raw` can be read in several.

    Raises:
        FormatError: The raw data, or with `strict` a feature that cannot be kept.
        NotFoundError: They hold none of the requested episodes.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """

    def __init__(
        self,
        raw: RawDataset,
        job: BuildJob,
        workers: int,
        folder: Path,
        shard: Shard | None = None,
    ) -> None:
        from offline_data.store.writer import AnnouncedSize, DatasetWriter

        options = job.options
        self._strict = options.strict
        if options.strict:
            _refuse_dropped(raw.info.dropped)
        self.warnings = raw.info.warnings
        self.late_warnings: tuple[str, ...] = ()
        """Warnings about what has been read."""
        self.episodes: int | None = None
        shards, ranged = raw.shards(), as_random_access(raw)
        if ranged is not None:
            parts = chosen_parts(ranged.parts(PART_BYTES), options.episodes)
            self.episodes = parts[-1].stop - parts[0].first
            self._batches = read_parts(ranged, parts, workers)
        else:
            one = shards[0] if shard is None else shard
            self.episodes = one.episodes if options.episodes is None else None
            self._batches = read_shard(raw, one, options.episodes)
        if options.images == "raw":
            self._batches = decode_images(self._batches)
        announced = AnnouncedSize(episodes=self.episodes)
        if options.episodes is None and len(shards) == 1:
            raw_bytes = sum(file.get("size") or 0 for file in job.files) or None
            announced = AnnouncedSize(raw.info.transitions, raw.info.episodes, raw_bytes)
        self._writer = DatasetWriter(
            folder,
            _header(raw, job),
            audit=options.audit,
            part=_part_of(shards, shard),
            announced=announced,
        )
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def step(self) -> int:
        """Write the next part; returns its number of episodes, 0 when the directory is whole."""
        for batch in self._batches:
            if self._strict:
                _refuse_dropped(batch.dropped)
            self._writer.append(batch)
            self.late_warnings = join_notes((*self.late_warnings, *batch.warnings))
            if len(batch.lengths):
                return len(batch.lengths)
        if not self._finished:
            self._writer.finish()
            self._finished = True
        return 0


def as_random_access(raw: RawDataset) -> RandomAccess | None:
    """Return raw data as what has parts; None where they are read in order."""
    if isinstance(raw, ParsedDataset) and not raw.ranged:
        return None
    return raw if isinstance(raw, RandomAccess) else None


def chosen_parts(
    parts: Sequence[Part], episodes: tuple[int | None, int | None] | None
) -> list[Part]:
    """Cut parts to a half-open range of episodes.

    Raises:
        NotFoundError: The range holds no episode of the source.

    Example:
        >>> chosen_parts([Part(0, 4), Part(4, 9)], (2, 5))
        [Part(first=2, stop=4, transitions=None), Part(first=4, stop=5, transitions=None)]
    """
    count = parts[-1].stop if parts else 0
    first, stop = episodes or (None, None)
    first, stop = first or 0, count if stop is None else stop
    chosen = [
        part
        if first <= part.first and part.stop <= stop
        else Part(max(part.first, first), min(part.stop, stop))
        for part in parts
        if part.first < stop and first < part.stop
    ]
    if not chosen:
        raise NotFoundError(
            f"The source has {plural(count, 'episode')}; none is in the requested range"
        )
    return chosen


def _refuse_dropped(dropped: Sequence[Dropped]) -> None:
    if dropped:
        first = dropped[0]
        raise StrictError(
            f"--strict: {plural(len(dropped), 'leaf', 'leaves')} cannot be kept, first "
            f"{first.key!r}: {first.reason}",
            hint="without --strict they are left out and listed in the manifest under `dropped`",
        )


def _part_of(shards: Sequence[Shard], shard: Shard | None) -> float:
    """Return the share of a dataset that a shard is: by raw bytes, or if unknown, as any other."""
    if shard is None:
        return 1.0
    sizes = [each.bytes for each in shards if each.bytes]
    return (shard.bytes or 0) / sum(sizes) if len(sizes) == len(shards) else 1 / len(shards)


def _header(raw: RawDataset, job: BuildJob) -> Manifest:
    info = raw.info
    reading = reading_of(job.adapter) if job.reading is None else job.reading
    return Manifest(
        id=str(job.id),
        source=job.id.source,
        name=job.id.name,
        revision=job.id.revision or "",
        layout=job.layout,
        tables={},
        counts={},
        converter={
            "name": "offline-data",
            "version": __version__,
            "adapter": job.adapter,
            **({"reading": reading} if reading else {}),
            "options": job.recorded_options or job.options.recorded(),
        },
        files=job.files,
        spaces=info.spaces,
        environment=info.environment,
        about=info.about,
        licence=info.licence,
        citation=info.citation,
        notes=(*info.notes, *info.warnings),
        dropped=tuple(map(vars, info.dropped)),
        skipped=tuple(map(vars, info.skipped)),
        parents=job.parents,
        history=job.history,
    )


def read_shard(
    raw: RawDataset, shard: Shard, episodes: tuple[int | None, int | None] | None
) -> Iterator[EpisodeBatch]:
    """Yield the batches of a shard that is read in order, or of a range of its episodes.

    Raises:
        FormatError: What the adapter raised, or another number of episodes than it has stated.
        NoEpisodesError: There is none, or none in the range.
    """
    first, stop = episodes or (None, None)
    seen, chosen = 0, False
    skipped: list[Skipped] = []
    reading = iter(raw.read(shard))
    with closing(Ahead(reading)) if raw.own_thread else nullcontext(reading) as batches:
        for batch in batches:
            begin, seen = seen, seen + len(batch.lengths)
            skipped += batch.skipped
            end = len(batch.lengths) if stop is None else stop - begin
            wanted = batch.part(max(0, (first or 0) - begin), end)
            if len(wanted.lengths) or wanted.skipped or wanted.warnings:
                chosen = chosen or len(wanted.lengths) > 0
                yield wanted
            if stop is not None and seen >= stop:
                return
    if shard.episodes not in {None, seen} and not skipped:
        raise FormatError(f"it has {plural(seen, 'episode')}, and {shard.episodes} are stated")
    if not chosen:
        raise NoEpisodesError.among(seen, skipped, episodes)


def decode_images(batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Yield the episodes of batches with pixels in place of JPEG and PNG images.

    Pixels take far more memory: a batch is cut to pieces of about `PART_BYTES`, whole episodes each.
    Raises `FormatError` for an image that is damaged.
    """
    import numpy as np

    from offline_data.store.encoded import as_encoded, pixels_of

    for batch in batches:
        row = sum(prod(c.shape[1:]) * c.dtype.itemsize for c in batch.observations.values())
        most = max(1, PART_BYTES // max(1, row))
        begin = 0
        while begin < len(batch.lengths):
            rows = np.cumsum(batch.lengths[begin:])
            stop = begin + max(1, int(np.searchsorted(rows, most, "right")))
            piece = batch.part(begin, stop)
            pixels, steps = (
                {k: c if as_encoded(c) is None else pixels_of(c) for k, c in columns.items()}
                for columns in (piece.observations, piece.steps)
            )
            skipped = () if begin else batch.skipped
            yield replace(piece, steps=steps, observations=pixels, skipped=skipped)
            begin = stop
        if not len(batch.lengths):
            yield batch


def read_pieces(
    raw: RawDataset, shards: Sequence[Shard], skip: int
) -> Iterator[tuple[int, int, EpisodeBatch]]:
    """Yield the episodes of shards in batches, with the numbers of the first episode and row in them.

    The first `skip` episodes are read and left out. Raises what `read_shard` raises, but for shards
    without episodes.
    """
    episode = row = 0
    for shard in shards:
        with suppress(NoEpisodesError):
            for batch in read_shard(raw, shard, None):
                before = min(max(0, skip - episode), len(batch.lengths))
                wanted = batch.part(before, len(batch.lengths))
                if len(wanted.lengths) or batch.skipped:
                    first = row + batch.transitions - wanted.transitions
                    yield episode + before, first, wanted
                episode, row = episode + len(batch.lengths), row + batch.transitions


def read_parts(raw: RandomAccess, parts: Sequence[Part], workers: int) -> Iterator[EpisodeBatch]:
    """Yield the batch of every part, in order.

    A little is read first; where its time says that it pays, several processes read the rest in
    smaller parts, each every `workers`-th one, at most two parts ahead.

    Raises:
        FormatError: What the adapter raised, also in a worker.
    """
    parts = _with_probes(parts)
    for part in parts[:1]:  # its time is that of opening and importing, too
        yield raw.read_part(part)
    pays = False
    for part in parts[1:2]:
        begin = time.perf_counter()
        batch = raw.read_part(part)
        took, share = time.perf_counter() - begin, part.stop - part.first
        scale = (parts[-1].stop - part.stop) / share
        pays = not raw.threaded and _saves_time(took * scale, batch.nbytes * scale, workers)
        yield batch
    rest = parts[2:]
    if isinstance(raw, ParsedDataset) and pays:
        smaller = _pieces(rest, -(-_PARTS_PER_WORKER * workers // len(rest)))
        yield from raw.read_in_processes(smaller, min(workers, len(smaller)))
    else:
        with closing(Ahead(map(raw.read_part, rest))) as batches:
            yield from batches


def _saves_time(reading: float, rows: float, workers: int) -> bool:
    """Return True if processes would end earlier: `reading` are seconds in one, `rows` bytes.

    One process reads while a thread of it writes; of several, the rows also pass pipes.
    """
    cores, writing = usable_cores(), rows / BYTES_A_SECOND
    alone = max(reading, writing, (reading + writing) / min(cores, 2))
    work = reading + writing + rows / _PIPED_A_SECOND
    together = _WORTH_WORKERS + max(reading / workers, writing, work / cores)
    return workers > 1 and together < alone


def _with_probes(parts: Sequence[Part]) -> list[Part]:
    """Cut two small pieces off the beginning of the first part."""
    probes = _pieces(parts[:1], _PROBES)[:2]
    begun = probes[-1].stop
    rest = [Part(begun, parts[0].stop)] if begun < parts[0].stop else []
    return [*probes, *rest, *parts[1:]]


def _pieces(parts: Sequence[Part], count: int) -> list[Part]:
    """Cut each part into about `count` consecutive ones of as many episodes.

    Example:
        >>> [(p.first, p.stop) for p in _pieces([Part(0, 5), Part(5, 6)], 2)]
        [(0, 3), (3, 5), (5, 6)]
    """
    return [
        Part(first, min(first + step, part.stop))
        for part in parts
        for step in [-(-(part.stop - part.first) // count)]
        for first in range(part.first, part.stop, step)
    ]
