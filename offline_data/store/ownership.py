"""Which files of a dataset directory are the dataset's: only those are deleted with it.

A user may keep files of their own in a dataset directory, and a dataset directory may come from a
stranger: nothing goes that the manifest does not list, and nothing outside the directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.errors import OfflineDataError
from offline_data.store.layout import (
    EPISODES,
    MANIFEST,
    META,
    OBSERVATIONS,
    STEPS,
    SUFFIX,
    TED,
    TEXT,
)
from offline_data.store.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TABLES = {STEPS, OBSERVATIONS, EPISODES, TED}


def own_files(folder: Path) -> list[str]:
    """List the files of a dataset directory that are the dataset's, the manifest first.

    Those are the manifest and what it lists; where it cannot be read, what has the names of a
    table's files.

    Returns:
        Relative posix paths; a file is there, and not behind a link to another folder.
    """
    there = set(_files(folder))
    try:
        listed = {MANIFEST, *read_manifest(folder).digests}
    except OfflineDataError:
        listed = {MANIFEST, TEXT} | {name for name in there if _has_name_of_table(name)}
    return sorted(there & listed, key=lambda name: (name != MANIFEST, name))


def foreign_files(folder: Path, own: Iterable[str] | None = None) -> list[str]:
    """List what lies in a dataset directory and is not the dataset's: relative posix paths.

    A link to a folder, and an empty folder, are listed as they are.

    Args:
        folder: The dataset directory.
        own: The files that are its own; None: `own_files`.
    """
    return sorted(set(_files(folder)).difference(own_files(folder) if own is None else own))


def delete_files(folder: Path, own: Iterable[str] | None = None) -> None:
    """Delete a dataset's files, the manifest first, and the folders that are empty then.

    Args:
        folder: The dataset directory.
        own: The files that are its own; None: `own_files`.

    Raises:
        OSError: One cannot be deleted.
    """
    names = own_files(folder) if own is None else list(own)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    above = {parent for name in names for parent in Path(name).parents} | {Path()}
    for parent in sorted(above, key=lambda path: -len(path.parts)):
        try:
            (folder / parent).rmdir()
        except OSError:  # something else is in there
            continue


def _has_name_of_table(name: str) -> bool:
    first, _, last = name.partition("/")
    return first in _TABLES and (last.endswith(SUFFIX) or Path(last).name == META)


def _files(folder: Path) -> Iterator[str]:
    """Walk a directory without following links: files, links, and folders that are empty."""
    for path, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(path, name).is_symlink()]
        for name in (*files, *linked):
            yield Path(path, name).relative_to(folder).as_posix()
        if not files and not folders and Path(path) != folder:
            yield Path(path).relative_to(folder).as_posix()
