"""Remove datasets; report what was deleted, kept, or cannot be downloaded again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from offline_data.base.pickles import pickled_by_name
from offline_data.store.cache import refetchable
from offline_data.store.library import Entry, foreign_files, remove


@pickled_by_name
@dataclass(frozen=True)
class RemovedDataset:
    """One dataset that was deleted, or would be."""

    id: str
    """Its id, revision included."""
    path: Path
    """Its directory."""
    bytes: int
    """Of its files."""


@pickled_by_name
@dataclass(frozen=True)
class DatasetRemoval:
    """Result of removing datasets."""

    removed: tuple[RemovedDataset, ...]
    """The datasets, each once."""
    bytes: int
    """Of all their files."""
    kept: tuple[Path, ...]
    """Files in their directories that are not theirs, and stay."""
    dry_run: bool
    """Whether nothing was deleted."""
    cannot_be_fetched_again: tuple[str, ...]
    """Ids of those that exist only here."""


def remove_datasets(entries: Iterable[Entry], *, dry_run: bool = False) -> DatasetRemoval:
    """Delete the files of datasets, or with `dry_run` only say what would be deleted.

    Raises `NotFoundError`, `AccessError`; datasets before the one that failed are deleted then.
    """
    chosen = list({entry.path: entry for entry in entries}.values())
    result = DatasetRemoval(
        tuple(RemovedDataset(str(entry.id), entry.path, entry.bytes) for entry in chosen),
        sum(entry.bytes for entry in chosen),
        tuple(entry.path / name for entry in chosen for name in foreign_files(entry.path)),
        dry_run,
        tuple(str(entry.id) for entry in chosen if not refetchable(entry)),
    )
    for entry in chosen if not dry_run else ():
        remove(entry)
    return result
