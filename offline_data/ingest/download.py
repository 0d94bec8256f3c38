"""`download`: fetch and convert a dataset once."""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from offline_data.config import ARGUMENT, CONFIG_FILE, user_path
from offline_data.errors import (
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.files import free_bytes
from offline_data.ids import DatasetId, did_you_mean, looks_like_path
from offline_data.ingest.build import (
    BuildJob,
    DatasetBuild,
    destination_of,
)
from offline_data.ingest.conversion import ConversionProcess, finish_and_publish
from offline_data.ingest.options import DownloadPlan, Stored, apply_options, pinned_text
from offline_data.ingest.raw import (
    described,
    fetch_files,
    forgetting_damaged,
    local_files,
    opening_files,
    with_digests,
)
from offline_data.ingest.shard_plan import ShardPlan, write_plan
from offline_data.ingest.shards import (
    ShardedJob,
    clear_published,
    convert_shards,
    convert_whole,
    without_folder,
)
from offline_data.progress import SILENT
from offline_data.sources.options import Options, format_range, to_arguments
from offline_data.sources.registry import get_source
from offline_data.store.cache import asked_to_stay
from offline_data.store.library import (
    Entry,
    entry_at,
    find,
    has_manifest,
    how_to_get,
    list_datasets,
    newest,
    parse_known,
    revisions,
    text_of,
)
from offline_data.store.publish import dataset_lock, staging_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from offline_data.config import Settings
    from offline_data.executors.base import Executor
    from offline_data.fetch.files import FetchedFile
    from offline_data.progress import Progress
    from offline_data.sources.base import Release, Source
    from offline_data.sources.options import TextOptions
    from offline_data.store.layout import LayoutName


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
    same call resumes with the others.

    Args:
        dataset: Its id.
        settings: Root, workers, mirrors.
        options: Layout, episodes, audit, raw files to keep.
        progress: Receives progress and notes.
        executor: Fetches and converts shards; None: local processes.
        digests: Digests that raw files must have, sha256 in hex by path, whatever is published.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: It cannot be fetched.
        IntegrityError: A raw file has another digest; nothing is published.
        FormatError, AuditError: Its files are damaged or invalid; nothing is published.
        NoSpaceError, AccessError: Of the disk.
    """
    begin = time.perf_counter()
    existing = None if options.force else on_disk(dataset, settings, options)
    if existing is not None:
        clear_published(existing.id, settings)
    if existing is not None and options.layout in {None, existing.manifest.layout}:
        return _result(existing, begin, existed=True)
    if existing is not None:
        return _result(_rewrite(existing, settings, options, progress), begin)
    source = get_source(dataset.source)
    with naming_the_command(dataset, settings, options) as asking:
        release = source.resolve(dataset.name, dataset.revision, asking)
        release = with_digests(apply_options(options, release, dataset.source), digests or {})
        entry, existed = _build_release(
            dataset, source, release, settings, options, progress, executor
        )
    if options.layout not in {None, entry.manifest.layout}:  # another process made it meanwhile
        return _result(_rewrite(entry, settings, options, progress), begin)
    return _result(entry, begin, existed=existed)


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
        dataset: An id, or the path of a dataset directory; a path object is a path, also where its
            text could be an id.
        settings: Root, offline mode, workers.
        download: False: never download; `"force"`: fetch and convert again.
        revision: Revision of an id.
        layout: Layout it must have; None: any.
        text: How its text must be tokenized; None: in any way.
        progress: Receives progress and notes.

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
        name = str(parse_known(name, settings.root).at(revision))
    options = Options(layout=layout, force=download == "force", text=pinned_text(text, settings))
    if looks_like_path(name) or has_manifest(Path(name)):
        found = entry_at(user_path(name, "the dataset"))
        if not options.accept(found.manifest):
            raise UsageError(
                f"{found.path} was tokenized with other options than text=… has",
                hint=f"its own: `offline-data info {shlex.quote(str(found.path))}`",
            )
        return found.path
    wanted = parse_known(name, settings.root)
    if download is not False:
        return _download(wanted, settings, options, progress).path
    entry = find(settings.root, wanted) if text is None else on_disk(wanted, settings, options)
    if entry is None:
        raise NotFoundError(
            f"{_missing(wanted, options)} (looked in {settings.root})",
            hint=_did_you_mean(wanted, settings)
            or _other_tokens(wanted, settings, options)
            or f"load it with download=True; {how_to_get(wanted)}",
        )
    if layout not in {None, entry.manifest.layout}:
        entry = _rewrite(entry, settings, options, progress)
    return entry.path


_download = download  # `ensure` has an argument of that name


def plan_download(dataset: DatasetId, settings: Settings, options: Options) -> DownloadPlan:
    """Return what `download` would do, without doing it; queries the source."""
    existing = None if options.force else on_disk(dataset, settings, options)
    free = free_bytes(settings.root)
    if existing is not None:
        return DownloadPlan(existing.id, existing.path, existing.path, None, free)
    with naming_the_command(dataset, settings, options) as asking:
        source = get_source(dataset.source)
        release = source.resolve(dataset.name, dataset.revision, asking)
        release = apply_options(options, release, dataset.source)
    target = dataset.at(options.revision_of(release.revision))
    fetch = None
    if release.local is None:
        from offline_data.fetch.plan import plan_fetch

        fetch = plan_fetch(release.files, settings, force=options.force)
    destination = destination_of(target, settings)
    return DownloadPlan(target, destination, None, fetch, free, release.shards)


def fetch_raw(
    dataset: DatasetId, settings: Settings, options: Options, progress: Progress = SILENT
) -> Path:
    """Fetch only the raw files; returns the folder with them under their own names."""
    source = get_source(dataset.source)
    with naming_the_command(dataset, settings, replace(options, raw_only=True)) as asking:
        release = source.resolve(dataset.name, dataset.revision, asking)
        if release.local is not None:
            return release.local
        release = apply_options(options, release, dataset.source)
        folder = settings.downloads / "raw" / dataset.at(release.revision).folder / release.revision
        fetch_files(release.files, settings, folder, progress, force=options.force)
    return folder


def on_disk(dataset: DatasetId, settings: Settings, options: Options) -> Entry | None:
    """Find a dataset that satisfies the options under the root, else None; uses no network."""
    if dataset.revision:
        entry = find(settings.root, dataset.at(options.revision_of(dataset.revision)))
    elif options.whole and options.text is None:
        entry = find(settings.root, dataset)
    else:
        home = settings.root / dataset.folder
        entry = newest(revisions(home, f"*{options.revision_of('')}")[0])
    if entry is None or dataset.source == "local":
        return entry
    if not options.accept(entry.manifest):
        return None
    if dataset.revision or not str(entry.id.revision).startswith("local-"):
        return entry
    try:  # the source's own files on this machine may have changed since
        release = get_source(dataset.source).resolve(
            dataset.name, None, replace(settings, offline=True)
        )
    except OfflineDataError:  # they are gone: use the existing dataset
        return entry
    return entry if options.revision_of(release.revision) == entry.id.revision else None


def plan_for_workers(
    dataset: DatasetId,
    file: Path,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
) -> ShardPlan:
    """Write a plan with which several workers download and convert a dataset, shard by shard.

    Only the files needed to open the dataset are fetched here. Finished shards of an interrupted
    `download` are reused, and `download` reuses those of the plan.

    Args:
        dataset: Its id.
        file: The plan, on a shared filesystem, as the root is.
        settings: Root, mirrors.
        options: Layout, episodes, audit, raw files to keep; `force` also replaces a plan.
        progress: Receives progress and notes.

    Raises:
        UsageError: Another plan exists, or a range of episodes cannot be divided into shards.
        Others: See `download`.
    """
    existing = None if options.force else on_disk(dataset, settings, options)
    if existing is not None:
        return write_plan(None, existing.id, existing.path, file, settings, progress, force=False)
    source = get_source(dataset.source)
    with naming_the_command(dataset, settings, options) as asking:
        release = source.resolve(dataset.name, dataset.revision, asking)
        release = apply_options(options, release, dataset.source)
        target = dataset.at(options.revision_of(release.revision))
        job = BuildJob(
            target, source.name, options.layout or "compact", destination_of(target, settings)
        )
        with dataset_lock(settings.staging, target.folder, progress):
            sharded = convert_release(release, job, settings, options, progress, divide=True)
    return write_plan(
        sharded, target, job.destination, file, settings, progress, force=options.force
    )


def _build_release(
    dataset: DatasetId,
    source: Source,
    release: Release,
    settings: Settings,
    options: Options,
    progress: Progress,
    executor: Executor | None,
) -> tuple[Entry, bool]:
    target = dataset.at(options.revision_of(release.revision))
    destination = destination_of(target, settings)
    with dataset_lock(settings.staging, target.folder, progress):
        if not options.force and has_manifest(destination):
            entry = entry_at(destination)
            if options.accept(entry.manifest):
                return entry, True
        job = BuildJob(target, source.name, options.layout or "compact", destination)
        sharded = convert_release(
            release, job, settings, options, progress, divide=executor is not None
        )
        if sharded is not None:
            convert_shards(sharded, settings, progress, executor)
        return entry_at(destination), False


def convert_release(
    release: Release,
    job: BuildJob,
    settings: Settings,
    options: Options,
    progress: Progress,
    *,
    divide: bool,
) -> ShardedJob | None:
    """Fetch the files needed to open a release, open it, and convert it as `convert_whole` does.

    After a failure fetched files stay for the next attempt; after success they are deleted unless
    `options.keep_raw`, or kept by an earlier command. The caller holds the lock.
    """
    from offline_data.fetch.cache import discard

    stay, files = asked_to_stay(settings), opening_files(release)
    with staging_folder(settings.staging, job.id.folder, job.destination) as staging:
        path = release.local or staging / "raw"
        fetched: tuple[FetchedFile, ...] = ()
        if release.local is None:
            fetched = fetch_files(files, settings, path, progress, force=options.force)
        described_files = (
            tuple(map(described, fetched)) if release.local is None else local_files(path)
        )
        with (
            _naming(job.id, staging),
            forgetting_damaged(fetched, files, settings, stay),
            ConversionProcess(path) as process,
        ):
            sharded = convert_whole(
                process,
                release,
                replace(job, files=described_files),
                options,
                settings,
                progress,
                staging / "dataset",
                divide=divide,
            )
    if sharded is None and not options.keep_raw:
        discard([file for file in fetched if file.sha256 not in stay], settings)
    return sharded


@contextmanager
def _naming(dataset: DatasetId, staging: Path) -> Iterator[None]:
    """Make errors of the block name a dataset in place of the folder that raw files are fetched to."""
    try:
        yield
    except OfflineDataError as error:
        said = without_folder(error.message, staging / "raw")
        if said == error.message:
            raise
        raise type(error)(f"{dataset}: {said}", hint=error.shell_hint) from error


def _rewrite(entry: Entry, settings: Settings, options: Options, progress: Progress) -> Entry:
    """Rewrite an existing dataset in the other layout, from its own directory."""
    from offline_data.sources.local import StoredEpisodes

    manifest, destination, folder = entry.manifest, entry.path, entry.id.folder
    job = BuildJob(
        entry.id,
        manifest.converter.get("adapter", entry.id.source),
        options.layout or "compact",
        destination,
        tuple(dict(file) for file in manifest.files),
        manifest.parents,
        manifest.converter.get("options"),
    )
    whole = replace(options, episodes=None)
    with (
        dataset_lock(settings.staging, folder, progress),
        staging_folder(settings.staging, folder, destination) as staging,
    ):
        raw, new = StoredEpisodes(destination), staging / "dataset"
        with DatasetBuild(raw, job, whole, settings.workers, new) as build:
            finish_and_publish(build, job, progress, new)
    return entry_at(destination)


def _result(entry: Entry, begin: float, *, existed: bool = False) -> Stored:
    return Stored(entry.id, entry.path, entry.manifest, existed, time.perf_counter() - begin)


@contextmanager
def naming_the_command(
    dataset: DatasetId, settings: Settings, options: Options
) -> Iterator[Settings]:
    """Add the dataset, and the command to run online, to an `OfflineError` of the block.

    The hint of any `NetworkError` has the nearest names if the name is in no catalogue. It is likely
    misspelt then, and the settings that this yields let a host be asked once, without retries.

    Args:
        dataset: The requested dataset.
        settings: Root, and the origin of offline mode.
        options: Requested options.
    """
    near = _did_you_mean(dataset, settings)
    once = replace(settings, transfer=replace(settings.transfer, tries=1))
    try:
        yield once if near else settings
    except OfflineError:
        command = online_command(dataset, settings, options)
        raise OfflineError(
            f"{_missing(dataset, options)}, and offline mode is on",
            hint=near or f"online: `{command}`; {offline_advice(settings)}",
        ) from None
    except NotFoundError as error:
        other = _other_tokens(dataset, settings, options)
        if other is None or dataset.source != "local":
            raise
        raise NotFoundError(_missing(dataset, options), hint=other) from error
    except NetworkError as error:
        if not near:
            raise
        hint = " ".join(filter(None, (near, error.shell_hint)))
        raise type(error)(error.message, hint=hint) from error


def online_command(dataset: DatasetId, settings: Settings, options: Options) -> str:
    """Return the shell command that downloads a dataset with these options.

    Example:
        >>> from offline_data.config import Settings
        >>> from offline_data.ids import parse_id
        >>> from offline_data.sources.options import Options
        >>> options = Options(episodes=(0, 10))
        >>> online_command(parse_id("d4rl:pen-human-v1"), Settings("/data"), options)
        'offline-data download d4rl:pen-human-v1 --episodes 0:10'
    """
    words = ["offline-data", "download", str(dataset)]
    if settings.origins.get("root") == ARGUMENT:
        words += ["--root", str(settings.root)]
    return shlex.join([*words, *to_arguments(options)])


def _missing(dataset: DatasetId, options: Options) -> str:
    if options.force:
        return f"{dataset} cannot be fetched again from this disk"
    if options.episodes:
        return f"Episodes {format_range(options.episodes)} of {dataset} are not on this disk"
    tokens = ", tokenized with these options," if options.text else ""
    return f"{dataset}{tokens} is not on this disk"


def _other_tokens(dataset: DatasetId, settings: Settings, options: Options) -> str | None:
    """Return a hint if a dataset is here, but its text was tokenized with other options."""
    here = options.text and find(settings.root, dataset)
    return (
        f"the one here was tokenized with others: `offline-data info {here.id}`" if here else None
    )


def _did_you_mean(dataset: DatasetId, settings: Settings) -> str | None:
    """Return a hint with the nearest known names, if a name is neither in a catalogue nor here."""
    known = known_names(dataset.source)
    if dataset.name not in known:
        here = (entry.id for entry in list_datasets(settings.root))
        known += [one.name for one in here if one.source == dataset.source]
    if dataset.name in known:
        return None
    return did_you_mean(dataset.name, known, count=3, shown=f"{dataset.source}:{{}}".format)


def offline_advice(settings: Settings) -> str:
    """Return what turned offline mode on, and how to turn it off."""
    origin = settings.origins.get("offline", ARGUMENT)
    if origin == ARGUMENT:
        return "leave out --offline where there is a network"
    if origin == CONFIG_FILE:
        place, switches = f"`offline` in {settings.config}", "OFFLINE_DATA_OFFLINE=0"
    else:
        place, switches = origin, " ".join(f"{name}=0" for name in origin.split(" and "))
    return f"{place} says so; {switches} before the command says otherwise for once"


def known_names(source: str) -> list[str]:
    """List the dataset names in the catalogue of `source`, in its order; uses no network.

    Raises:
        NotFoundError: No such source.

    Example:
        >>> "pen-human-v1" in known_names("d4rl")
        True
    """
    return [entry.name for entry in get_source(source).catalog()]
