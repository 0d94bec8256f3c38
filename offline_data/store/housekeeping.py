"""What lies under a root beside the datasets themselves, and what of it can go."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from offline_data.errors import AccessError
from offline_data.fetch.downloads import Download, list_downloads, remove_downloads
from offline_data.store.library import Entry, entry_at, list_datasets, remove
from offline_data.store.locks import is_locked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from offline_data.config import Settings

Kind: TypeAlias = Literal["dataset", "download", "partial", "staging"]

PARTIAL_DAYS = 7
"""Parts of files that nobody has gone on with for so long are pruned by default."""

_DAY = 86_400.0


@dataclass(frozen=True)
class CacheItem:
    """One thing under a root that can be deleted by itself."""

    kind: Kind
    """`dataset`, `download` (raw files, whole), `partial` (a part of one), `staging` (what a
    conversion left)."""
    path: Path
    """A folder or file."""
    bytes: int
    """Bytes on the disk; a file that is linked twice counts once."""
    detail: str
    """A dataset's id, or where a raw file is from."""
    refetchable: bool
    """Whether the same can be had again from its source."""
    age: float = 0.0
    """Seconds since it was last written to."""


def cache_usage(settings: Settings) -> tuple[CacheItem, ...]:
    """List everything under the root, datasets first; touches nothing.

    Raises:
        AccessError: A folder may not be read.
    """
    return (
        *_datasets(settings),
        *_downloads(settings),
        *_raw_folders(settings),
        *_staging(settings),
    )


def plan_prune(settings: Settings, older_than_days: int | None = None) -> tuple[CacheItem, ...]:
    """Choose what no dataset needs: raw files, parts left for long, abandoned conversions.

    Args:
        settings: The root.
        older_than_days: Only what is as old; None: parts of `PARTIAL_DAYS`, the rest at any age.
    """
    return tuple(
        item
        for item in cache_usage(settings)
        if item.kind != "dataset" and item.age >= _least_age(item, older_than_days)
    )


def remove_items(items: Iterable[CacheItem], settings: Settings) -> int:
    """Delete items; returns the bytes they had. What a process is working on is left alone.

    Raises:
        NotFoundError, AccessError: A dataset that is gone, or may not be deleted.
    """
    freed = 0
    for item in items:
        if item.kind == "dataset":
            freed += remove(entry_at(item.path))
        elif item.kind == "staging":
            freed += 0 if _in_use(item.path) else _remove_tree(item)
        elif item.path.is_dir() and item.kind == "download":
            freed += _remove_tree(item)
        else:
            freed += remove_downloads([_as_download(item)], settings)
    return freed


def _least_age(item: CacheItem, days: int | None) -> float:
    if days is not None:
        return days * _DAY
    return PARTIAL_DAYS * _DAY if item.kind == "partial" else 0.0


def _datasets(settings: Settings) -> Iterator[CacheItem]:
    for entry in list_datasets(settings.root):
        yield CacheItem(
            "dataset", entry.path, entry.bytes, str(entry.id), _refetchable(entry), _age(entry.path)
        )


def _refetchable(entry: Entry) -> bool:
    """Tell whether its raw files have addresses: made here, or read from the user's own, not."""
    files = entry.manifest.files
    return bool(files) and all(file.get("url") for file in files)


def _downloads(settings: Settings) -> Iterator[CacheItem]:
    for item in list_downloads(settings):
        kind: Kind = "download" if item.whole else "partial"
        detail = ", ".join(item.urls) or "unknown origin"
        yield CacheItem(kind, item.path, item.size, detail, bool(item.urls), item.age)


def _raw_folders(settings: Settings) -> Iterator[CacheItem]:
    """Folders that `download --raw-only` laid out: links to downloads, under their own names."""
    raw = settings.downloads / "raw"
    leaves = {path.parent for path in raw.rglob("*") if path.is_file()} if raw.is_dir() else set()
    tops = [path for path in leaves if not any(parent in leaves for parent in path.parents)]
    for path in sorted(tops):
        detail = f"raw files of {path.relative_to(raw).as_posix()}"
        yield CacheItem("download", path, _own_bytes(path), detail, True, _age(path))


def _staging(settings: Settings) -> Iterator[CacheItem]:
    if not settings.staging.is_dir():
        return
    for path in sorted(settings.staging.iterdir()):
        if path.is_dir() and not _in_use(path):
            detail = "left by a conversion that was killed"
            yield CacheItem("staging", path, _own_bytes(path), detail, True, _age(path))


def _in_use(staged: Path) -> bool:
    return is_locked(staged.parent, staged.name.rpartition(".")[0])


def _own_bytes(folder: Path) -> int:
    """Add up the files of a folder that have no other name elsewhere."""
    states = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum(state.st_size for state in states if state.st_nlink == 1)


def _age(path: Path) -> float:
    return max(0.0, time.time() - path.stat().st_mtime)


def _remove_tree(item: CacheItem) -> int:
    try:
        shutil.rmtree(item.path)
    except OSError as error:
        raise AccessError(f"{error.filename} cannot be deleted: {error.strerror}") from error
    return item.bytes


def _as_download(item: CacheItem) -> Download:
    return Download(item.path, item.bytes, (), item.age, item.kind == "download")
