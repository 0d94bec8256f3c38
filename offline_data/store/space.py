"""Free space: asked for before writing, so that a full disk is met with a plan."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from offline_data.errors import NoSpaceError

if TYPE_CHECKING:
    from pathlib import Path

MARGIN = 64 << 20
"""Bytes that a conversion leaves free."""


def free_bytes(folder: Path) -> int:
    """Return the bytes a user may write on the disk that `folder` is, or will be, on."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise `NoSpaceError` unless `needed` bytes and a margin are free."""
    free = free_bytes(folder)
    if free < needed + MARGIN:
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
