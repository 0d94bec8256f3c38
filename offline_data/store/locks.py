"""Locks: two processes that want the same dataset do the work once."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offline_data.errors import AccessError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offline_data.progress import Progress


def lock_name(folder: str) -> str:
    """Name the lock and the staging folders of a dataset's relative folder.

    Example:
        >>> lock_name("minari/D4RL/door/human-v2")
        'human-v2-36a5127c61'
    """
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]
    return f"{folder.rsplit('/', 1)[-1][:40]}-{digest}"


@contextmanager
def dataset_lock(staging: Path, folder: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one dataset; waits while another process holds it, and says so.

    The lock is released by the operating system when its holder dies.

    Raises:
        AccessError: The staging folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        staging.mkdir(parents=True, exist_ok=True)
        lock = FileLock(staging / f"{lock_name(folder)}.lock")
        try:
            lock.acquire(
                blocking=False
            )  # a timeout would be for ever on a clock that runs backwards
        except Timeout:
            progress.note(f"another process is writing {folder}; waiting for it")
            lock.acquire()
    except OSError as error:
        raise AccessError(
            f"{staging} cannot be written: {error.strerror or error}",
            hint="choose a folder you may write to: --root DIR or OFFLINE_DATA_HOME",
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(staging: Path, name: str) -> bool:
    """Tell whether some process holds the lock called `name`."""
    from filelock import FileLock, Timeout

    path = staging / f"{name}.lock"
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False
