"""`convert`: make `local:NAME` from a local file or folder."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, UsageError
from offline_data.base.files import free_bytes
from offline_data.base.ids import DatasetId
from offline_data.base.progress import SILENT, Progress
from offline_data.formats.corrections import defects_of
from offline_data.formats.fingerprint import SAMPLED
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.build import Build, BuildJob
from offline_data.pipeline.ingest.conversion import open_release
from offline_data.pipeline.ingest.resolve import resolve_path
from offline_data.pipeline.ingest.shard_plan import ShardPlan, write_plan
from offline_data.pipeline.ingest.shards import clear_published, convert_shards, convert_whole
from offline_data.pipeline.jobs.executors import Executor
from offline_data.store.copies import write_copy
from offline_data.store.layout import LayoutName
from offline_data.store.library import Entry, Stored, entry_at, find, has_manifest, remove
from offline_data.store.publish import dataset_lock, publish, staging_folder


def convert(
    path: Path,
    name: str,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
    *,
    source: str | None = None,
    executor: Executor | None = None,
) -> Stored:
    """Convert a local file or folder, which is only read.

    A dataset directory that needs no change is copied, with its revision. `source`: whose format
    the path has; None: detected. Raises `NotFoundError` if there is no such path; `UsageError` if a
    dataset of that name, made from other files, exists, or the path could be of several sources;
    and `FormatError`, `AuditError`, `NoSpaceError`, `AccessError`, see `download`.
    """
    begin = time.perf_counter()
    with resolve_path(path, name, source, settings, options) as (process, build):
        job = build.job
        with dataset_lock(settings.staging, job.id.folder, progress):
            existed = _exists(build, path)
            if not existed:
                older = _find_older(build, settings)
                with staging_folder(settings.staging, job.id.folder, job.destination) as staging:
                    folder, sharded = staging / "dataset", None
                    if build.copied is not None:
                        _copy(build.copied, job, progress, folder)
                    else:
                        divide = executor is not None
                        sharded = convert_whole(
                            process, build, settings, progress, folder, divide=divide
                        )
                if sharded is not None:
                    convert_shards(sharded, settings, progress, executor)
                if older is not None:
                    remove(older)
    if existed:
        clear_published(job.id, settings)
    if existed and build.release.revision.endswith(SAMPLED):
        progress.note(
            f"{path} is large: only its size, time of change and samples of its content were "
            "compared; --force converts it again"
        )
    return Stored.of(entry_at(job.destination), begin, existed=existed)


@dataclass(frozen=True)
class ConvertPlan:
    """Plan of a conversion of local files; nothing has been changed."""

    id: DatasetId
    source: str
    """Source whose format the files have."""
    layout: LayoutName
    destination: Path
    existing: Path | None
    """Directory of an existing dataset that satisfies the request, if any; nothing is done then."""
    replaces: DatasetId | None
    """Dataset of the same name that would go."""
    files: int
    """Raw files, and their bytes."""
    bytes: int
    transitions: int | None
    """As the files state it, like the next one; of all files, for any requested range."""
    episodes: int | None
    free_bytes: int
    warnings: tuple[str, ...]
    """Facts that a user would not expect."""


def plan_convert(
    path: Path, name: str, settings: Settings, options: Options, *, source: str | None = None
) -> ConvertPlan:
    """Return what `convert` would do; opens the files, writes nothing. Raises as `convert` does."""
    with resolve_path(path, name, source, settings, options) as (process, build):
        job = build.job
        existing = job.destination if _exists(build, path) else None
        older = None if existing is not None else _find_older(build, settings)
        opened = process.open(partial(open_release, job.adapter, build.release))
    sizes = [file["size"] for file in job.files]
    return ConvertPlan(
        job.id,
        job.adapter,
        job.layout,
        job.destination,
        existing,
        None if older is None else older.id,
        sum(file.get("count", 1) for file in job.files),
        sum(sizes),
        opened.transitions,
        opened.episodes,
        free_bytes(settings.root),
        opened.warnings,
    )


def plan_convert_for_workers(
    path: Path,
    name: str,
    file: Path,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
    *,
    source: str | None = None,
) -> ShardPlan:
    """Write a plan with which several workers convert a folder, which has one path on all machines.

    See `plan_for_workers`. Raises what `convert` raises, and `UsageError` for another plan.
    """
    path = path.absolute()
    with resolve_path(path, name, source, settings, options, copies=False) as (process, build):
        job = build.job
        if _find_older(build, settings) is not None:
            dataset = replace(job.id, revision=None)
            raise UsageError(
                f"{dataset} already exists, made from other files or options",
                hint=f"delete it first: `offline-data rm {dataset}`",
            )
        there = has_manifest(job.destination) and not options.force
        sharded = convert_whole(process, build, settings, progress, job.destination, divide=True)
    made = None if there else sharded
    return write_plan(made, job.id, job.destination, file, settings, progress, force=options.force)


def _exists(build: Build, path: Path) -> bool:
    """Return True if the dataset to make is there; raises `UsageError` if other files are."""
    job, options = build.job, build.job.options
    if options.force or not has_manifest(job.destination):
        return False
    there = entry_at(job.destination).manifest
    if build.copied is None:
        if defects := defects_of(there, job.destination):
            raise UsageError(
                f"{job.id} already exists, made by an earlier version, which {defects[0]} "
                f"({job.destination})",
                hint="replace it with --force",
            )
        return options.layout in {None, there.layout} and options.accept(there)
    if there.digests != build.copied.manifest.digests:
        raise UsageError(
            f"{job.id} already exists, made from other files than {path} ({job.destination})",
            hint="choose another name, or replace it with --force",
        )
    return True


def _copy(entry: Entry, job: BuildJob, progress: Progress, folder: Path) -> None:
    """Copy a dataset directory, and publish it if the copy is intact; raises `IntegrityError`."""
    from offline_data.store.verify import verify  # imports numpy

    write_copy(entry, job.id, folder, progress)
    if problems := verify(folder, progress):
        first = problems[0]
        raise IntegrityError(
            f"{entry.path} is damaged: {first.file} {first.problem}",
            hint=f"`offline-data check --files {shlex.quote(str(entry.path))}` shows all that is",
        )
    publish(folder, job.destination, progress)


def _find_older(build: Build, settings: Settings) -> Entry | None:
    """Return the dataset of this name to replace, if any; by a range, none. Raises `UsageError`."""
    dataset = replace(build.job.id, revision=None)
    older = find(settings.root, dataset)
    if not build.job.options.whole or older is None or older.path == build.job.destination:
        return None
    if not build.job.options.force:
        raise UsageError(
            f"{dataset} already exists, made from other files or options ({older.path})",
            hint="choose another name, or replace it with --force",
        )
    return older
