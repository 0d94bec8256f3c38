"""Raw files into a published dataset directory: the one place where both meet."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError, NotFoundError
from offline_data.ingest.reading import BUDGET, read_parts
from offline_data.sources.base import Part
from offline_data.store.manifest import Manifest
from offline_data.store.publish import publish
from offline_data.store.writer import Announced, DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.episodes import Dropped
    from offline_data.ids import DatasetId
    from offline_data.ingest.options import Options
    from offline_data.progress import Progress
    from offline_data.sources.base import RawDataset
    from offline_data.store.layout import LayoutName


@dataclass(frozen=True)
class Job:
    """One dataset to be built."""

    id: DatasetId
    """Its id, with the revision that is written."""
    adapter: str
    """Source whose adapter reads the raw files."""
    layout: LayoutName
    """Layout to write."""
    destination: Path
    """The dataset directory."""
    files: tuple[dict[str, Any], ...] = ()
    """Raw files, for the manifest."""
    parents: tuple[str, ...] = ()
    """Ids of datasets it is made from."""
    recorded_options: Mapping[str, Any] | None = None
    """Options the manifest keeps, where they are not those of this run (a change of layout)."""


def destination_of(dataset: DatasetId, settings: Settings) -> Path:
    """Return the directory of a dataset with a revision."""
    return settings.root / dataset.folder / (dataset.revision or "unversioned")


def build(
    raw: RawDataset,
    job: Job,
    options: Options,
    settings: Settings,
    progress: Progress,
    staging: Path,
) -> Manifest:
    """Read all parts, write, audit and publish; returns the manifest of what is there now.

    Raises:
        FormatError: The raw files, or with `strict` a leaf that cannot be kept.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    if options.strict:
        _refuse_dropped(raw.info.dropped)
    parts = chosen_parts(raw.parts(BUDGET), options.episodes)
    writer = DatasetWriter(
        staging / "dataset",
        _header(raw, job, options),
        audit=options.audit,
        announced=_announced(raw, parts, options),
    )
    total = parts[-1].stop - parts[0].first
    with writer, progress.task(f"convert {job.id.name}", total, "episodes") as task:
        for batch in read_parts(raw, parts, settings.workers):
            if options.strict:
                _refuse_dropped(batch.dropped)
            writer.append(batch)
            task.advance(len(batch.lengths))
        manifest = writer.finish()
    for kept in publish(staging / "dataset", job.destination):
        progress.note(f"{kept} is not the dataset's, and was kept")
    return manifest


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
    if episodes is None:
        chosen = list(parts)
    else:
        first, stop = episodes[0] or 0, episodes[1]
        chosen = [cut for part in parts if (cut := _cut(part, first, stop))]
    if not chosen:
        count = parts[-1].stop if parts else 0
        raise NotFoundError(f"The source has {count} episodes; none is in the range asked for")
    return chosen


def _cut(part: Part, first: int, stop: int | None) -> Part | None:
    begin, end = max(part.first, first), part.stop if stop is None else min(part.stop, stop)
    if begin >= end:
        return None
    whole = (begin, end) == (part.first, part.stop)
    return part if whole else Part(begin, end)


def _announced(raw: RawDataset, parts: Sequence[Part], options: Options) -> Announced:
    if options.episodes is None:
        return Announced(raw.info.transitions, raw.info.episodes)
    return Announced(episodes=parts[-1].stop - parts[0].first)


def _refuse_dropped(dropped: Sequence[Dropped]) -> None:
    if dropped:
        first = dropped[0]
        raise FormatError(
            f"--strict: {len(dropped)} leaves cannot be kept, first {first.key!r}: {first.reason}",
            hint="without --strict they are left out and listed in the manifest under `dropped`",
        )


def _header(raw: RawDataset, job: Job, options: Options) -> Manifest:
    info = raw.info
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
            "version": package_version(),
            "adapter": job.adapter,
            "options": job.recorded_options or options.to_json(),
        },
        files=job.files,
        spaces=info.spaces,
        environment=info.environment,
        about=info.about,
        licence=info.licence,
        citation=info.citation,
        notes=info.notes,
        dropped=tuple(vars(leaf) for leaf in info.dropped),
        parents=job.parents,
    )


def package_version() -> str:
    """Return the installed version of this package, `0` in a tree that is not installed."""
    try:
        return version("offline-data")
    except PackageNotFoundError:
        return "0"
