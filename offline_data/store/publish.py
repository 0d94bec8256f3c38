"""Staging folders and the rename that makes a dataset exist."""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors, sync_folder
from offline_data.store.locks import lock_name

if TYPE_CHECKING:
    from collections.abc import Iterator
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
                if aside.name.endswith(_REPLACED) and not destination.exists():
                    aside.rename(destination)
            shutil.rmtree(left, ignore_errors=True)
        path = staging / f"{name}.{secrets.token_hex(4)}"
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(finished: Path, destination: Path) -> None:
    """Move a finished dataset directory to its place; replaces what is there, never partly.

    Both must be on one filesystem. The replaced dataset goes only after the new one is in place.
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
        shutil.rmtree(replaced, ignore_errors=True)
