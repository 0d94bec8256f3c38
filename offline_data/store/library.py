"""The datasets under a root: list, find, remove."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.errors import AccessError, NotFoundError, OfflineDataError
from offline_data.ids import DatasetId, looks_like_path, nearest, parse_id
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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


def survey(root: Path) -> tuple[list[Entry], list[Path]]:
    """List every dataset under `root`, and the directories whose manifest cannot be read."""
    entries, damaged = [], []
    for folder in _dataset_folders(root):
        try:
            entries.append(entry_at(folder))
        except OfflineDataError:
            damaged.append(folder)
    return sorted(entries, key=lambda entry: str(entry.id)), sorted(damaged)


def entry_at(folder: Path) -> Entry:
    """Read the entry of one dataset directory; raises what `read_manifest` raises."""
    manifest = read_manifest(folder)
    return Entry(parse_id(manifest.id), folder, manifest)


def find(root: Path, dataset: DatasetId) -> Entry | None:
    """Find a dataset under `root`: at its revision, else the newest whole one, else None.

    Raises:
        ManifestError, NewerFormatError: It is there but cannot be read.
    """
    home = root / dataset.folder
    if dataset.revision:
        folder = home / dataset.revision
        return entry_at(folder) if (folder / MANIFEST).exists() else None
    if not home.is_dir():
        return None
    found = [entry_at(path.parent) for path in home.glob(f"*/{MANIFEST}")]
    whole = [entry for entry in found if not entry.partial]
    return max(whole, key=lambda entry: entry.manifest.created, default=None)


def locate(text: str, settings: Settings) -> Entry:
    """Find the dataset that a user means by an id or by the path of a dataset directory.

    Raises:
        NotFoundError: It is not on this disk; the hint has the nearest ids or how to get it.
        InvalidIdError: Neither a path nor an id.
    """
    from pathlib import Path

    if looks_like_path(text) or (Path(text) / MANIFEST).exists():
        return entry_at(Path(text).expanduser())
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
        return f"to make it: offline-data convert PATH {dataset.name}"
    return f"to get it: offline-data download {dataset}"


def remove(entry: Entry) -> int:
    """Delete one dataset directory; returns the bytes freed. The manifest goes first.

    A process that has it open keeps its maps until it closes them (POSIX).

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
        (entry.path / MANIFEST).unlink()
        shutil.rmtree(entry.path)
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


def _dataset_folders(root: Path) -> Iterator[Path]:
    from pathlib import Path

    if not root.exists():
        return
    for folder, names, files in os.walk(root, onerror=_refuse):
        if MANIFEST in files:
            names.clear()
            yield Path(folder)
        names[:] = [name for name in names if not name.startswith(".")]


def _refuse(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):  # another process deletes it at this moment
        return
    raise AccessError(
        f"{error.filename} cannot be read: {error.strerror}",
        hint="choose another root: --root DIR or OFFLINE_DATA_HOME",
    ) from error


def total_bytes(entries: Sequence[Entry]) -> int:
    """Add up the sizes of datasets."""
    return sum(entry.bytes for entry in entries)
