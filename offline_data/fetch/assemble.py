"""Lays fetched files out in a folder under their published names, without copying them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors
from offline_data.paths import check_relative

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from offline_data.fetch.files import FetchedFile


def assemble(fetched: Iterable[FetchedFile], folder: Path) -> None:
    """Give every file its name under `folder`: a hard link, or a symlink where that cannot be.

    What has the name already is replaced. Files are shared and read-only: never write to them.

    Raises:
        IntegrityError: A name that would leave the folder; nothing was laid out.
        AccessError: The folder may not be written.
    """
    places = [(file.path, folder / check_relative(file.name)) for file in fetched]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(path.resolve(), place)


def _link(path: Path, place: Path) -> None:
    beside = place.with_name(f".{secrets.token_hex(4)}.link")
    try:
        beside.hardlink_to(path)
    except OSError:  # another disk, or a file of another user
        beside.symlink_to(path)
    try:
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)  # rename does nothing between two links of one file
