"""Names that came from elsewhere and become paths: checked before they touch the disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from offline_data.errors import IntegrityError

if TYPE_CHECKING:
    from pathlib import Path


def check_relative(path: str, what: str = "A raw file") -> str:
    """Return `path` if it stays inside the folder it is joined to.

    Args:
        path: Posix path as a listing, a catalogue or an archive gives it.
        what: What has the name, for the message.

    Raises:
        IntegrityError: It is absolute, has empty, `.` or `..` parts, or characters that some system
            reads as something else than part of a name.

    Example:
        >>> check_relative("door/main_data.hdf5")
        'door/main_data.hdf5'
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or any(c in path for c in "\\\0\n"):
        raise IntegrityError(
            f"{what} is named {path!r}: expected a relative path without empty or `..` parts",
            hint="the source's list is damaged or hostile; nothing was written",
        )
    return path


def is_file(path: Path) -> bool:
    """Return True for a plain file, or a link to one; unlike pathlib's, never raises `OSError`.

    That one raises where a name is too long or a folder above may not be entered.
    """
    return os.path.isfile(path)  # noqa: PTH113 -- see above


def is_folder(path: Path) -> bool:
    """Return True for a folder, or a link to one; see `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112 -- see `is_file`
