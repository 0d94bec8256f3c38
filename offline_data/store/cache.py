"""Items under a root that can be deleted, with their sizes; and pruning."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from offline_data.base.config import Settings
from offline_data.base.errors import AccessError, ManifestError, NotFoundError, OfflineDataError
from offline_data.base.files import (
    check_links,
    disk_errors,
    file_states,
    freed_bytes,
    is_locked,
    unless_locked,
)
from offline_data.fetch.cache import list_downloads, remove_unused_partial, state_path
from offline_data.store.layout import MANIFEST
from offline_data.store.library import delete_files, entry_at, remove, survey

Kind: TypeAlias = Literal["dataset", "download", "partial", "staging", "damaged"]

KINDS: tuple[Kind, ...] = ("dataset", "download", "partial", "staging", "damaged")

PARTIAL_DAYS = 7  # age in days from which partial files are pruned by default

IN_USE = "a process is working on it"


@dataclass(frozen=True)
class CacheItem:
    """One item under a root that can be deleted on its own."""

    kind: Kind
    """`dataset`, `download` (a whole raw file), `partial` (part of one), `staging` (output of a
    running or abandoned conversion), `damaged` (a dataset whose manifest cannot be read)."""
    path: Path
    bytes: int
    """Length of its files; a file with several hard links counts for the first item only."""
    detail: str
    """A dataset's id, or the URL of a raw file."""
    refetchable: bool
    """Whether nothing is lost by deleting it: it can be fetched again, or is of no use."""
    age: float = 0.0
    """Seconds since it was last written to."""
    in_use: bool = False
    """Whether a process is fetching or converting it, or may be about to read it."""
    wanted: str = ""
    """The option by which it is kept, `--keep-raw` or `--raw-only`."""


@dataclass(frozen=True)
class CacheUsage:
    """Everything under a root."""

    items: tuple[CacheItem, ...]
    """Datasets first."""
    other_bytes: int
    """Length of all other files: download records, locks, and files of others."""

    @property
    def bytes(self) -> int:
        """Length of the files of all items."""
        return sum(item.bytes for item in self.items)


def cache_usage(settings: Settings) -> CacheUsage:
    """List everything under the root without changing it. Raises `AccessError`.

    Sizes add up to the length of all files under the root, each counted once.
    """
    seen: set[tuple[int, int]] = set()

    def length(paths: Iterable[Path]) -> int:
        new = {file: state.st_size for file, state in file_states(paths) if file not in seen}
        seen.update(new)
        return sum(new.values())

    with disk_errors(settings.root):
        found = (*_datasets(settings), *_raw_files(settings), *_staging(settings))
        items = tuple(replace(item, bytes=length(_files_of(item))) for item in found)
        return CacheUsage(items, length([settings.root]))


def bytes_freed(items: Iterable[CacheItem]) -> int:
    """Return the bytes that deleting these items frees; files with links elsewhere stay."""
    return freed_bytes(path for item in items for path in _files_of(item))


def _files_of(item: CacheItem) -> list[Path]:
    return [item.path, *([state_path(item.path)] if item.kind == "partial" else [])]


def _datasets(settings: Settings) -> Iterator[CacheItem]:
    entries, unreadable = survey(settings.root)
    for one in entries:
        yield CacheItem("dataset", one.path, 0, str(one.id), one.refetchable, _age(one.path))
    for path, error in unreadable.items():
        if isinstance(error, ManifestError) and not path.is_symlink():
            yield CacheItem("damaged", path, 0, "its manifest cannot be read", False, _age(path))


def _raw_files(settings: Settings) -> Iterator[CacheItem]:
    busy, wanted = _is_fetching(settings), asked_to_stay(settings)
    locks = settings.downloads / "locks"
    for item in list_downloads(settings):
        kind: Kind = "download" if item.whole else "partial"
        in_use = busy if item.whole else _is_in_use(locks / f"{item.path.stem}.lock")
        detail = ", ".join(item.urls) or "unknown origin"
        why = wanted.get(item.path.name, "")
        yield CacheItem(kind, item.path, 0, detail, item.refetchable, item.age, in_use, why)
    for path in _raw_folders(settings):
        detail = f"raw files of {path.relative_to(settings.downloads / 'raw').as_posix()}"
        yield CacheItem("download", path, 0, detail, True, _age(path), busy, "--raw-only")


def asked_to_stay(settings: Settings) -> dict[str, str]:
    """Return the digests of raw files kept by `--keep-raw` or `--raw-only`, with that option.

    The former are listed in manifests, the latter linked in raw folders. Raises `AccessError`.
    """
    files = {path.name: path for path in (settings.downloads / "sha256").glob("??/*")}
    if not files:
        return {}
    laid_out = dict(file_states(_raw_folders(settings)))
    reasons = {
        name: "--raw-only"
        for name, path in files.items()
        if not laid_out.keys().isdisjoint(dict(file_states([path])))
    }
    for entry in survey(settings.root)[0]:
        if entry.manifest.converter.get("options", {}).get("keep_raw"):
            digests = (str(file.get("sha256")) for file in entry.manifest.files)
            reasons.update((name, "--keep-raw") for name in digests if name in files)
    return reasons


def _raw_folders(settings: Settings) -> list[Path]:
    """Folders that `download --raw-only` laid out: links to downloads, under their own names."""
    raw = settings.downloads / "raw"
    leaves = {path.parent for path in raw.rglob("*") if not path.is_dir()}
    return sorted(path for path in leaves if not any(above in leaves for above in path.parents))


def _staging(settings: Settings) -> Iterator[CacheItem]:
    for path in [path for path in sorted(settings.staging.glob("*")) if path.is_dir()]:
        in_use = _is_in_use(_lock_of(path)) or any(map(_is_in_use, path.glob("*/*.lock")))
        detail = "a conversion under way" if in_use else "left by a conversion that was killed"
        again = True
        # datasets that were moved aside, or not yet moved to their destination
        whole = [] if in_use else [*path.glob(MANIFEST), *path.glob(f"*/{MANIFEST}")]
        for manifest in whole:
            with suppress(OfflineDataError):
                entry = entry_at(manifest.parent)
                detail = f"{entry.id}, left there by a conversion that was killed"
                again = again and entry.refetchable
        yield CacheItem("staging", path, 0, detail, again, _age(path), in_use)


def _lock_of(staged: Path) -> Path:
    return staged.with_name(f"{staged.name.rpartition('.')[0]}.lock")


def _is_fetching(settings: Settings) -> bool:
    """Return True if a process is fetching or converting, so that it may read any raw file."""
    folders = (settings.staging, settings.downloads / "locks")
    return any(_is_in_use(path) for folder in folders for path in folder.glob("*.lock"))


def _is_in_use(lock: Path) -> bool:
    try:
        return is_locked(lock)
    except (OSError, AccessError):  # another user's, a read-only disk: deleting will fail
        return False


def _age(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


@dataclass(frozen=True)
class Removed:
    """Items that were deleted, or that `plan_prune` would delete, and what became of the others."""

    removed: tuple[CacheItem, ...]
    kept: tuple[tuple[CacheItem, str], ...]
    """Items that stay, each with the reason; datasets that `plan_prune` keeps are not listed."""
    bytes: int
    """Bytes freed on the disk."""
    gone: tuple[CacheItem, ...] = ()
    """Deleted by another process meanwhile."""
    failures: tuple[OfflineDataError, ...] = ()


def plan_prune(settings: Settings, older_than_days: int | None = None) -> Removed:
    """Choose items that no dataset needs: raw files, old partial files, abandoned conversions.

    Raw files that are kept by an option, cannot be fetched again or are in use stay.
    `older_than_days`: only items of at least that age; None: partial files from `PARTIAL_DAYS` on,
    others at any age. Raises `AccessError`.
    """
    judged = [
        (item, _reason_to_keep(item, older_than_days))
        for item in cache_usage(settings).items
        if item.kind not in {"dataset", "damaged"}
    ]
    chosen = tuple(item for item, reason in judged if reason is None)
    kept = tuple((item, reason) for item, reason in judged if reason is not None)
    return Removed(chosen, kept, bytes_freed(chosen))


def _reason_to_keep(item: CacheItem, days: int | None) -> str | None:
    if item.in_use:
        return IN_USE
    if not item.refetchable:
        return "cannot be fetched again"
    if item.wanted:
        return f"requested with {item.wanted}"
    least = days if days is not None else PARTIAL_DAYS if item.kind == "partial" else 0
    return f"younger than {least} days" if item.age < least * 86_400.0 else None


def remove_items(items: Iterable[CacheItem], settings: Settings) -> Removed:
    """Delete items; those in use are kept. Download records stay, for later comparison."""
    removed, busy, gone = list[CacheItem](), list[CacheItem](), list[CacheItem]()
    freed, failures = 0, []
    for item in dict.fromkeys(items):
        try:
            with disk_errors(item.path):
                size = bytes_freed([item])
                done = _remove(item, settings)
        except OfflineDataError as error:
            failures.append(error)
            continue
        (gone if done is None else removed if done else busy).append(item)
        freed += size if done else 0
    kept = tuple((item, IN_USE) for item in busy)
    return Removed(tuple(removed), kept, freed, tuple(gone), tuple(failures))


def _remove(item: CacheItem, settings: Settings) -> bool | None:
    """Delete one item: False if it is in use, None if it is gone. Raises `OSError`, `AccessError`."""
    done, path = True, item.path
    check_links(settings.root, path.parent)
    if not path.exists():
        return None
    if item.kind == "dataset":
        try:
            remove(entry_at(path))
        except NotFoundError:
            return None
    elif item.kind == "damaged":
        delete_files(path)
    elif item.kind == "staging":
        done = unless_locked(_lock_of(path), lambda: _remove_tree(path))
    elif item.kind == "partial":
        done = remove_unused_partial(path)
    elif _is_fetching(settings):
        done = False
    elif path.is_dir():
        _remove_tree(path)
        for above in path.parents:
            if above == settings.downloads or above.is_symlink() or any(above.iterdir()):
                break
            above.rmdir()
    else:
        path.unlink(missing_ok=True)
    return done


def _remove_tree(path: Path) -> None:
    for _ in range(3):
        with suppress(FileNotFoundError):  # deleted by another process at the same time
            shutil.rmtree(path)
            break
