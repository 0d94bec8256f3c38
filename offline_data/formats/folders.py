"""Folders of the user's files: what is in them, in the order of names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from offline_data.base.errors import AccessError, OfflineDataError
from offline_data.base.files import is_file

MOST_ALIKE = 100
"""Maximum number of files of a folder with one suffix that are examined to find its format."""

Listing: TypeAlias = "tuple[os.DirEntry[str], ...]"

_T = TypeVar("_T")
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("_kept", default=None)


@contextmanager
def list_once() -> Iterator[None]:
    """List no folder, and read no names of arrays, twice inside the block, where several adapters look."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def entries(folder: Path) -> Listing:
    """Return what is in a folder, sorted by name; raises `AccessError`."""
    return once(folder, _scan)


def _scan(folder: Path) -> Listing:
    try:
        with os.scandir(folder) as found:
            return tuple(sorted(found, key=lambda entry: entry.name))
    except OSError as error:
        raise AccessError(f"{folder} cannot be read: {error.strerror}") from error


def once(path: Path, read: Callable[[Path], _T]) -> _T:
    """Return what a function reads of a path; inside `list_once` it is called once for each path."""
    kept = _kept.get()
    if kept is None:
        return read(path)
    if (path, read) not in kept:
        try:
            kept[path, read] = (read(path), None)
        except OfflineDataError as error:
            kept[path, read] = (None, error)
    value, failed = kept[path, read]
    if failed is not None:
        raise failed
    return cast("_T", value)


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
