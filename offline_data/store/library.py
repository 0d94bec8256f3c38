"""The datasets under a root: list, find, remove."""

from __future__ import annotations

import errno
import os
import shlex
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.config_file import user_path
from offline_data.errors import (
    AccessError,
    InvalidIdError,
    ManifestError,
    NotFoundError,
    OfflineDataError,
)
from offline_data.ids import DatasetId, looks_like_path, nearest, parse_id
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.ownership import delete_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from offline_data.config import Settings


@dataclass(frozen=True)
class Entry:
    """One dataset directory."""

    id: DatasetId
    """Its id, revision included."""
    path: Path
    """The directory."""
    manifest: Manifest
    """Its manifest."""

    @property
    def bytes(self) -> int:
        """Bytes of all its files but the manifest."""
        return self.manifest.bytes

    @property
    def partial(self) -> bool:
        """Whether only some episodes of the source were asked for (`--episodes`)."""
        return bool(self.manifest.converter.get("options", {}).get("episodes"))


def list_datasets(root: Path) -> list[Entry]:
    """List every readable dataset under `root`, sorted by id; damaged ones are left out.

    Raises:
        AccessError: The root exists and may not be read.
    """
    return survey(root)[0]


def survey(root: Path) -> tuple[list[Entry], dict[Path, OfflineDataError]]:
    """List every dataset under `root`, and the folders that cannot be read, each with the reason.

    Raises:
        AccessError: The root exists and may not be read.
    """
    entries: list[Entry] = []
    unreadable: dict[Path, OfflineDataError] = {}
    for folder in _dataset_folders(root, unreadable):
        try:
            entries.append(entry_at(folder))
        except OfflineDataError as error:
            if has_manifest(folder):  # else another process deletes it at this moment
                unreadable[folder] = error
    return sorted(entries, key=lambda entry: str(entry.id)), dict(sorted(unreadable.items()))


def has_manifest(folder: Path) -> bool:
    """Return True if `folder` has a manifest, of whatever kind; raises `AccessError`."""
    try:
        (folder / MANIFEST).lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL in the name
        return False
    except OSError as error:
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP}:
            return False
        raise AccessError(f"{folder} cannot be read: {error.strerror}") from error
    return True


def entry_at(folder: Path) -> Entry:
    """Read the entry of one dataset directory; raises what `read_manifest` raises."""
    manifest = read_manifest(folder)
    try:
        return Entry(parse_id(manifest.id), folder, manifest)
    except InvalidIdError as error:
        raise ManifestError(f"{folder / MANIFEST} has no id that can be used: {error}") from error


def find(root: Path, dataset: DatasetId) -> Entry | None:
    """Find a dataset under `root`: at its revision, else the newest whole one, else None.

    Revisions that cannot be read are passed over with a warning where there is another one.

    Raises:
        ManifestError, NewerFormatError, AccessError: It is there but cannot be read.
    """
    home = root / dataset.folder
    if dataset.revision:
        folder = home / dataset.revision
        return entry_at(folder) if has_manifest(folder) else None
    found, unreadable = revisions(home)
    whole = newest([entry for entry in found if not entry.partial])
    if whole is None and unreadable:
        raise next(iter(unreadable.values()))
    for folder, error in unreadable.items():
        warnings.warn(f"{folder} is passed over: {error.message}", stacklevel=2)
    return whole


def revisions(home: Path, pattern: str = "*") -> tuple[list[Entry], dict[Path, OfflineDataError]]:
    """Read the datasets right below a folder; returns those that cannot be read with the reason."""
    found, unreadable = [], {}
    for manifest in sorted(home.glob(f"{pattern}/{MANIFEST}")) if home.is_dir() else ():
        try:
            found.append(entry_at(manifest.parent))
        except OfflineDataError as error:
            if has_manifest(manifest.parent):  # else another process deletes it at this moment
                unreadable[manifest.parent] = error
    return found, unreadable


def newest(entries: Iterable[Entry]) -> Entry | None:
    """Return the dataset that was made last; None where there is none.

    Manifests of older versions tell the second only; then the one that was written last is meant.
    """

    def order(entry: Entry) -> tuple[str, int]:
        try:
            written = (entry.path / MANIFEST).stat().st_mtime_ns
        except OSError:  # another process deletes it at this moment
            written = 0
        return entry.manifest.created, written

    return max(entries, key=order, default=None)


def locate(text: str, settings: Settings) -> Entry:
    """Find the dataset that a user means by an id or by the path of a dataset directory.

    Raises:
        NotFoundError: It is not on this disk; the hint has the nearest ids or how to get it.
        InvalidIdError: Neither a path nor an id.
    """
    from pathlib import Path

    if looks_like_path(text) or has_manifest(Path(text)):
        return entry_at(user_path(text, "the dataset"))
    dataset = parse_id(text)
    entry = find(settings.root, dataset)
    if entry is None:
        known = [str(e.id).partition("@")[0] for e in list_datasets(settings.root)]
        near = nearest(text, known)
        raise NotFoundError(
            f"{text} is not on this disk (looked in {settings.root})",
            hint=f"did you mean {' or '.join(near)}? " * bool(near) + how_to_get(dataset),
        )
    return entry


def how_to_get(dataset: DatasetId) -> str:
    """Say which command brings a dataset here.

    Example:
        >>> how_to_get(DatasetId("local", "mine"))
        'to make it: offline-data convert PATH mine'
    """
    if dataset.source == "local":
        return f"to make it: offline-data convert PATH {shlex.quote(dataset.name)}"
    return f"to get it: offline-data download {shlex.quote(str(dataset))}"


def remove(entry: Entry) -> int:
    """Delete the files of one dataset; returns the bytes freed. The manifest goes first.

    What the manifest does not list stays, and the folder with it: `foreign_files` names it.
    A process that has the dataset open keeps its maps until it closes them (POSIX).

    Raises:
        NotFoundError: It is gone already.
        AccessError: A file may not be deleted.
    """
    read_manifest(entry.path)
    if entry.path.is_symlink():
        raise AccessError(
            f"{entry.path} is a link, and what it leads to may be somebody else's",
            hint=f"delete {entry.path.resolve()} itself",
        )
    try:
        delete_files(entry.path)
    except OSError as error:
        where, why = error.filename or entry.path, error.strerror or error
        raise AccessError(f"{where} cannot be deleted: {why}") from error
    _remove_empty_parents(entry)
    return entry.bytes


def _remove_empty_parents(entry: Entry) -> None:
    """Take away the folders of the id above a removed dataset, as far as they are empty."""
    expected = (entry.id.folder + f"/{entry.path.name}").split("/")
    if list(entry.path.parts[-len(expected) :]) != expected:
        return
    for parent in list(entry.path.parents)[: len(expected) - 1]:
        try:
            parent.rmdir()
        except OSError:
            return


def _dataset_folders(root: Path, unreadable: dict[Path, OfflineDataError]) -> Iterator[Path]:
    """Yield the folders under `root` that have a manifest, links to such folders included."""
    from pathlib import Path

    def note(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # another process deletes it at this moment
            return
        told = AccessError(
            f"{error.filename} cannot be read: {error.strerror}",
            hint="choose another root: --root DIR or OFFLINE_DATA_HOME",
        )
        if Path(error.filename) == root:
            raise told from error
        unreadable[Path(error.filename)] = told

    if not root.exists():
        return
    for folder, names, files in os.walk(root, onerror=note):
        if MANIFEST in [*files, *names]:
            names.clear()
            yield Path(folder)
        names[:] = [name for name in names if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() and os.path.lexists(path / MANIFEST):
                yield path


def total_bytes(entries: Sequence[Entry]) -> int:
    """Add up the sizes of datasets."""
    return sum(entry.bytes for entry in entries)
