"""`convert`: a file or folder that is here already becomes `local:NAME`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from offline_data.errors import NotFoundError, UsageError
from offline_data.ids import parse_id
from offline_data.ingest.building import Job, build
from offline_data.ingest.options import Options, Result
from offline_data.ingest.raw import local_files
from offline_data.progress import SILENT
from offline_data.sources.registry import get_source, source_accepting
from offline_data.store.layout import MANIFEST
from offline_data.store.library import entry_at, find
from offline_data.store.locks import dataset_lock
from offline_data.store.publish import staging_folder

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.progress import Progress


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
    if not path.exists():
        raise NotFoundError(f"There is no file or folder {path}")
    adapter = get_source(source) if source else source_accepting(path)
    release = adapter.release_of(path, dataset.name)
    target = dataset.at(options.revision_of(release.revision))
    destination = settings.root / target.folder / str(target.revision)
    with dataset_lock(settings.staging, target.folder, progress):
        older = find(settings.root, dataset)
        same = destination / MANIFEST
        if not options.force and same.exists() and options.layout in {None, _layout(destination)}:
            entry = entry_at(destination)
            return Result(entry.id, destination, entry.manifest, True, time.perf_counter() - begin)
        if older is not None and not options.force and older.path != destination:
            raise UsageError(
                f"{dataset} is here already, made from other files ({older.path})",
                hint="choose another name, or replace it with --force",
            )
        with staging_folder(settings.staging, target.folder, destination) as staging:
            raw = adapter.open(release, path)
            parents = (entry_at(path).manifest.id,) if adapter.name == "local" else ()
            job = Job(
                target,
                adapter.name,
                options.layout or "compact",
                destination,
                local_files(path),
                parents,
            )
            build(raw, job, options, settings, progress, staging)
        if older is not None and older.path != destination:
            from offline_data.store.library import remove

            remove(older)
    entry = entry_at(destination)
    return Result(entry.id, destination, entry.manifest, False, time.perf_counter() - begin)


def _layout(destination: Path) -> str:
    return entry_at(destination).manifest.layout
