"""The files under a root, each counted once, as items that can be deleted; and pruning."""

from __future__ import annotations

import shutil
import stat
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from offline_data.disk import disk_errors
from offline_data.errors import ManifestError, NotFoundError, OfflineDataError
from offline_data.fetch.cache import list_downloads, remove_partial, unless_locked
from offline_data.fetch.mirrors import scheme_of
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, delete_files, entry_at, remove, survey
from offline_data.store.locks import is_locked

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from offline_data.config import Settings

Kind: TypeAlias = Literal["dataset", "download", "partial", "staging", "damaged"]

KINDS: tuple[Kind, ...] = ("dataset", "download", "partial", "staging", "damaged")

PARTIAL_DAYS = 7
"""Age in days from which parts of files are pruned by default."""

IN_USE = "a process is working on it"
"""Why something stays that could go otherwise."""

_DAY = 86_400.0
_TRIES = 3

Fate: TypeAlias = Literal["removed", "in use", "gone"]


@dataclass(frozen=True)
class CacheItem:
    """One thing under a root that can be deleted by itself."""

    kind: Kind
    """`dataset`, `download` (raw files, whole), `partial` (a part of one), `staging` (what a
    conversion is writing, or left), `damaged` (a dataset whose manifest cannot be read)."""
    path: Path
    """A folder or file."""
    bytes: int
    """Length of its files; one that has several names is counted at the first item with it."""
    detail: str
    """A dataset's id, or where a raw file is from."""
    refetchable: bool
    """Whether nothing is lost with it: the same can be had again from its source, or it is of no
    use as it is."""
    age: float = 0.0
    """Seconds since it was last written to."""
    in_use: bool = False
    """Whether a process is fetching or converting it, or may be about to read it."""
    wanted: str = ""
    """The option with which it was asked to stay, `--keep-raw` or `--raw-only`, if it was."""


@dataclass(frozen=True)
class CacheUsage:
    """Everything under a root."""

    items: tuple[CacheItem, ...]
    """Datasets first."""
    other_bytes: int
    """Length of all other files: records of what URLs had, locks, and what is none of ours."""

    @property
    def bytes(self) -> int:
        """Length of the files of all items."""
        return sum(item.bytes for item in self.items)


def cache_usage(settings: Settings) -> CacheUsage:
    """List everything under the root; touches nothing.

    The lengths add up to those of all files under the root, each counted once; folders have none.
    What other processes delete meanwhile may be listed or not.

    Raises:
        AccessError: A folder may not be read.
    """
    seen: set[tuple[int, int]] = set()

    def length(paths: Iterable[Path]) -> int:
        new = {_identity(state): state.st_size for state in _states(paths)}
        total = sum(size for file, size in new.items() if file not in seen)
        seen.update(new)
        return total

    with disk_errors(settings.root):
        found = (*_datasets(settings), *_raw_files(settings), *_staging(settings))
        items = tuple(replace(item, bytes=length(_files_of(item))) for item in found)
        return CacheUsage(items, length([settings.root]))


def bytes_freed(items: Iterable[CacheItem]) -> int:
    """Add up what the disk gets back without these items: files with a name elsewhere stay."""
    states = [state for item in items for state in _states(_files_of(item))]
    names = Counter(map(_identity, states))
    single = {_identity(state): state for state in states}
    return sum(s.st_size for file, s in single.items() if names[file] >= s.st_nlink)


def _files_of(item: CacheItem) -> list[Path]:
    """Return the files and folders that make up an item: a part has its note beside it."""
    note = [item.path.with_suffix(".json")] if item.kind == "partial" else []
    return [item.path, *note]


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


def _states(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Look at files, and at all files below folders; links are not followed."""
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        try:
            state = path.lstat()
            below = list(path.iterdir()) if stat.S_ISDIR(state.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            continue
        if below is None:
            yield state
        else:
            waiting += below


def _datasets(settings: Settings) -> Iterator[CacheItem]:
    entries, unreadable = survey(settings.root)
    for entry in entries:
        yield CacheItem(
            "dataset", entry.path, 0, str(entry.id), refetchable(entry), _age(entry.path)
        )
    for path, error in unreadable.items():
        if isinstance(error, ManifestError) and not path.is_symlink():
            yield CacheItem("damaged", path, 0, "its manifest cannot be read", False, _age(path))


def refetchable(entry: Entry) -> bool:
    """Return True if hosts have its raw files: what was made here, or of the user's own, has none."""
    urls = [file.get("url") for file in entry.manifest.files]
    return bool(urls) and all(url and scheme_of(url) != "file" for url in urls)


def _raw_files(settings: Settings) -> Iterator[CacheItem]:
    busy = _is_fetching(settings)
    wanted = asked_to_stay(settings)
    for item in list_downloads(settings):
        kind: Kind = "download" if item.whole else "partial"
        in_use = busy if item.whole else _held(settings.downloads / "locks", item.path.stem)
        detail = ", ".join(item.urls) or "unknown origin"
        why = wanted.get(item.path.name, "")
        yield CacheItem(kind, item.path, 0, detail, item.refetchable, item.age, in_use, why)
    for path in _raw_folders(settings):
        detail = f"raw files of {path.relative_to(settings.downloads / 'raw').as_posix()}"
        yield CacheItem("download", path, 0, detail, True, _age(path), busy, "--raw-only")


def asked_to_stay(settings: Settings) -> dict[str, str]:
    """Return digests of whole raw files that were asked to stay, each with the option that did.

    Those are the files of datasets that were converted with `--keep-raw`, as their manifests say,
    and those that `--raw-only` has laid out.

    Raises:
        AccessError: There are raw files, and a folder under the root may not be read.
    """
    files = {path.name: path for path in (settings.downloads / "sha256").glob("??/*")}
    if not files:
        return {}
    laid_out = set(map(_identity, _states(_raw_folders(settings))))
    reasons = {
        name: "--raw-only"
        for name, path in files.items()
        if not laid_out.isdisjoint(map(_identity, _states([path])))
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
    for path in sorted(settings.staging.glob("*")):
        if not path.is_dir():
            continue
        in_use = _held(settings.staging, _lock_of(path))
        detail = "a conversion under way" if in_use else "left by a conversion that was killed"
        again = True
        for entry in _whole_datasets(path) if not in_use else ():
            detail = f"{entry.id}, left there by a conversion that was killed"
            again = again and refetchable(entry)
        yield CacheItem("staging", path, 0, detail, again, _age(path), in_use)


def _whole_datasets(staged: Path) -> Iterator[Entry]:
    """Datasets that were moved aside to be replaced, or not yet moved to their place."""
    for manifest in [*staged.glob(MANIFEST), *staged.glob(f"*/{MANIFEST}")]:
        try:
            yield entry_at(manifest.parent)
        except OfflineDataError:
            continue


def _lock_of(staged: Path) -> str:
    """Return the name of the lock that a process holds while it writes a staging folder."""
    return staged.name.rpartition(".")[0]


def _is_fetching(settings: Settings) -> bool:
    """Return True if some process fetches or converts: it may be about to read any raw file."""
    folders = (settings.staging, settings.downloads / "locks")
    locks = [path for folder in folders for path in folder.glob("*.lock")]
    return any(_held(path.parent, path.stem) for path in locks)


def _held(folder: Path, lock: str) -> bool:
    try:
        return is_locked(folder, lock)
    except OSError:  # of another user, or on a disk that may only be read: deleting will tell
        return False


def _age(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


@dataclass(frozen=True)
class PrunePlan:
    """The result of `plan_prune`; nothing has been deleted."""

    items: tuple[CacheItem, ...]
    """Items to delete."""
    kept: tuple[tuple[CacheItem, str], ...]
    """Items other than datasets that are kept, each with the reason in half a sentence."""


@dataclass(frozen=True)
class Removal:
    """The result of `remove_items`."""

    removed: tuple[CacheItem, ...]
    """Deleted."""
    in_use: tuple[CacheItem, ...]
    """Left alone, because a process is working on them."""
    gone: tuple[CacheItem, ...]
    """Deleted by somebody else meanwhile."""
    freed: int
    """Bytes that the disk has back."""
    failures: tuple[OfflineDataError, ...] = ()
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
    fates: dict[Fate, list[CacheItem]] = {"removed": [], "in use": [], "gone": []}
    freed, failures = 0, []
    for item in dict.fromkeys(items):
        try:
            with disk_errors(item.path):
                size = bytes_freed([item])
                fate = _remove(item, settings)
        except OfflineDataError as error:
            failures.append(error)
            continue
        fates[fate].append(item)
        freed += size if fate == "removed" else 0
    removed, in_use, gone = map(tuple, fates.values())
    return Removal(removed, in_use, gone, freed, tuple(failures))


def _remove(item: CacheItem, settings: Settings) -> Fate:
    """Delete one item.

    Raises:
        OSError, AccessError: It may not be deleted, or nobody can tell whether it is in use.
    """
    if not item.path.exists():
        return "gone"
    if item.kind == "dataset":
        try:
            remove(entry_at(item.path))
        except NotFoundError:
            return "gone"
        return "removed"
    if item.kind == "damaged":
        delete_files(item.path)
        return "removed"
    if item.kind == "download":
        return _remove_raw(item.path, settings)
    if item.kind == "staging":
        lock = settings.staging / f"{_lock_of(item.path)}.lock"
        done = unless_locked(lock, lambda: _remove_tree(item.path))
    else:
        lock = settings.downloads / "locks" / f"{item.path.stem}.lock"
        done = unless_locked(lock, lambda: remove_partial(item.path))
    return "removed" if done else "in use"


def _remove_raw(path: Path, settings: Settings) -> Fate:
    """Delete a whole raw file, or a folder of them and the empty folders above it."""
    if _is_fetching(settings):
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
        with suppress(FileNotFoundError):  # somebody else deletes in there at the same time
            shutil.rmtree(path)
            break
