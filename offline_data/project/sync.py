"""`lock` and `sync`: from `datasets.toml` to `datasets.lock`, and from that to this disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from offline_data.errors import (
    IntegrityError,
    LockError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.ids import nearest
from offline_data.ingest.build import destination_of
from offline_data.ingest.download import download, naming_the_command, on_disk
from offline_data.ingest.options import Options
from offline_data.progress import SILENT
from offline_data.project.content import digest_of
from offline_data.project.lockfile import (
    LockedDataset,
    LockedFile,
    differences,
    read_lock,
    write_lock,
)
from offline_data.project.requests import read_requests
from offline_data.sources.registry import get_source
from offline_data.store.library import find

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.ids import DatasetId
    from offline_data.progress import Progress
    from offline_data.project.requests import Request
    from offline_data.store.library import Entry

Action: TypeAlias = Literal["none", "download", "rewrite"]
"""Nothing, fetch and convert, or write in the other layout."""

_MOST_NAMED = 5


@dataclass(frozen=True)
class LockResult:
    """Result of `lock`."""

    path: Path
    """The lock file."""
    datasets: tuple[LockedDataset, ...]
    """Its datasets, sorted by name; with `check`, as they are in the file."""
    changes: tuple[str, ...]
    """What was changed in it, or with `check` has to be, a sentence each."""
    written: bool
    """Whether it was written."""


@dataclass(frozen=True)
class SyncedDataset:
    """A dataset that is on this disk as locked; after a dry run, that would be."""

    name: str
    """Its short name in the project."""
    id: DatasetId
    """Its id on this disk, revision included."""
    path: Path
    action: Action
    """What was done, or after a dry run would be done."""
    bytes: int
    """Bytes of its raw files, as far as they are known."""


def lock_path(file: Path) -> Path:
    """Return the lock file of a `datasets.toml`, beside it; raises `UsageError`."""
    if file.suffix == ".lock" or not file.name:
        raise UsageError(f"{file} is a lock file; expected the path of datasets.toml")
    return file.with_suffix(".lock")


def check_lock(file: Path) -> LockResult:
    """Compare a lock file with its `datasets.toml`; reads nothing else."""
    path = lock_path(file)
    requests, locked = read_requests(file), _locked(path)
    return LockResult(path, tuple(locked.values()), differences(requests, locked), written=False)


def lock_datasets(
    file: Path,
    settings: Settings,
    upgrade: bool | Collection[str] = False,
    progress: Progress = SILENT,
) -> LockResult:
    """Write the lock file of a `datasets.toml`; see `offline_data.lock`."""
    path = lock_path(file)
    requests, before = read_requests(file), _locked(path)
    names = set[str]()
    if not isinstance(upgrade, bool):
        names = {upgrade} if isinstance(upgrade, str) else set(upgrade)
    for name in sorted(names - requests.keys()):
        near = nearest(name, requests, 1)
        raise NotFoundError(
            f"{file} has no dataset {name!r}", hint=f"did you mean {near[0]}?" if near else None
        )
    found: dict[str, LockedDataset] = {}
    for name, request in requests.items():
        kept = before.get(name)
        newest = upgrade is True or name in names
        if kept and not newest and not differences({name: request}, {name: kept}):
            found[name] = kept
            continue
        try:
            found[name] = _lock_one(request, kept, settings, progress, newest=newest)
        except OfflineDataError as error:
            raise type(error)(f"{name}: {error.message}", hint=error.shell_hint) from error
    changes = tuple(_changes(before, found))
    return LockResult(path, tuple(found.values()), changes, write_lock(path, found))


def _lock_one(
    request: Request,
    kept: LockedDataset | None,
    settings: Settings,
    progress: Progress,
    *,
    newest: bool,
) -> LockedDataset:
    """Lock one dataset, downloading it where it is not on this disk."""
    revision = request.id.revision
    if revision is None and kept and not newest and kept.requested == request.id:
        revision = kept.id.revision
    if revision is None:
        revision = _revision(request, settings, newest=newest)
    dataset = request.id.at(revision)
    existing = find(settings.root, dataset.at(request.options.revision_of(revision)))
    if existing is not None and (other := _other_options(existing, request.options)):
        raise UsageError(
            f"{existing.id} on this disk was made with other options: {'; '.join(other)}",
            hint="state the same options in datasets.toml, or use another --root",
        )
    stored = download(dataset, settings, request.options, progress)
    entry = find(settings.root, stored.id)
    if entry is None:
        raise NotFoundError(f"{stored.id} was deleted by another process")
    if dataset.source == "local" or revision.startswith("local-"):
        progress.note(
            f"{stored.id} was made of files on this machine; `sync` cannot fetch it elsewhere"
        )
    manifest = entry.manifest
    files = tuple(
        LockedFile(
            str(file.get("path", "")),
            _published(file.get("url"), settings),
            file.get("size"),
            file.get("sha256"),
        )
        for file in manifest.files
    )
    converter = manifest.converter
    return LockedDataset(
        request.name,
        dataset,
        request.id,
        request.options,
        stored.transitions,
        stored.episodes,
        digest_of(entry, settings.root, progress),
        f"{converter.get('name', 'unknown')} {converter.get('version', '')}".rstrip(),
        tuple(sorted(files, key=lambda file: file.path)),
    )


def _revision(request: Request, settings: Settings, *, newest: bool) -> str:
    """Return the source's revision that is on this disk; if none is, or for `newest`, its newest."""
    ranges = Options(episodes=request.options.episodes, checkpoints=request.options.checkpoints)
    local = request.id.source == "local"
    entry = on_disk(request.id, settings, ranges) if local or not newest else None
    if entry is not None:
        return str(entry.id.revision).removesuffix(ranges.revision_of(""))
    with naming_the_command(request.id, settings, request.options) as asking:
        return get_source(request.id.source).resolve(request.id.name, None, asking).revision


def _other_options(entry: Entry, options: Options) -> list[str]:
    """Return what makes a dataset differ from one that `download` would make with these options."""
    if entry.id.source == "local":
        return []
    recorded = entry.manifest.converter.get("options") or {}
    images = recorded.get("images") or "encoded", options.images or "encoded"
    keeps = bool(recorded.get("keep_episodes")), options.keep_episodes
    found = [
        f"{name} is {str(here).lower()}, not {str(wanted).lower()}"
        for name, (here, wanted) in (("images", images), ("keep_episodes", keeps))
        if here != wanted
    ]
    if entry.manifest.skipped and not options.skip_bad_episodes:
        found.append("skip_bad_episodes is true, not false")
    return found


def _published(url: str | None, settings: Settings) -> str | None:
    """Return the URL that a mirror of this machine stands for."""
    for prefix, replacement in settings.mirrors if url else ():
        if url and url.startswith(replacement):
            return prefix + url.removeprefix(replacement)
    return url


def _changes(before: dict[str, LockedDataset], after: dict[str, LockedDataset]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None and new is not None:
            yield f"added {name}: {new.stored_id}"
        elif new is None and old is not None:
            yield f"removed {name}: {old.stored_id}"
        elif old and new and old.stored_id != new.stored_id:
            yield f"updated {name}: {old.stored_id} -> {new.stored_id}"
        elif old and new and old != new:
            what = "content" if old.content != new.content else "description"
            yield f"updated {name}: the {what} of {new.stored_id}"


def sync_datasets(
    file: Path,
    settings: Settings,
    *,
    locked: bool = False,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> tuple[SyncedDataset, ...]:
    """Make this disk hold the datasets of a lock file; see `offline_data.sync`."""
    checked = check_lock(file)
    if checked.changes and (locked or dry_run):
        raise LockError(
            f"{checked.path} is not up to date with {file.name}: {'; '.join(checked.changes)}",
            hint="update it: `offline-data lock`",
        )
    datasets = checked.datasets
    if checked.changes:
        datasets = lock_datasets(file, settings, progress=progress).datasets
    done: list[SyncedDataset] = []
    failed: list[OfflineDataError] = []
    for one in datasets:
        try:
            done.append(_sync_one(one, settings, progress, dry_run=dry_run))
        except OfflineDataError as error:  # continue with the others
            failed.append(type(error)(f"{one.name}: {error.message}", hint=error.shell_hint))
    if len(failed) == 1:
        raise failed[0]
    if failed:
        lines = "\n".join(error.message for error in failed)
        raise type(failed[0])(
            f"{len(failed)} of {len(datasets)} datasets are not as locked\n{lines}",
            hint=failed[0].shell_hint,
        )
    return tuple(done)


def _sync_one(
    one: LockedDataset, settings: Settings, progress: Progress, *, dry_run: bool
) -> SyncedDataset:
    """Make this disk hold one dataset; raises `IntegrityError` naming what is not as locked."""
    entry = find(settings.root, one.stored_id)
    action: Action = "none"
    if entry is None:
        action = "download"
    else:
        _check(entry, one, settings, progress)
        if one.options.layout not in {None, entry.manifest.layout}:
            action = "rewrite"
    place = destination_of(one.stored_id, settings)
    if action != "none" and not dry_run:
        digests = {file.path: file.sha256 for file in one.files if file.sha256}
        place = download(one.id, settings, one.options, progress, digests=digests).path
        entry = find(settings.root, one.stored_id)
        if entry is None:
            raise NotFoundError(f"{one.stored_id} was deleted by another process")
        _check(entry, one, settings, progress)
    return SyncedDataset(one.name, one.stored_id, place, action, one.bytes)


def _check(entry: Entry, one: LockedDataset, settings: Settings, progress: Progress) -> None:
    """Raise `IntegrityError` unless a dataset is as locked."""
    wrong = [*_other_options(entry, one.options), *_wrong_files(entry, one.files)]
    for name, expected in (("transitions", one.transitions), ("episodes", one.episodes)):
        if (count := entry.manifest.counts[name]) != expected:
            wrong.append(f"it has {count} {name}, not {expected}")
    content = digest_of(entry, settings.root, progress)
    if content != one.content:
        wrong.append(f"its content is {content[:19]}…, not {one.content[:19]}…")
    if wrong:
        version = entry.manifest.converter.get("version", "unknown")
        raise IntegrityError(
            f"{entry.id} in {entry.path} is not as locked: {'; '.join(wrong)} (converted by "
            f"version {version}, locked by {one.converter})",
            hint="`offline-data lock --upgrade` accepts what is here; to convert it again: "
            f"`offline-data rm {entry.id}`, then sync",
        )


def _wrong_files(entry: Entry, locked: Sequence[LockedFile]) -> list[str]:
    """Return how the raw files of a dataset differ from those of the lock file."""
    here = {file.get("path"): file for file in entry.manifest.files}
    wanted = {file.path: file for file in locked}
    found = [f"it was made without {path}" for path in sorted(wanted.keys() - here.keys())]
    found += [f"it was made of {path}, too" for path in sorted(here.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & here.keys()):
        file, other = wanted[path], here[path]
        if file.sha256 and other.get("sha256") and file.sha256 != other["sha256"]:
            found.append(f"{path} has sha256 {other['sha256'][:12]}…, not {file.sha256[:12]}…")
        elif file.size is not None and other.get("size") not in {None, file.size}:
            found.append(f"{path} has {other['size']} bytes, not {file.size}")
    more = len(found) - _MOST_NAMED
    return [*found[:_MOST_NAMED], f"{more} more files differ"] if more > 0 else found


def _locked(path: Path) -> dict[str, LockedDataset]:
    """Read a lock file; empty if there is none."""
    try:
        return read_lock(path)
    except NotFoundError:
        return {}
