"""A dataset under another name: moved there, or copied."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from offline_data.errors import IntegrityError, UsageError
from offline_data.files import disk_errors, require_bytes, sync_folder, write_durably
from offline_data.ids import DatasetId, parse_id
from offline_data.progress import SILENT
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, entry_at, find, foreign_files, remove
from offline_data.store.manifest import dump_manifest
from offline_data.store.publish import dataset_lock, publish, staging_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.progress import Progress, Task

_BLOCK = 1 << 20


def rename_dataset(
    entry: Entry, name: str, settings: Settings, progress: Progress = SILENT, *, force: bool = False
) -> Entry:
    """Give a dataset the id `local:NAME`; the manifest keeps the old one in a note.

    The new directory is complete before it gets its name, and the old one goes after that; where
    both are on one filesystem no byte is copied. A process that has the dataset open goes on with
    it. Files in the old directory that are not the dataset's stay there.

    Args:
        entry: The dataset.
        name: `NAME` or `local:NAME`.
        settings: The root.
        progress: Where to tell of long work.
        force: Whether to replace a dataset of that name.

    Raises:
        UsageError: A dataset of that name exists, or is this one.
        IntegrityError: A file is not what the manifest says; nothing has changed.
        InvalidIdError, AccessError, NoSpaceError: The name; the disk.
    """
    made = _publish_as(entry, name, settings, progress, force=force, move=True)
    for left in foreign_files(entry.path) if entry.path.exists() else ():
        progress.note(f"{entry.path / left} is no file of the dataset; kept")
    return made


def copy_dataset(
    entry: Entry, name: str, settings: Settings, progress: Progress = SILENT, *, force: bool = False
) -> Entry:
    """Copy a dataset to `local:NAME`; every file is compared with its digest while it is read.

    The new manifest names the old dataset as its parent. Arguments and errors are those of
    `rename_dataset`.
    """
    return _publish_as(entry, name, settings, progress, force=force, move=False)


def _publish_as(
    entry: Entry, name: str, settings: Settings, progress: Progress, *, force: bool, move: bool
) -> Entry:
    target = _target_of(entry, name)
    destination = settings.root / target.folder / str(target.revision)
    with ExitStack() as stack:
        for locked in sorted({entry.id.folder, target.folder}):  # the same order everywhere
            stack.enter_context(dataset_lock(settings.staging, locked, progress))
        older = find(settings.root, DatasetId(target.source, target.name))
        if older is not None and not force:
            raise UsageError(
                f"{older.id} already exists ({older.path})",
                hint="choose another name, or replace it with --force",
            )
        staging = stack.enter_context(staging_folder(settings.staging, target.folder, destination))
        folder = staging / "dataset"
        with disk_errors(folder):
            folder.mkdir()
            if not move:
                require_bytes(folder, entry.bytes, f"A copy of {entry.id}")
            with progress.task(f"{'move' if move else 'copy'} {entry.id}", entry.bytes, "B") as bar:
                for file, digest in entry.manifest.digests.items():
                    _place(entry.path / file, folder / file, digest, bar, move=move)
            write_durably(folder / MANIFEST, _manifest_of(entry, target, move=move).encode())
            for path in {folder, *(path for path in folder.rglob("*") if path.is_dir())}:
                sync_folder(path)
        for path in publish(folder, destination):
            progress.note(f"{path} is no file of the dataset that was replaced; kept")
        if older is not None and older.path != destination:
            remove(older)
        if move:
            remove(entry)
    return entry_at(destination)


def _target_of(entry: Entry, name: str) -> DatasetId:
    target = parse_id(name, default_source="local")
    if target.source != "local" or target.revision:
        raise UsageError(
            f"{target} cannot be the name of a new dataset; expected NAME or local:NAME"
        )
    if target.folder == entry.id.folder:
        raise UsageError(f"{entry.id} has this name already", hint="choose another name")
    return target.at(entry.id.revision or "unversioned")


def _manifest_of(entry: Entry, target: DatasetId, *, move: bool) -> str:
    """Return the manifest of the new dataset: what was known of the old one, and where it is from."""
    old = entry.manifest
    today = datetime.now(timezone.utc).date().isoformat()
    note = f"{'Renamed' if move else 'Copied'} from {entry.id} on {today}."
    return dump_manifest(
        replace(
            old,
            id=str(target),
            source=target.source,
            name=target.name,
            revision=str(target.revision),
            notes=(*old.notes, note),
            parents=old.parents if move else (str(entry.id),),
        )
    )


def _place(
    source: Path, target: Path, expected: Mapping[str, Any], bar: Task, *, move: bool
) -> None:
    """Link or copy one file; raises `IntegrityError` if it is not the one of the manifest."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() or not source.is_file() or source.stat().st_size != expected["size"]:
        raise _damaged(source)
    if move:
        try:
            os.link(source, target)
        except OSError:  # another filesystem, or one without links
            pass
        else:
            bar.advance(expected["size"])
            return
    found = hashlib.sha256()
    with source.open("rb") as read, target.open("xb") as written:
        while block := read.read(_BLOCK):
            found.update(block)
            written.write(block)
            bar.advance(len(block))
        written.flush()
        os.fsync(written.fileno())
    if found.hexdigest() != expected["sha256"]:
        raise _damaged(source)


def _damaged(file: Path) -> IntegrityError:
    return IntegrityError(
        f"{file} is not what the manifest says",
        hint=f"offline-data verify {file.parent} shows what is damaged",
    )
