"""Raw data into a dataset directory.

Raw files are converted in a child process (`conversion.py`), which starts others to read where
that pays; what needs no parsing, a dataset directory of this package, in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.base.ids import DatasetId
from offline_data.base.plurals import plural
from offline_data.base.version import __version__
from offline_data.episode.notes import join_notes
from offline_data.formats.base import PART_BYTES, RandomAccess, RawDataset, Release, Shard
from offline_data.formats.corrections import reading_of
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.reading import (
    chosen_parts,
    decode_images,
    read_parts,
    read_shard,
)
from offline_data.store.layout import LayoutName
from offline_data.store.library import Entry
from offline_data.store.manifest import HistoryStep, Manifest

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.episode import Dropped


class StrictError(FormatError):
    """A sound source with a feature that cannot be kept, where `strict` allows none."""


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
        shards = raw.shards()
        if isinstance(raw, RandomAccess):
            parts = chosen_parts(raw.parts(PART_BYTES), options.episodes)
            self.episodes = parts[-1].stop - parts[0].first
            self._batches = read_parts(raw, parts, workers)
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


def _refuse_dropped(dropped: Sequence[Dropped]) -> None:
    if dropped:
        first = dropped[0]
        raise StrictError(
            f"--strict: {plural(len(dropped), 'feature')} cannot be kept, first "
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
