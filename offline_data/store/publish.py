"""Staging folders and the rename that makes a dataset exist."""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors, sync_folder
from offline_data.store.library import foreign_files, own_files
from offline_data.store.locks import lock_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_REPLACED = "-replaced"


@contextmanager
def staging_folder(staging: Path, folder: str, destination: Path) -> Iterator[Path]:
    """Make a new staging folder for a dataset, and remove it and everything in it afterwards.

    What a killed process left for the same dataset is removed first, and a dataset that it had
    moved aside to replace is put back. The caller holds the lock.
    """
    name = lock_name(folder)
    with disk_errors(staging):
        for left in [path for path in staging.glob(f"{name}.*") if path.is_dir()]:
            for aside in (left, *left.glob("*")):
                if aside.name.endswith(_REPLACED):
                    _put_back(aside, destination)
            shutil.rmtree(left, ignore_errors=True)
        path = staging / f"{name}.{secrets.token_hex(4)}"
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(
    finished: Path, destination: Path, own: Callable[[Path], list[str]] = own_files
) -> tuple[Path, ...]:
    """Move a finished dataset directory to its place; replaces what is there, never partly.

    Both must be on one filesystem. The replaced dataset goes only after the new one is in place.
    Files in its directory that were not the dataset's are moved into the new one.

    Args:
        finished: The new directory.
        destination: Its place.
        own: Lists the files of a directory that go when it is replaced.

    Returns:
        Where those files are.
    """
    with disk_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        replaced = finished.with_name(finished.name + _REPLACED)
        if destination.exists():
            destination.rename(replaced)
        try:
            finished.rename(destination)
        except OSError:
            if replaced.exists():
                replaced.rename(destination)
            raise
        sync_folder(destination.parent)
        return _discard(replaced, destination, own) if replaced.exists() else ()


def recover(finished: Path, destination: Path) -> None:
    """Put a dataset back that a `publish` of the same paths moved aside, which was killed then."""
    aside = finished.with_name(finished.name + _REPLACED)
    with disk_errors(destination):
        if aside.exists():
            _put_back(aside, destination)


def _put_back(aside: Path, destination: Path) -> None:
    if destination.exists():
        _discard(aside, destination)
    else:
        aside.rename(destination)


def _discard(
    replaced: Path, destination: Path, own: Callable[[Path], list[str]] = own_files
) -> tuple[Path, ...]:
    """Delete a dataset that was replaced; what is not its own goes into the new one's directory.

    A file whose name the new dataset has taken is renamed with the suffix `.kept`.
    """
    names, kept = own(replaced), []
    try:
        for name in foreign_files(replaced, names):
            target = destination / name
            while target.exists() or target.is_symlink():
                target = target.with_name(f"{target.name}.kept")
            target.parent.mkdir(parents=True, exist_ok=True)
            (replaced / name).rename(target)
            kept.append(target)
    except OSError:  # out of the staging folder, which is deleted as a whole
        replaced.rename(destination.with_name(f".{destination.name}{_REPLACED}"))
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    return tuple(kept)
