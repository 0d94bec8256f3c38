"""`download`: bring a dataset here once, whatever is already here."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.config_file import user_path
from offline_data.disk import free_bytes
from offline_data.errors import NotFoundError, OfflineDataError
from offline_data.ids import DatasetId, looks_like_path, parse_id
from offline_data.ingest.building import Job, build, destination_of
from offline_data.ingest.offline import naming_the_command
from offline_data.ingest.options import DownloadPlan, Options, Result
from offline_data.ingest.parsing import ParserProcess
from offline_data.ingest.raw import raw_files, raw_folder
from offline_data.progress import SILENT
from offline_data.sources.local import StoredEpisodes
from offline_data.sources.registry import get_source
from offline_data.store.library import (
    Entry,
    entry_at,
    find,
    has_manifest,
    how_to_get,
    newest,
    revisions,
)
from offline_data.store.locks import dataset_lock
from offline_data.store.publish import staging_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from offline_data.config import Settings
    from offline_data.progress import Progress
    from offline_data.sources.base import Release, Source
    from offline_data.store.layout import LayoutName


def download(
    dataset: DatasetId, settings: Settings, options: Options, progress: Progress = SILENT
) -> Result:
    """Fetch and convert a dataset, unless it is here as asked for.

    What is here is used without a look at the network; a local dataset of the source's own
    (`MINARI_DATASETS_PATH`) that changed since is converted anew. Two processes that ask for the
    same dataset at once do the work once.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: It cannot be had.
        FormatError, AuditError: Its files are not what they should be; nothing is published.
        NoSpaceError, AccessError: The disk.
    """
    begin = time.perf_counter()
    existing = None if options.force else on_disk(dataset, settings, options)
    if existing is not None and options.layout in {None, existing.manifest.layout}:
        return _result(existing, begin, existed=True)
    if existing is not None:
        return _result(_rewrite(existing, settings, options, progress), begin)
    source = get_source(dataset.source)
    with naming_the_command(dataset, settings, options):
        release = source.resolve(dataset.name, dataset.revision, settings)
        release = replace(release, keep_episodes=options.keep_episodes)
        entry, existed = _build_release(dataset, source, release, settings, options, progress)
    if options.layout not in {None, entry.manifest.layout}:  # another process made it meanwhile
        return _result(_rewrite(entry, settings, options, progress), begin)
    return _result(entry, begin, existed=existed)


def ensure(
    text: str,
    *,
    settings: Settings,
    download: bool | Literal["force"] = True,
    layout: LayoutName | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Return the directory of a dataset, brought here first if need be.

    Args:
        text: An id, or the path of a dataset directory.
        settings: Root, offline mode, workers.
        download: False: only what is here; `"force"`: fetch and convert again.
        layout: Layout it must have; None: any.
        progress: Where to tell of long work.

    Raises:
        NotFoundError: With `download=False`, it is not here; else see `download`.
    """
    from pathlib import Path

    if looks_like_path(text) or has_manifest(Path(text)):
        return entry_at(user_path(text, "the dataset")).path
    dataset = parse_id(text)
    options = Options(layout=layout, force=download == "force")
    if download is not False:
        return _download(dataset, settings, options, progress).path
    entry = find(settings.root, dataset)
    if entry is None:
        raise NotFoundError(
            f"{text} is not on this disk (looked in {settings.root})",
            hint=f"load it with download=True; {how_to_get(dataset)}",
        )
    if layout not in {None, entry.manifest.layout}:
        entry = _rewrite(entry, settings, options, progress)
    return entry.path


_download = download  # `ensure` has an argument of that name


def plan_download(dataset: DatasetId, settings: Settings, options: Options) -> DownloadPlan:
    """Say what `download` would do; asks the source, changes nothing."""
    existing = None if options.force else on_disk(dataset, settings, options)
    free = free_bytes(settings.root)
    if existing is not None:
        return DownloadPlan(existing.id, existing.path, existing.path, None, free)
    with naming_the_command(dataset, settings, options):
        release = get_source(dataset.source).resolve(dataset.name, dataset.revision, settings)
    target = dataset.at(options.revision_of(release.revision))
    fetch = None
    if release.local is None:
        from offline_data.fetch.plan import plan_fetch

        fetch = plan_fetch(release.files, settings, force=options.force)
    return DownloadPlan(target, destination_of(target, settings), None, fetch, free)


def fetch_raw(
    dataset: DatasetId, settings: Settings, options: Options, progress: Progress = SILENT
) -> Path:
    """Fetch the raw files only; returns the folder where they lie under their own names."""
    source = get_source(dataset.source)
    with naming_the_command(dataset, settings, options, raw_only=True):
        release = source.resolve(dataset.name, dataset.revision, settings)
        if release.local is not None:
            return release.local
        folder = settings.downloads / "raw" / dataset.at(release.revision).folder / release.revision
        raw_files(release, settings, folder, progress, force=options.force)
    return folder


def on_disk(dataset: DatasetId, settings: Settings, options: Options) -> Entry | None:
    """Find a dataset as asked for under the root, else None; opens no socket."""
    if options.episodes is None:
        entry = find(settings.root, dataset)
    else:
        entry = _some_episodes(dataset, settings, options)
    if entry is None or dataset.source == "local":
        return entry
    if not options.accept_episodes_of(entry.manifest):
        return None
    if dataset.revision or not str(entry.id.revision).startswith("local-"):
        return entry
    return _if_unchanged(entry, dataset, settings, options)


def _some_episodes(dataset: DatasetId, settings: Settings, options: Options) -> Entry | None:
    if dataset.revision:
        return find(settings.root, dataset.at(options.revision_of(dataset.revision)))
    home = settings.root / dataset.folder
    return newest(revisions(home, f"*{options.revision_of('')}")[0])


def _if_unchanged(
    entry: Entry, dataset: DatasetId, settings: Settings, options: Options
) -> Entry | None:
    """Return `entry` unless the source's own local files changed since; no network."""
    try:
        release = get_source(dataset.source).resolve(
            dataset.name, None, replace(settings, offline=True)
        )
    except OfflineDataError:  # they are gone: what was made of them is what there is
        return entry
    return entry if options.revision_of(release.revision) == entry.id.revision else None


def _build_release(
    dataset: DatasetId,
    source: Source,
    release: Release,
    settings: Settings,
    options: Options,
    progress: Progress,
) -> tuple[Entry, bool]:
    target = dataset.at(options.revision_of(release.revision))
    destination = destination_of(target, settings)
    with dataset_lock(settings.staging, target.folder, progress):
        if not options.force and has_manifest(destination):
            entry = entry_at(destination)
            if options.accept_episodes_of(entry.manifest):
                return entry, True
        with staging_folder(settings.staging, target.folder, destination) as staging:
            with raw_folder(release, settings, staging, progress, options) as raw:
                job = Job(target, source.name, options.layout or "compact", destination, raw.files)
                with ParserProcess(raw.path) as process:
                    opened = process.open(source, release)
                    build(opened, job, options, settings, progress, staging)
            return entry_at(destination), False


def _rewrite(entry: Entry, settings: Settings, options: Options, progress: Progress) -> Entry:
    """Write a dataset that is here in the other layout, from its own directory."""
    manifest, destination, folder = entry.manifest, entry.path, entry.id.folder
    job = Job(
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
        build(StoredEpisodes(destination), job, whole, settings, progress, staging)
    return entry_at(destination)


def _result(entry: Entry, begin: float, *, existed: bool = False) -> Result:
    return Result(entry.id, entry.path, entry.manifest, existed, time.perf_counter() - begin)
