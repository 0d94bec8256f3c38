"""`lock` and `sync`: from `datasets.toml` to `datasets.lock`, and from that to this disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from offline_data.base.config import Settings
from offline_data.base.errors import (
    IntegrityError,
    LockError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.ids import SHARED, DatasetId, unknown
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural, plural_of
from offline_data.base.progress import SILENT, Progress
from offline_data.formats.options import Options, video_kind
from offline_data.formats.registry import get_source
from offline_data.pipeline.ingest.build import destination_of
from offline_data.pipeline.ingest.download import download
from offline_data.pipeline.ingest.resolve import on_disk, pinned_text, suggest_command
from offline_data.project.lockfile import (
    LockedDataset,
    LockedFile,
    differences,
    read_lock,
    write_lock,
)
from offline_data.project.requests import DatasetRequest, read_requests
from offline_data.store.content import digest_of
from offline_data.store.library import Entry, entry_at, find
from offline_data.store.manifest import Manifest

Asked = TypeVar("Asked", "DatasetRequest", "LockedDataset")

Action: TypeAlias = Literal["none", "download", "rewrite"]
"""Nothing, fetch and convert, or write in the other layout."""

_MOST_NAMED = 5


@pickled_by_name
@dataclass(frozen=True)
class LockResult:
    """Result of `lock`."""

    path: Path  # the lock file
    datasets: tuple[LockedDataset, ...]  # sorted by name; with `check`, as they are in the file
    changes: tuple[str, ...]  # a sentence each; with `check`, for what is needed
    written: bool


@pickled_by_name
@dataclass(frozen=True)
class SyncedDataset:
    """A dataset that is on this disk as locked; after a dry run, that would be."""

    name: str  # its short name in the project
    id: DatasetId  # its id on this disk, revision included
    path: Path
    action: Action
    bytes: int  # of its raw files, as far as they are known


def check_lock(file: Path) -> LockResult:
    """Compare the lock file with `datasets.toml`, reading nothing else; raises `UsageError`."""
    if file.suffix == ".lock":
        raise UsageError(f"{file} is a lock file; expected the path of datasets.toml")
    path, requests = file.with_suffix(".lock"), read_requests(file)
    try:
        locked = read_lock(path)
    except NotFoundError:
        locked = {}
    return LockResult(path, tuple(locked.values()), differences(requests, locked), written=False)


def lock_datasets(
    file: Path,
    settings: Settings,
    upgrade: bool | Collection[str] = False,
    progress: Progress = SILENT,
) -> LockResult:
    """Write the lock file of a `datasets.toml`; see `offline_data.lock`."""
    checked, requests = check_lock(file), read_requests(file)
    before = {one.name: one for one in checked.datasets}
    names = {upgrade} if isinstance(upgrade, str) else upgrade
    newest = set(requests if names is True else names or ())
    for name in sorted(newest - requests.keys()):
        raise unknown(NotFoundError, f"{file} has no dataset", name, requests, listed=False)
    found: dict[str, LockedDataset] = {}
    for name, request in requests.items():
        kept = None if name in newest else before.get(name)
        if kept and not differences({name: request}, {name: kept}):
            found[name] = kept
            continue
        try:
            asked, request = request.options, _pin_tokenizer(request, file, settings)
            revision = request.id.revision or (
                str(kept.id.revision)
                if kept and kept.requested == request.id
                else _revision(request, settings, newest=name in newest)
            )
            one = _lock_one(request, revision, settings, progress)
            if one.options.text and asked.text:  # without the path that it has on this machine
                text = replace(one.options.text, tokenizer=asked.text.tokenizer)
                one = replace(one, options=replace(one.options, text=text))
            found[name] = one
        except OfflineDataError as error:
            raise type(error)(f"{name}: {error.message}", hint=error.shell_hint) from error
    changes = tuple(_changes(before, found))
    return LockResult(checked.path, tuple(found.values()), changes, write_lock(checked.path, found))


def _pin_tokenizer(request: Asked, file: Path, settings: Settings) -> Asked:
    """Return it with the tokenizer's digest, and its path from the folder of the file."""
    text = request.options.text
    if text is None:
        return request
    if text.from_path:
        text = replace(text, tokenizer=str(file.absolute().parent / text.tokenizer))
    return replace(request, options=replace(request.options, text=pinned_text(text, settings)))


def _revision(request: DatasetRequest, settings: Settings, *, newest: bool) -> str:
    """Return the source's revision that is on this disk; if none is, or for `newest`, its newest."""
    given = request.options
    ranges = Options(episodes=given.episodes, checkpoints=given.checkpoints, text=given.text)
    local = request.id.source == "local"
    entry = on_disk(request.id, settings, ranges) if local or not newest else None
    if entry is not None:
        return str(entry.id.revision).removesuffix(ranges.revision_of(""))
    with suggest_command(request.id, settings, request.options) as asking:
        return get_source(request.id.source).resolve(request.id.name, None, asking).revision


def _lock_one(
    request: DatasetRequest, revision: str, settings: Settings, progress: Progress
) -> LockedDataset:
    """Lock one dataset, downloading it where it is not on this disk."""
    dataset, options = request.id.at(revision), request.options
    existing = find(settings.root, dataset.at(options.revision_of(revision)))
    if existing is not None and (other := _other_options(existing, options)):
        raise UsageError(
            f"{existing.id} on this disk was made with other options: {'; '.join(other)}",
            hint="state the same options in datasets.toml, or use another --root",
        )
    stored = download(dataset, settings, options, progress)
    if dataset.source == "local" or revision.startswith("local-"):
        progress.note(
            f"{stored.id} was converted from local files: `sync` cannot fetch it on another machine"
        )
    converter = stored.manifest.converter
    return LockedDataset(
        dataset,
        request.id,
        options,
        stored.transitions,
        stored.episodes,
        digest_of(entry_at(stored.path), settings.root, progress),
        f"{converter.get('name', 'unknown')} {converter.get('version', '')}".rstrip(),
        _raw_files(stored.manifest, settings),
        request.name,
    )


def _raw_files(manifest: Manifest, settings: Settings) -> tuple[LockedFile, ...]:
    """List raw files by path, with the published URLs that mirrors of this machine stand for."""

    def published_url(url: str | None) -> str | None:
        for prefix, replacement in settings.mirrors:
            if url and url.startswith(replacement):
                return prefix + url.removeprefix(replacement)
        return url

    files = (
        LockedFile(
            str(one.get("path", "")),
            published_url(one.get("url")),
            one.get("size"),
            one.get("sha256"),
        )
        for one in manifest.files
    )
    return tuple(sorted(files, key=lambda file: file.path))


def _other_options(entry: Entry, options: Options) -> list[str]:
    """Return what makes a dataset differ from one that `download` would make with these options."""
    if entry.id.source in {"local", SHARED}:  # made elsewhere, with the options of whoever made it
        return []
    recorded = entry.manifest.converter.get("options") or {}
    skips = bool(entry.manifest.skipped)
    leaves_out = bool(recorded.get("skip_bad_features"))
    kind = video_kind(entry.manifest)
    compared = {
        "images": (recorded.get("images") or "encoded", options.images or "encoded"),
        "video": (kind, options.video or kind),
        "keep_episodes": (bool(recorded.get("keep_episodes")), options.keep_episodes),
        "skip_bad_episodes": (skips, skips and options.skip_bad_episodes),
        "skip_bad_features": (leaves_out, leaves_out and options.skip_bad_features),
    }
    return [
        f"{name} is {str(here).lower()}, not {str(wanted).lower()}"
        for name, (here, wanted) in compared.items()
        if here != wanted
    ]


def _changes(before: dict[str, LockedDataset], after: dict[str, LockedDataset]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if new is None:
            yield f"removed {name}"
        elif old is None:
            yield f"added {name}: {new.stored_id}"
        elif old != new:
            was = f"{old.stored_id} -> " if old.stored_id != new.stored_id else ""
            what = " with other content" if not was and old.content != new.content else ""
            yield f"updated {name}: {was}{new.stored_id}{what}"


def sync_datasets(
    file: Path,
    settings: Settings,
    *,
    locked: bool = False,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> tuple[SyncedDataset, ...]:
    """Make this disk hold the datasets of a lock file; see `offline_data.sync`."""
    found = check_lock(file)
    if found.changes and (locked or dry_run):
        raise LockError(
            f"{found.path} is not up to date with {file.name}: {'; '.join(found.changes)}",
            hint="update it: `offline-data lock`",
        )
    if found.changes:
        found = lock_datasets(file, settings, progress=progress)
    done: list[SyncedDataset] = []
    failed: list[OfflineDataError] = []
    for one in found.datasets:
        try:
            placed = _pin_tokenizer(one, file, settings)
            done.append(_sync_one(placed, settings, progress, dry_run=dry_run))
        except OfflineDataError as error:  # continue with the others
            failed.append(type(error)(f"{one.name}: {error.message}", hint=error.shell_hint))
    if failed:
        title = plural_of(len(failed), len(found.datasets), "dataset", "is", "are")
        title += " not as locked"
        text = "\n".join([title, *(error.message for error in failed)])
        raise type(failed[0])(
            text if len(failed) > 1 else failed[0].message, hint=failed[0].shell_hint
        )
    return tuple(done)


def _sync_one(
    one: LockedDataset, settings: Settings, progress: Progress, *, dry_run: bool
) -> SyncedDataset:
    """Make this disk hold one dataset; raises `IntegrityError` naming what is not as locked."""
    entry = find(settings.root, one.stored_id)
    action: Action = "download"
    if entry is not None:
        _check(entry, one, settings, progress)
        action = "none" if one.options.layout in {None, entry.manifest.layout} else "rewrite"
    if action != "none" and not dry_run:
        digests = {file.path: file.sha256 for file in one.files if file.sha256}
        stored = download(one.id, settings, one.options, progress, digests=digests)
        _check(entry_at(stored.path), one, settings, progress)
    place = destination_of(one.stored_id, settings)
    return SyncedDataset(one.name, one.stored_id, place, action, one.bytes)


def _check(entry: Entry, one: LockedDataset, settings: Settings, progress: Progress) -> None:
    """Raise `IntegrityError` unless a dataset is as locked."""
    wrong = _other_options(entry, one.options)
    here = {file.path: _describe_file(file) for file in _raw_files(entry.manifest, settings)}
    locked = {file.path: _describe_file(file) for file in one.files}
    files = [
        f"{path} is {here.get(path, 'missing')}, not {locked.get(path, 'missing')}"
        for path in sorted(here.keys() | locked.keys())
        if here.get(path) != locked.get(path)
    ]
    wrong += files[:_MOST_NAMED]
    if len(files) > _MOST_NAMED:
        wrong.append(plural(len(files) - _MOST_NAMED, "more file differs", "more files differ"))
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


def _describe_file(file: LockedFile) -> str:
    size = "unknown size" if file.size is None else plural(file.size, "byte")
    return f"{size} with sha256 {file.sha256 or 'unknown'}"
