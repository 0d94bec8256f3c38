"""Write to the folder of a dataset under its lock: stage, publish, and amend the manifest."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_data.base.errors import AccessError, IntegrityError
from offline_data.base.files import check_links, disk_errors, file_lock, sync_folder, write_durably
from offline_data.base.progress import SILENT, Progress
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, entry_at, foreign_files, own_files
from offline_data.store.manifest import check_digest, dump_manifest, parse_manifest

REPLACED = "-replaced"

SHARDS = ".shards"  # ending of a folder with the finished shards of a dataset


def lock_name(folder: str) -> str:
    """Name the lock and the staging folders of a dataset's relative folder.

    Example:
        >>> lock_name("minari/D4RL/door/human-v2")
        'human-v2-36a5127c61'
    """
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]
    plain = folder.rsplit("/", 1)[-1][:40].translate({ord(c): "_" for c in "[]"})  # as in globs
    return f"{plain}-{digest}"


@contextmanager
def dataset_lock(staging: Path, folder: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one dataset; waits, with a note, for another process. Raises `AccessError`."""
    path = staging / f"{lock_name(folder)}.lock"
    check_links(staging.parent, path, staging.parent / folder)
    note = f"another process is writing {folder}; waiting for it"
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(path, lambda: progress.note(note)))
        except OSError as error:
            raise AccessError(
                f"{staging} cannot be written: {error.strerror or error}",
                hint="choose a folder you may write to: --root DIR or OFFLINE_DATA_HOME",
            ) from error
        yield


@contextmanager
def staging_folder(staging: Path, folder: str, destination: Path) -> Iterator[Path]:
    """Make a staging folder for a dataset whose lock the caller holds; remove it afterwards.

    First, a killed process's remains are deleted, and a dataset that it moved aside is restored.
    """
    name = lock_name(folder)
    with disk_errors(staging):
        for left in [path for path in staging.glob(f"{name}.*") if path.is_dir()]:
            if left.suffix == SHARDS:  # the next run resumes with them
                continue
            for aside in (left, *left.glob("*")):
                if aside.name.endswith(REPLACED):
                    _put_back(aside, destination)
            shutil.rmtree(left, ignore_errors=True)
        path = staging / f"{name}.{secrets.token_hex(4)}"
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(
    finished: Path,
    destination: Path,
    progress: Progress = SILENT,
    *,
    own: Callable[[Path], list[str]] = own_files,
) -> tuple[Path, ...]:
    """Move a finished dataset directory to its destination, replacing a dataset there, atomically.

    Both are on one filesystem. A replaced dataset is deleted only after the new one is in place;
    files in its directory that are not among its `own` are moved to the new one, noted, and returned.
    """
    with disk_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        replaced = finished.with_name(finished.name + REPLACED)
        if destination.exists():
            destination.rename(replaced)
        try:
            finished.rename(destination)
        except OSError:
            if replaced.exists():
                replaced.rename(destination)
            raise
        sync_folder(destination.parent)
        kept = _discard(replaced, destination, own) if replaced.exists() else ()
    for path in kept:
        progress.note(f"{path} is not the dataset's, and was kept")
    return kept


def check_amendable(entry: Entry) -> None:
    """Raise `AccessError` unless files can be written to the directory of a dataset."""
    if not os.access(entry.path, os.W_OK):
        raise AccessError(
            f"{entry.path} is read-only: nothing can be recorded in its {MANIFEST}",
            hint=f"copy it first: `offline-data convert {shlex.quote(str(entry.path))} NAME --root DIR`",
        )


def amend_manifest(entry: Entry, staging: Path, progress: Progress, **fields: Any) -> None:
    """Replace fields of the manifest of a published dataset, atomically and under its lock.

    Raises `IntegrityError` if the manifest is damaged, or the dataset was replaced since `entry` was
    read, and `AccessError`, `NoSpaceError`.
    """
    with dataset_lock(staging, entry.id.folder, progress), disk_errors(entry.path):
        found = entry_at(entry.path).manifest
        problem = check_digest(entry.path, found)
        if found.digests != entry.manifest.digests:
            problem = "is of other data than before: the dataset was replaced meanwhile"
        if problem:
            raise IntegrityError(f"{entry.path / MANIFEST} {problem}; nothing was recorded")
        data = dump_manifest(replace(found, **fields)).encode()
        parse_manifest(data, str(entry.path), "nothing was recorded")  # what is written can be read
        write_durably(entry.path / MANIFEST, data)


def recover(finished: Path, destination: Path) -> None:
    """Restore a dataset that a killed `publish` of the same paths had moved aside."""
    aside = finished.with_name(finished.name + REPLACED)
    with disk_errors(destination):
        if aside.exists():
            _put_back(aside, destination)


def _put_back(aside: Path, destination: Path) -> None:
    if destination.exists():
        _discard(aside, destination, own_files)
    else:
        aside.rename(destination)


def _discard(
    replaced: Path, destination: Path, own: Callable[[Path], list[str]]
) -> tuple[Path, ...]:
    """Delete a replaced dataset; foreign files are moved, as `.kept` if their name is taken."""
    kept = []
    try:
        names = foreign_files(replaced, own(replaced))
        for name in sorted(names, key=lambda name: (destination / name).exists()):
            target = destination / name
            while target.exists() or target.is_symlink():
                target = target.with_name(f"{target.name}.kept")
            target.parent.mkdir(parents=True, exist_ok=True)
            (replaced / name).rename(target)
            kept.append(target)
    except OSError:  # left in the staging folder, which is deleted as a whole
        replaced.rename(destination.with_name(f".{destination.name}{REPLACED}"))
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    return tuple(kept)
