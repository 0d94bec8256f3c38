"""`download`: fetch and convert a dataset once."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from offline_data.base.config import Settings, user_path
from offline_data.base.errors import IntegrityError, OfflineDataError, UsageError
from offline_data.base.files import (
    disk_errors,
    free_bytes,
    require_bytes,
    sync_folder,
    write_durably,
)
from offline_data.base.ids import SHARED, DatasetId, looks_like_path, parse_id
from offline_data.base.progress import SILENT, Progress
from offline_data.fetch.files import FetchedFile
from offline_data.fetch.plan import FetchPlan, plan_fetch
from offline_data.formats.corrections import defects_of
from offline_data.formats.options import Options, TextOptions
from offline_data.formats.registry import get_source
from offline_data.pipeline.ingest.build import Build, BuildJob, DatasetBuild
from offline_data.pipeline.ingest.conversion import ConversionProcess, finish_and_publish
from offline_data.pipeline.ingest.raw import (
    describe_file,
    fetch_files,
    forget_damaged,
    local_files,
    opening_files,
)
from offline_data.pipeline.ingest.resolve import (
    apply_options,
    changes_nothing,
    missing_error,
    on_disk,
    pinned_text,
    resolve,
    suggest_command,
)
from offline_data.pipeline.ingest.shard_plan import ShardPlan, write_plan
from offline_data.pipeline.ingest.shards import (
    ShardedJob,
    clear_published,
    convert_shards,
    convert_whole,
    without_folder,
)
from offline_data.pipeline.jobs.executors import Executor
from offline_data.store.cache import asked_to_stay
from offline_data.store.copies import place_file
from offline_data.store.history import extend_history
from offline_data.store.layout import MANIFEST, LayoutName
from offline_data.store.library import (
    Entry,
    Stored,
    entry_at,
    find,
    has_manifest,
    text_of,
)
from offline_data.store.manifest import HistoryStep, Manifest, dump_manifest, read_manifest
from offline_data.store.publish import dataset_lock, publish, staging_folder

_ORIGIN = "origin"  # field of the manifest: what the pushed manifest said of the dataset


def download(
    dataset: DatasetId,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
    *,
    executor: Executor | None = None,
    digests: Mapping[str, str] | None = None,
) -> Stored:
    """Fetch and convert a dataset, unless it is on this disk already.

    An existing dataset is used without network access; if the source's own files on this machine
    (`MINARI_DATASETS_PATH`) have changed, it is converted again. Two processes that request the
    same dataset do the work once. After an error or interrupt, finished shards are kept, and the
    same call resumes with the others. `executor` fetches and converts shards; None: local processes.
    `digests` are those that raw files must have, sha256 in hex by path, whatever is published.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: It cannot be fetched.
        IntegrityError: A raw file has another digest; nothing is published.
        FormatError, AuditError: Its files are damaged or invalid; nothing is published.
        NoSpaceError, AccessError: Of the disk.
    """
    begin, existed = time.perf_counter(), True
    with resolve(dataset, settings, options, digests) as found:
        if isinstance(found, Entry):
            entry = found
            clear_published(entry.id, settings)
            for problem in defects_of(entry.manifest, entry.path):
                progress.note(
                    f"{entry.id} was made by an earlier version, which {problem}: "
                    f"`offline-data download {entry.id} --force` makes it again"
                )
        else:
            entry, existed = _build(found, settings, progress, executor)
    if options.layout not in {None, entry.manifest.layout}:  # also if another process made it
        entry, existed = _rewrite(entry, settings, options, progress), False
    return Stored.of(entry, begin, existed=existed)


def ensure(
    dataset: str | os.PathLike[str] | DatasetId,
    *,
    settings: Settings,
    download: bool | Literal["force"] = True,
    revision: str | None = None,
    layout: LayoutName | None = None,
    text: TextOptions | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Return the directory of a dataset, downloading it first if necessary.

    Args:
        dataset: An id, or the path of a dataset directory; a path object is never an id.
        download: False: never download; `"force"`: fetch and convert again.
        revision: Revision of an id.
        layout: Layout it must have; None: any.
        text: How its text must be tokenized; None: in any way.

    Raises:
        NotFoundError: With `download=False`, it is not on this disk; else see `download`.
        UsageError: Invalid argument.
    """
    if download not in {True, False, "force"}:
        raise UsageError(f"download is {download!r}; expected True, False or 'force'")
    name = text_of(dataset)
    if revision is not None:
        if looks_like_path(name):
            raise UsageError(
                f"{name} is one revision of a dataset; revision={revision!r} is for ids"
            )
        name = str(parse_id(name).at(revision))
    options = Options(layout=layout, force=download == "force", text=pinned_text(text, settings))
    if looks_like_path(name) or has_manifest(Path(name)):
        found = entry_at(user_path(name, "the dataset"))
        if not options.accept(found.manifest):
            raise UsageError(
                f"{found.path} was tokenized with other options than text=… has",
                hint=f"its own: `offline-data info {shlex.quote(str(found.path))}`",
            )
        return found.path
    wanted = parse_id(name)
    if download is not False:
        return _download(wanted, settings, options, progress).path
    local = wanted.source == "local"
    entry = (
        find(settings.root, wanted, parts=local)
        if text is None
        else on_disk(wanted, settings, options)
    )
    if entry is None:
        raise missing_error(wanted, settings, options)
    if layout not in {None, entry.manifest.layout}:
        entry = _rewrite(entry, settings, options, progress)
    return entry.path


_download = download  # `ensure` has an argument of that name


@dataclass(frozen=True)
class DownloadPlan:
    """The result of `plan_download`; nothing has been changed."""

    id: DatasetId
    """The id, with the revision if it could be resolved."""
    destination: Path
    existing: Path | None
    """Its directory if it exists already; then nothing would be done."""
    fetch: FetchPlan | None
    """Files to fetch; None if they are on this machine already."""
    free_bytes: int
    """Free bytes on the disk of the root."""
    shards: int | None = None
    """Number of shards, which are fetched, converted and freed one by one; None if unknown."""


def plan_download(dataset: DatasetId, settings: Settings, options: Options) -> DownloadPlan:
    """Return what `download` would do, without doing it; queries the source."""
    with resolve(dataset, settings, options) as found:
        free = free_bytes(settings.root)
        if isinstance(found, Entry):
            return DownloadPlan(found.id, found.path, found.path, None, free)
    job, release, fetch = found.job, found.release, None
    if release.local is None:
        fetch = plan_fetch(release.files, settings, force=options.force)
    return DownloadPlan(job.id, job.destination, None, fetch, free, release.shards)


def fetch_raw(
    dataset: DatasetId, settings: Settings, options: Options, progress: Progress = SILENT
) -> Path:
    """Fetch only the raw files; returns the folder with them under their own names."""
    source = get_source(dataset.source)
    with suggest_command(dataset, settings, replace(options, raw_only=True)) as asking:
        release = source.resolve(dataset.name, dataset.revision, asking)
        if release.local is not None:
            return release.local
        release = apply_options(options, release, dataset.source)
        folder = settings.downloads / "raw" / dataset.at(release.revision).folder / release.revision
        fetch_files(release.files, settings, folder, progress, force=options.force)
    return folder


def plan_for_workers(
    dataset: DatasetId,
    file: Path,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
) -> ShardPlan:
    """Write a plan with which several workers download and convert a dataset, shard by shard.

    Only the files needed to open the dataset are fetched here. Finished shards of an interrupted
    `download` are reused, and `download` reuses those of the plan. `file` is on a shared
    filesystem, as the root is; `force` also replaces a plan. Raises what `download` raises, and
    `UsageError` if another plan exists, or a range of episodes cannot be divided into shards.
    """
    with resolve(dataset, settings, options) as found:
        if isinstance(found, Entry):
            sharded, target, destination = None, found.id, found.path
        else:
            target, destination = found.job.id, found.job.destination
            with dataset_lock(settings.staging, target.folder, progress):
                sharded = _convert(found, settings, progress, divide=True)
    return write_plan(sharded, target, destination, file, settings, progress, force=options.force)


def _build(
    build: Build, settings: Settings, progress: Progress, executor: Executor | None
) -> tuple[Entry, bool]:
    """Make a dataset, unless another process has meanwhile; returns it and whether one has."""
    job, options = build.job, build.job.options
    with dataset_lock(settings.staging, job.id.folder, progress):
        if not options.force and has_manifest(job.destination):
            entry = entry_at(job.destination)
            if options.accept(entry.manifest):
                return entry, True
        sharded = _convert(build, settings, progress, divide=executor is not None)
        if sharded is not None:
            convert_shards(sharded, settings, progress, executor)
        return entry_at(job.destination), False


def _convert(
    build: Build, settings: Settings, progress: Progress, *, divide: bool
) -> ShardedJob | None:
    """Fetch the files needed to open a release, open it, and convert it as `convert_whole` does.

    After a failure fetched files stay for the next attempt; after success they are deleted unless
    `options.keep_raw`, or kept by an earlier command. The caller holds the lock.
    """
    from offline_data.fetch.cache import discard

    release, job, options = build.release, build.job, build.job.options
    stay, files = asked_to_stay(settings), opening_files(release)
    with staging_folder(settings.staging, job.id.folder, job.destination) as staging:
        path = release.local or staging / "raw"
        fetched: tuple[FetchedFile, ...] = ()
        if release.local is None:
            fetched = fetch_files(files, settings, path, progress, force=options.force)
            recorded = tuple(map(describe_file, fetched))
        else:
            recorded = local_files(path)
        build, folder = replace(build, job=replace(job, files=recorded)), staging / "dataset"
        with (
            _name_dataset(job.id, staging),
            forget_damaged(fetched, files, settings, stay),
            ConversionProcess(path) as process,
        ):
            sharded = None
            if not _publish_pulled(build, fetched, path, settings, progress, folder):
                sharded = convert_whole(process, build, settings, progress, folder, divide=divide)
    if sharded is None and not options.keep_raw:
        discard([file for file in fetched if file.sha256 not in stay], settings)
    return sharded


@contextmanager
def _name_dataset(dataset: DatasetId, staging: Path) -> Iterator[None]:
    """Make errors of the block name a dataset in place of the folder that raw files are fetched to."""
    try:
        yield
    except OfflineDataError as error:
        said = without_folder(error.message, staging / "raw")
        if said == error.message:
            raise
        raise type(error)(f"{dataset}: {said}", hint=error.shell_hint) from error


def _rewrite(entry: Entry, settings: Settings, options: Options, progress: Progress) -> Entry:
    from offline_data.formats.local import StoredEpisodes

    manifest, destination, folder = entry.manifest, entry.path, entry.id.folder
    job = BuildJob(
        entry.id,
        manifest.converter.get("adapter", entry.id.source),
        options.layout or "compact",
        destination,
        replace(options, episodes=None),
        tuple(dict(file) for file in manifest.files),
        manifest.parents,
        manifest.converter.get("options"),
        manifest.history,
        manifest.converter.get("reading", 0),
    )
    with (
        dataset_lock(settings.staging, folder, progress),
        staging_folder(settings.staging, folder, destination) as staging,
    ):
        raw, new = StoredEpisodes(destination), staging / "dataset"
        with DatasetBuild(raw, job, settings.workers, new) as build:
            finish_and_publish(build, job, progress, new)
    return entry_at(destination)


def _publish_pulled(
    build: Build,
    fetched: Sequence[FetchedFile],
    raw: Path,
    settings: Settings,
    progress: Progress,
    folder: Path,
) -> bool:
    """Publish a pushed dataset byte by byte; returns whether it is to be used unchanged.

    Files of the downloads folder are linked, those of the user's are copied.
    """
    from offline_data.store.verify import verify  # imports numpy

    manifest = read_manifest(raw) if build.job.adapter == SHARED else None
    if manifest is None or not changes_nothing(manifest, build.job.options):
        return False
    with disk_errors(folder), progress.task(f"place {build.job.id}", manifest.bytes, "B") as bar:
        folder.mkdir()
        own = {file.name: file.path.is_relative_to(settings.downloads) for file in fetched}
        copied = sum(int(one["size"]) for name, one in manifest.digests.items() if not own[name])
        require_bytes(folder, copied, f"A copy of {build.release.name}")
        for name, digest in manifest.digests.items():
            source = (raw / name).resolve()
            place_file(source, folder / name, digest, bar, move=own[name])
        # first as it was pushed, so that its own digest is compared, too
        write_durably(folder / MANIFEST, (raw / MANIFEST).read_bytes())
        if problems := verify(folder, progress):
            first = problems[0]
            raise IntegrityError(
                f"{build.release.name} is not a sound dataset: {first.file} {first.problem}",
                hint="its files are those that were pushed: ask its owner to push it again",
            )
        write_durably(
            folder / MANIFEST, dump_manifest(_rename_manifest(manifest, build.job)).encode()
        )
        for path in {folder, *(path for path in folder.rglob("*") if path.is_dir())}:
            sync_folder(path)
    publish(folder, build.job.destination, progress)
    return True


def _rename_manifest(pushed: Manifest, job: BuildJob) -> Manifest:
    """Return the manifest with the id and the files that the dataset has here, and its origin."""
    about: dict[str, Any] = {name: getattr(pushed, name) for name in ("id", "parents", "files")}
    options = dict(pushed.converter.get("options") or {})
    # a range of its source's episodes: here it is the whole dataset
    ranges = {name: options.pop(name) for name in ("episodes", "checkpoints") if name in options}
    step = HistoryStep("download", str(job.id), (pushed.id,), options=ranges)
    return replace(
        pushed,
        id=str(job.id),
        source=job.id.source,
        name=job.id.name,
        revision=str(job.id.revision),
        files=job.files,
        parents=(pushed.id,),
        history=extend_history([pushed], step),
        converter={**pushed.converter, "options": options} if ranges else pushed.converter,
        extra={**pushed.extra, _ORIGIN: {**about, **ranges}},
    )
