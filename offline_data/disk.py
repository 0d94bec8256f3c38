"""The disk: its free space, its errors in our words, and writing that survives a crash."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.errors import AccessError, NoSpaceError, OfflineDataError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def free_bytes(folder: Path) -> int:
    """Return the bytes a user may write on the disk that `folder` is, or will be, on."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_bytes(folder: Path, needed: int, what: str) -> None:
    """Raise `NoSpaceError` unless `needed` bytes are free where `folder` is, or will be."""
    free = free_bytes(folder)
    if needed > free:
        raise NoSpaceError(
            f"{what} needs {human_bytes(needed)} in {folder}, which has {human_bytes(free)} free",
            hint="free some space (`offline-data cache prune`) or use another --root",
        )


def human_bytes(count: float) -> str:
    """Write a number of bytes for people, in powers of 1024.

    Example:
        >>> human_bytes(0), human_bytes(3_670_016)
        ('0 B', '3.5 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into `NoSpaceError` or `AccessError` naming the folder."""
    try:
        yield
    except OfflineDataError:
        raise
    except OSError as error:
        raise disk_error(error, folder) from error


def disk_error(error: OSError, folder: Path) -> OfflineDataError:
    """Say in this package's words why `folder` could not be written or read."""
    if error.errno in _FULL:
        return NoSpaceError(
            f"The disk of {folder} became full; partly written files were removed",
            hint="free some space (`offline-data cache prune`) or use another --root",
        )
    return AccessError(
        f"{error.filename or folder} cannot be used: {error.strerror or error}",
        hint="choose a folder that you can write to: --root DIR or OFFLINE_DATA_HOME",
    )


def write_durably(path: Path, content: bytes) -> None:
    """Give `path` this content, whole or not at all, also if the machine stops meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were given or taken in `folder` survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def boot_id() -> str | None:
    """Return the id of the running system, which changes with every boot; None if it has none (macOS)."""
    try:
        return _BOOT_ID.read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None
