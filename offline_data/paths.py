"""Names that came from elsewhere and become paths: checked before they touch the disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from offline_data.errors import IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_NAME, _LONGEST_PATH = 255, 1024
"""Bytes that every file system takes; a path has to stand below a root of some length."""
_SHOWN = 200


def is_unicode(text: str) -> bool:
    r"""Return False for lone surrogates, which JSON and arguments can have and no URL or name should.

    Example:
        >>> is_unicode("caf\u00e9"), is_unicode("\ud800")
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_relative(path: str, what: str = "A raw file") -> str:
    """Return `path` if it stays inside the folder it is joined to.

    Args:
        path: Posix path as a listing, a catalogue or an archive gives it.
        what: What has the name, for the message.

    Raises:
        IntegrityError: It is absolute, has empty, `.` or `..` parts, characters that some system
            reads as something else than part of a name, or more bytes than a file's name can have.

    Example:
        >>> check_relative("door/main_data.hdf5")
        'door/main_data.hdf5'
    """
    parts = path.split("/")
    if (
        any(part in {"", ".", ".."} for part in parts)
        or any(c in path for c in "\\\0\n")
        or len(path.encode(errors="replace")) > _LONGEST_PATH
        or any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in parts)
        or not is_unicode(path)
    ):
        raise IntegrityError(
            f"{what} is named {path[:_SHOWN]!r}: expected a relative path without empty or `..` parts",
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
