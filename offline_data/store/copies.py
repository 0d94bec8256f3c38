"""Renaming and copying datasets."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, UsageError
from offline_data.base.files import disk_errors, require_bytes, sync_folder, write_durably
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.json import MAX_BYTES, read_whole
from offline_data.base.progress import SILENT, Progress, Task
from offline_data.store.history import extend_history
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, entry_at, find, foreign_files, remove
from offline_data.store.manifest import HistoryStep, check_digest, dump_manifest
from offline_data.store.marks import moved_marks
from offline_data.store.publish import dataset_lock, publish, staging_folder

_BLOCK = 1 << 20
_FICLONE = 0x40049409  # of <linux/fs.h>; other systems do not know this request


def rename_dataset(
    entry: Entry, name: str, settings: Settings, progress: Progress = SILENT, *, force: bool = False
) -> Entry:
    """Give a dataset the id `local:NAME`; the manifest keeps the old one in a note.

    The new directory is complete before it is published, and the old one is deleted after that. On
    one filesystem files are hard links, of which only the sizes are checked; else they are copied
    and compared with their digests. A process that has the dataset open can go on reading it. Foreign
    files stay in the old directory. Marks of episodes move with the dataset.

    Raises:
        UsageError: A dataset of that name exists, unless `force` is given, or is this one.
        IntegrityError: A file does not match the manifest; nothing has changed.
        InvalidIdError, AccessError, NoSpaceError: Of the name, of the disk.
    """
    made = _publish_as(entry, name, settings, progress, force=force, move=True)
    for left in foreign_files(entry.path) if entry.path.exists() else ():
        progress.note(f"{entry.path / left} is not a file of the dataset; kept")
    return made


def copy_dataset(
    entry: Entry, name: str, settings: Settings, progress: Progress = SILENT, *, force: bool = False
) -> Entry:
    """Copy a dataset to `local:NAME`, which names it as its parent; digests are compared.

    Arguments and errors are those of `rename_dataset`.
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
        write_copy(entry, target, folder, progress, move=move)
        for path in publish(folder, destination):
            progress.note(f"{path} is not a file of the dataset that was replaced; kept")
        if older is not None and older.path != destination:
            remove(older)
        made = entry_at(destination)
        if move:
            with moved_marks(entry, made):
                remove(entry)
    return made


def write_copy(
    entry: Entry, target: DatasetId, folder: Path, progress: Progress, *, move: bool = False
) -> None:
    """Write a dataset to a new folder as `target`; see `rename_dataset` and `copy_dataset`.

    The manifest says where it comes from, unless `target` is its own id: then nothing differs.
    Raises `IntegrityError`, `AccessError`, `NoSpaceError`.
    """
    from offline_data.store.reader import file_problem  # imports numpy

    hint = f"`offline-data check --files {shlex.quote(str(entry.path))}` shows what is damaged"
    with disk_errors(folder):
        folder.mkdir()
        if not move:
            require_bytes(folder, entry.bytes, f"A copy of {entry.id}")
            if problem := check_digest(entry.path, entry.manifest):
                raise IntegrityError(f"{entry.path / MANIFEST} {problem}", hint=hint)
        with progress.task(f"{'move' if move else 'copy'} {entry.id}", entry.bytes, "B") as bar:
            plain: set[str] = set()
            for file, digest in entry.manifest.digests.items():
                source = entry.path / file
                if problem := file_problem(entry.path, file, digest["size"], plain):
                    raise IntegrityError(f"{source} {problem}", hint=hint)
                place_file(source.resolve(), folder / file, digest, bar, move=move, hint=hint)
        manifest = read_whole(entry.path / MANIFEST, MAX_BYTES)
        if target != entry.id:
            manifest = _manifest_of(entry, target, move=move).encode()
        write_durably(folder / MANIFEST, manifest)
        for path in {folder, *(path for path in folder.rglob("*") if path.is_dir())}:
            sync_folder(path)


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
    old = entry.manifest
    today = datetime.now(timezone.utc).date().isoformat()
    note = f"{'Renamed' if move else 'Copied'} from {entry.id} on {today}."
    step = HistoryStep("rename" if move else "copy", str(target), (str(entry.id),))
    return dump_manifest(
        replace(
            old,
            id=str(target),
            source=target.source,
            name=target.name,
            revision=str(target.revision),
            notes=(*old.notes, note),
            parents=old.parents if move else (str(entry.id),),
            history=extend_history([old], step),
        )
    )


def share_file(source: Path, target: Path, expected: Mapping[str, Any]) -> None:
    """Give a new dataset a file of another one, without writing its bytes again where possible.

    It is a reflink (copy-on-write, on Btrfs and XFS), else a hard link to a file of this user on the
    same filesystem, which becomes read-only: else writing to a tensor of one dataset would change the
    other. Otherwise the file is copied and compared with its digest; see `place_file` for errors.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if _reflink(source, target):
        return
    place_file(source, target, expected, SILENT, move=source.stat().st_uid == os.geteuid())
    with target.open("rb") as file:
        if os.fstat(file.fileno()).st_nlink > 1:
            os.fchmod(file.fileno(), 0o444)
        os.fsync(
            file.fileno()
        )  # the other dataset may have been copied here by a program that did not


def _reflink(source: Path, target: Path) -> bool:
    """Return True if the target shares the source's blocks now; else there is no target."""
    with source.open("rb") as read, target.open("xb") as written:
        try:
            fcntl.ioctl(written, _FICLONE, read.fileno())
            os.fsync(written.fileno())
        except OSError:
            target.unlink()
            return False
    return True


def place_file(
    source: Path,
    target: Path,
    expected: Mapping[str, Any],
    bar: Task,
    *,
    move: bool,
    hint: str | None = "it was changed, or is damaged: restore it and try again",
) -> None:
    """Link (`move`) or copy a file; `IntegrityError` for another digest, or another size of a link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if move:
        try:
            os.link(source, target)
        except OSError:  # another filesystem, or one without links
            pass
        else:
            if target.stat().st_size != expected["size"]:
                raise IntegrityError(f"{source} does not have {expected['size']} bytes", hint=hint)
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
        raise IntegrityError(f"{source} does not match its checksum", hint=hint)
