"""Folders of the user's files: what is in them, in the order of names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from offline_data.errors import AccessError
from offline_data.files import is_file

Listing: TypeAlias = "tuple[os.DirEntry[str], ...]"

_kept: ContextVar[dict[Path, Listing] | None] = ContextVar("_kept", default=None)


@contextmanager
def list_once() -> Iterator[None]:
    """List no folder twice inside the block, so that several adapters can look at it."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def entries(folder: Path) -> Listing:
    """Return what is in a folder, sorted by name; raises `AccessError`."""
    kept = _kept.get()
    if kept is not None and folder in kept:
        return kept[folder]
    try:
        with os.scandir(folder) as found:
            listing = tuple(sorted(found, key=lambda entry: entry.name))
    except OSError as error:
        raise AccessError(f"{folder} cannot be read: {error.strerror}") from error
    if kept is not None:
        kept[folder] = listing
    return listing


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in the order of their paths, listing a folder on its turn.

    Links to folders are not followed. Raises `AccessError`.
    """
    waiting = [*reversed(entries(folder))]
    while waiting:
        entry = waiting.pop()
        if entry.is_dir(follow_symlinks=False):
            waiting += reversed(entries(Path(entry.path)))
        elif is_file(path := Path(entry.path)):
            yield path
