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

    from filelock import BaseFileLock

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
    """Hold the lock of one dataset; waits with a note while another process holds it.

    Raises:
        AccessError: The staging folder cannot be written.
    """
    path = staging / f"{lock_name(folder)}.lock"
    try:
        lock = acquire(path, progress, f"another process is writing {folder}")
    except OSError as error:
        raise AccessError(
            f"{staging} cannot be written: {error.strerror or error}",
            hint="choose a folder you may write to: --root DIR or OFFLINE_DATA_HOME",
        ) from error
    try:
        yield
    finally:
        lock.release()


def acquire(path: Path, progress: Progress, holder: str) -> BaseFileLock:
    """Take the lock of a file; waits while another process holds it, and notes what that one does.

    The operating system releases the lock when its holder dies.

    Raises:
        OSError: The file cannot be written.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        # A timeout would last for ever on a clock that runs backwards.
        lock.acquire(blocking=False)
    except Timeout:
        progress.note(f"{holder}; waiting for it")
        lock.acquire()
    return lock


def is_locked(folder: Path, name: str) -> bool:
    """Return True if some process holds the lock called `name`."""
    from filelock import FileLock, Timeout

    path = folder / f"{name}.lock"
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False
