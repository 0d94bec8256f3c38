"""What of a root can go without loss, and deleting it: decided first, carried out then."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from offline_data.disk import disk_errors
from offline_data.errors import NotFoundError, OfflineDataError
from offline_data.fetch.cache import remove_partial, unless_locked
from offline_data.store.housekeeping import (
    CacheItem,
    bytes_freed,
    cache_usage,
    lock_of_staged,
    somebody_fetches,
)
from offline_data.store.library import entry_at, remove
from offline_data.store.ownership import delete_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from offline_data.config import Settings

PARTIAL_DAYS = 7
"""Parts of files that nobody has gone on with for so long are pruned by default."""

IN_USE = "a process is working on it"
"""Why something stays that could go otherwise."""

_DAY = 86_400.0
_TRIES = 3

Fate: TypeAlias = Literal["removed", "in use", "gone"]


@dataclass(frozen=True)
class PrunePlan:
    """What pruning would do; nothing has been touched."""

    items: tuple[CacheItem, ...]
    """What goes."""
    kept: tuple[tuple[CacheItem, str], ...]
    """What is no dataset and stays all the same, each with the reason in half a sentence."""


@dataclass(frozen=True)
class Removal:
    """What became of items that were to be deleted."""

    removed: tuple[CacheItem, ...]
    """Deleted."""
    in_use: tuple[CacheItem, ...]
    """Left alone, because a process is working on them."""
    gone: tuple[CacheItem, ...]
    """Deleted by somebody else meanwhile."""
    freed: int
    """Bytes that the disk has back."""
    failures: tuple[OfflineDataError, ...] = field(default=())
    """Why the remaining ones are still there."""


def plan_prune(settings: Settings, older_than_days: int | None = None) -> PrunePlan:
    """Choose what no dataset needs: raw files, parts left for long, abandoned conversions.

    No dataset reads raw files once it is converted. Those stay that were asked to stay
    (`--keep-raw`, `--raw-only`), those that cannot be fetched again, and whatever a process is
    working on; `remove_items` deletes the former two where they are named.

    Args:
        settings: The root.
        older_than_days: Only what is as old; None: parts of `PARTIAL_DAYS`, the rest at any age.

    Raises:
        AccessError: A folder may not be read.
    """
    judged = [
        (item, _reason_to_keep(item, older_than_days))
        for item in cache_usage(settings).items
        if item.kind not in {"dataset", "damaged"}
    ]
    return PrunePlan(
        tuple(item for item, reason in judged if reason is None),
        tuple((item, reason) for item, reason in judged if reason is not None),
    )


def _reason_to_keep(item: CacheItem, days: int | None) -> str | None:
    if item.in_use:
        return IN_USE
    if not item.refetchable:
        return "cannot be fetched again"
    if item.wanted:
        return f"asked for with {item.wanted}"
    least = days if days is not None else PARTIAL_DAYS if item.kind == "partial" else 0
    return f"younger than {least} days" if item.age < least * _DAY else None


def remove_items(items: Iterable[CacheItem], settings: Settings) -> Removal:
    """Delete items, one after the other; one that cannot be deleted does not keep the others.

    What URLs had stays on record, and is compared when they are fetched again.

    Args:
        items: What `cache_usage` or `plan_prune` returned.
        settings: The same root.
    """
    fates: dict[CacheItem, Fate] = {}
    freed, failures = 0, []
    for item in items:
        try:
            with disk_errors(item.path):
                size = bytes_freed([item])
                fates[item] = _remove(item, settings)
        except OfflineDataError as error:
            failures.append(error)
            continue
        freed += size if fates[item] == "removed" else 0
    return Removal(
        _with_fate(fates, "removed"),
        _with_fate(fates, "in use"),
        _with_fate(fates, "gone"),
        freed,
        tuple(failures),
    )


def _with_fate(fates: dict[CacheItem, Fate], fate: Fate) -> tuple[CacheItem, ...]:
    return tuple(item for item, became in fates.items() if became == fate)


def _remove(item: CacheItem, settings: Settings) -> Fate:
    """Delete one item.

    Raises:
        OSError, AccessError: It may not be deleted, or nobody can tell whether it is in use.
    """
    if not item.path.exists():
        return "gone"
    if item.kind == "dataset":
        return _remove_dataset(item.path)
    if item.kind == "damaged":
        delete_files(item.path)
        return "removed"
    if item.kind == "download":
        return _remove_raw(item.path, settings)
    if item.kind == "staging":
        lock = settings.staging / f"{lock_of_staged(item.path)}.lock"
        done = unless_locked(lock, lambda: _remove_tree(item.path))
    else:
        lock = settings.downloads / "locks" / f"{item.path.stem}.lock"
        done = unless_locked(lock, lambda: remove_partial(item.path))
    return "removed" if done else "in use"


def _remove_dataset(path: Path) -> Fate:
    try:
        remove(entry_at(path))
    except NotFoundError:
        return "gone"
    return "removed"


def _remove_raw(path: Path, settings: Settings) -> Fate:
    """Delete a whole raw file, or a folder of them and the empty folders above it."""
    if somebody_fetches(settings):
        return "in use"
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return "removed"
    _remove_tree(path)
    for above in path.parents:
        if above == settings.downloads or any(above.iterdir()):
            break
        above.rmdir()
    return "removed"


def _remove_tree(path: Path) -> None:
    for _ in range(_TRIES):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # somebody else deletes in there at the same time
            continue
        return
