"""`convert`: make `local:NAME` from a local file or folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, UsageError
from offline_data.base.files import free_bytes
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.progress import SILENT, Progress
from offline_data.formats.corrections import defects_of
from offline_data.formats.fingerprint import SAMPLED
from offline_data.formats.options import Options
from offline_data.formats.registry import (
    FolderOfDatasetsError,
    check_plain,
    get_source,
    source_names,
)
from offline_data.pipeline.ingest.build import Build, BuildJob, destination_of
from offline_data.pipeline.ingest.conversion import ConversionProcess, open_release
from offline_data.pipeline.ingest.options import ConvertPlan, apply_options
from offline_data.pipeline.ingest.raw import local_files
from offline_data.pipeline.ingest.shard_plan import ShardPlan, write_plan
from offline_data.pipeline.ingest.shards import clear_published, convert_shards, convert_whole
from offline_data.pipeline.jobs.executors import Executor
from offline_data.store.copies import write_copy
from offline_data.store.library import Entry, Stored, entry_at, find, has_manifest, remove
from offline_data.store.manifest import Manifest
from offline_data.store.publish import dataset_lock, publish, staging_folder

if TYPE_CHECKING:
    from offline_data.formats.files.proposal import Inspection

_UNVERSIONED = "unversioned"


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
    with _resolve(path, name, source, settings, options) as (process, build):
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


def plan_convert(
    path: Path, name: str, settings: Settings, options: Options, *, source: str | None = None
) -> ConvertPlan:
    """Return what `convert` would do; opens the files, writes nothing. Raises as `convert` does."""
    with _resolve(path, name, source, settings, options) as (process, build):
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


def inspect_files(path: Path) -> Inspection:
    """List a path's arrays in a child process, propose a mapping; raises as `read_head` does."""
    check_plain(path)
    with ConversionProcess(path) as process:
        return process.inspect()


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
    with _resolve(path, name, source, settings, options, copies=False) as (process, build):
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


def new_id(name: str) -> DatasetId:
    """Return the id of a new dataset called `NAME` or `local:NAME`; raises `UsageError`."""
    dataset = parse_id(name if name.startswith("local:") else f"local:{name}")
    if dataset.revision:
        raise UsageError(
            f"{name!r} cannot be the name of a new dataset: its revision is that of the data",
            hint=f"choose a name without @, {dataset.name} for one",
        )
    return dataset


@contextmanager
def _resolve(
    path: Path,
    name: str,
    source: str | None,
    settings: Settings,
    options: Options,
    *,
    copies: bool = True,
) -> Iterator[tuple[ConversionProcess, Build]]:
    """Yield a process for a path, or the only dataset in a folder, and the build of the dataset.

    `copies`: whether a dataset of which nothing changes keeps revision and layout.
    """
    dataset = new_id(name)
    check_plain(path)
    if source is not None and source not in source_names():
        get_source(source)  # raises
    if options.mapping is not None:
        if source not in {None, "files"}:
            raise UsageError(
                f"--mapping describes files of your own, and --from {source} is a format",
                hint="leave one of the two out",
            )
        source = "files"
    elif source is None and options.text is not None and not has_manifest(path):
        source = "text"
    with ExitStack() as stack:
        process = stack.enter_context(ConversionProcess(path))
        try:
            adapter, release = process.describe(source, dataset.name)
        except FolderOfDatasetsError as error:
            if len(error.found) > 1:
                raise
            ((path, source),) = error.found.items()
            process = stack.enter_context(ConversionProcess(path))
            adapter, release = process.describe(source, dataset.name)
        release = apply_options(options, release, adapter)
        options = release.options
        own = entry_at(path) if adapter == "local" else None
        copied = own if own and copies and changes_nothing(own.manifest, options) else None
        if path.resolve().parent == (settings.root / dataset.folder).resolve():
            release = replace(release, revision=path.resolve().name)  # rewritten in place
        elif copied is not None:
            release = replace(release, revision=copied.id.revision or _UNVERSIONED)
        target = dataset.at(options.revision_of(release.revision))
        job = BuildJob(
            target,
            adapter,
            (options.layout or "compact") if copied is None else copied.manifest.layout,
            destination_of(target, settings),
            local_files(path),
            () if own is None else (own.manifest.id,),
        )
        yield process, Build(release, job, options, copied)


def changes_nothing(manifest: Manifest, options: Options) -> bool:
    """Return True if a dataset directory has all that is requested, so that a copy is enough."""
    if not options.whole or options.skip_bad_episodes or options.split is not None:
        return False
    return options.layout in {None, manifest.layout} and options.accept(manifest)


def _exists(build: Build, path: Path) -> bool:
    """Return True if the dataset to make is there; raises `UsageError` if other files are."""
    job, options = build.job, build.options
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
    if not build.options.whole or older is None or older.path == build.job.destination:
        return None
    if not build.options.force:
        raise UsageError(
            f"{dataset} already exists, made from other files or options ({older.path})",
            hint="choose another name, or replace it with --force",
        )
    return older
