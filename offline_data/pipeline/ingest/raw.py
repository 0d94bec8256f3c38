"""Raw files of a release: fetching, linking under their names, forgetting damaged ones, freeing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuditError,
    IntegrityError,
    ManifestError,
    NotFoundError,
)
from offline_data.base.files import check_links, disk_errors, is_file
from offline_data.base.progress import Progress
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.formats.base import Release, Shard
from offline_data.pipeline.ingest.build import StrictError

_MOST_LISTED = 10_000  # local raw files that a manifest lists one by one
_TRIES = 3  # attempts: another shard with a file may free it before it is linked here


def fetch_files(
    files: Sequence[RemoteFile],
    settings: Settings,
    folder: Path,
    progress: Progress,
    *,
    force: bool = False,
    cancelled: Event | None = None,
) -> tuple[FetchedFile, ...]:
    """Fetch files and link them under `folder`; raises what `run_fetch` raises."""
    from offline_data.fetch.files import assemble
    from offline_data.fetch.plan import plan_fetch
    from offline_data.fetch.run import run_fetch

    check_links(settings.root, folder)
    fetched: tuple[FetchedFile, ...] = ()
    for _ in range(_TRIES):
        fetched = run_fetch(
            plan_fetch(files, settings, force=force), settings, progress, cancelled=cancelled
        )
        assemble(fetched, folder)
        if all(is_file(folder / file.name) for file in fetched):
            break
    return fetched


def opening_files(release: Release) -> tuple[RemoteFile, ...]:
    """Return the files of a release that are fetched before it is opened."""
    if release.opening is None:
        return release.files
    return tuple(file for file in release.files if file.path in release.opening)


def with_digests(release: Release, digests: Mapping[str, str]) -> Release:
    """Return a release whose files must have these digests, sha256 in hex by path.

    Raises `IntegrityError` if its source no longer has one of the files.
    """
    gone = sorted(digests.keys() - {file.path for file in release.files})
    if gone and release.local is None:
        raise IntegrityError(
            f"{release.name} at {release.revision} has no file {', '.join(gone[:3])}"
            + (f" and {len(gone) - 3} more" if len(gone) > 3 else ""),
            hint="its source has published other files under the same revision",
        )
    files = (
        replace(file, digest=f"sha256:{digests[file.path]}") if file.path in digests else file
        for file in release.files
    )
    return replace(release, files=tuple(files))


def files_of(release: Release, shard: Shard) -> tuple[RemoteFile, ...]:
    """Return the files of a release that a shard needs in addition to the opening files."""
    needed = set(shard.files).difference(file.path for file in opening_files(release))
    return tuple(file for file in release.files if file.path in needed)


def describe_file(file: FetchedFile) -> dict[str, Any]:
    """Return the manifest's entry of a raw file."""
    entry = {"path": file.name, "url": file.url, "size": file.size, "sha256": file.sha256}
    entry |= {} if file.compared is None else {"compared": file.compared}
    return {**entry, "failed": list(file.failed)} if file.failed else entry


def local_files(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the manifest's entries of local raw files: names and sizes, no digests.

    Of many files, those of one folder and suffix are one entry, `training/*.npz`, with their `count`.
    """
    if path.is_file():
        names = {path.name: path}
    else:
        found = [file for file in sorted(path.rglob("*")) if file.is_file()]
        names = {file.relative_to(path).as_posix(): file for file in found}
    if not names:
        raise NotFoundError(f"{path} holds no files")
    entries = [
        {"path": name, "url": None, "size": file.stat().st_size, "sha256": None}
        for name, file in names.items()
    ]
    if len(entries) <= _MOST_LISTED:
        return tuple(entries)
    merged: dict[str, dict[str, Any]] = {}
    for entry in entries:
        place = PurePosixPath(str(entry["path"]))
        name = place.with_name(f"*{place.suffix}").as_posix()
        one = merged.setdefault(name, {**entry, "path": name, "size": 0, "count": 0})
        one["size"] += entry["size"]
        one["count"] += 1
    return tuple(merged.values())


@contextmanager
def forget_damaged(
    fetched: Sequence[FetchedFile],
    published: Sequence[RemoteFile],
    settings: Settings,
    stay: Collection[str],
) -> Iterator[None]:
    """Forget files that the block finds damaged, unless a published digest says otherwise.

    The next attempt fetches them again and accepts changed content. Other errors keep them. Files
    whose digests are in `stay` are forgotten but not deleted.
    """
    from offline_data.fetch.cache import discard, forget

    try:
        yield
    except (AuditError, ManifestError, StrictError):
        raise
    except IntegrityError as error:
        doubtful = [
            (file, remote.urls[0])
            for file, remote in zip(fetched, published, strict=True)
            if remote.digest is None
        ]
        if not doubtful:
            raise
        for file, url in doubtful:
            with disk_errors(settings.downloads):
                forget(settings, url)
            if file.sha256 not in stay:
                discard([file], settings)
        hint = (
            "what was downloaded is forgotten; fetch it again, with --force: maybe it was damaged"
        )
        raise type(error)(
            error.message, hint="; ".join(filter(None, (error.shell_hint, hint)))
        ) from error


def free(files: Iterable[Mapping[str, Any]], settings: Settings) -> None:
    """Delete raw files, given by manifest entries, from the downloads folder; see `AccessError`."""
    from offline_data.fetch.cache import whole_path

    with disk_errors(settings.downloads):
        for file in files:
            if file["sha256"]:
                whole_path(settings, file["sha256"]).unlink(missing_ok=True)
