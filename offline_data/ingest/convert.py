"""`convert`: a file or folder that is here already becomes `local:NAME`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from offline_data.errors import NotFoundError, UsageError
from offline_data.ids import parse_id
from offline_data.ingest.building import Job, build, destination_of
from offline_data.ingest.options import Options, Result
from offline_data.ingest.raw import local_files
from offline_data.paths import is_file, is_folder
from offline_data.progress import SILENT
from offline_data.sources.registry import get_source, source_accepting
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, entry_at, find, remove
from offline_data.store.locks import dataset_lock
from offline_data.store.publish import staging_folder

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.ids import DatasetId
    from offline_data.progress import Progress
    from offline_data.sources.base import Release, Source


def convert(
    path: Path,
    name: str,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
    *,
    source: str | None = None,
) -> Result:
    """Convert a file or folder of the user's; it is only read.

    Args:
        path: A Minari folder, a D4RL-like HDF5, a dataset directory (to change its layout), …
        name: Name of the new dataset; its id is `local:<name>`.
        settings: Root, workers.
        options: Layout, episodes, audit; `force` replaces a dataset of that name.
        progress: Where to tell of long work.
        source: Adapter that reads it; None: the only one whose format it looks like.

    Raises:
        NotFoundError: No such path, or no adapter takes it.
        UsageError: A dataset of that name, made from other files, is here already.
        FormatError, AuditError, NoSpaceError, AccessError: See `download`.
    """
    begin = time.perf_counter()
    dataset = parse_id(name if name.startswith("local:") else f"local:{name}")
    if not (is_file(path) or is_folder(path)):
        raise NotFoundError(f"There is no file or folder {path}")
    adapter = get_source(source) if source else source_accepting(path)
    release = adapter.release_of(path, dataset.name)
    target = dataset.at(options.revision_of(release.revision))
    destination = destination_of(target, settings)
    with dataset_lock(settings.staging, target.folder, progress):
        existed = not options.force and _is_there(destination, options)
        if not existed:
            older = _other(dataset, destination, settings, options)
            _build(adapter, release, path, target, settings, options, progress)
            if older is not None:
                remove(older)
    entry = entry_at(destination)
    seconds = time.perf_counter() - begin
    return Result(entry.id, destination, entry.manifest, existed, seconds)


def _is_there(destination: Path, options: Options) -> bool:
    if not (destination / MANIFEST).exists():
        return False
    return options.layout in {None, entry_at(destination).manifest.layout}


def _other(
    dataset: DatasetId, destination: Path, settings: Settings, options: Options
) -> Entry | None:
    """Find the dataset of this name that is to be replaced; some episodes replace none.

    Raises:
        UsageError: There is one, made from other files, and it was not said to replace it.
    """
    older = find(settings.root, dataset)
    if options.episodes is not None or older is None or older.path == destination:
        return None
    if not options.force:
        raise UsageError(
            f"{dataset} is here already, made from other files ({older.path})",
            hint="choose another name, or replace it with --force",
        )
    return older


def _build(
    adapter: Source,
    release: Release,
    path: Path,
    target: DatasetId,
    settings: Settings,
    options: Options,
    progress: Progress,
) -> None:
    destination = destination_of(target, settings)
    parents = (entry_at(path).manifest.id,) if adapter.name == "local" else ()
    layout = options.layout or "compact"
    job = Job(target, adapter.name, layout, destination, local_files(path), parents)
    with staging_folder(settings.staging, target.folder, destination) as staging:
        build(adapter.open(release, path), job, options, settings, progress, staging)
