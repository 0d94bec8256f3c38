"""What lies in the downloads folder, and deleting it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors
from offline_data.fetch.cache import load_record, whole_path
from offline_data.fetch.partial import noted_url, remove_partial

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.fetch.files import FetchedFile


@dataclass(frozen=True)
class Download:
    """One raw file in the downloads folder, or a part of one."""

    path: Path
    """The file, or a folder where huggingface_hub was bringing one."""
    size: int
    """Bytes on the disk."""
    urls: tuple[str, ...]
    """Where it is from, sorted; empty where nothing says so any more."""
    age: float
    """Seconds since it was last written to."""
    whole: bool
    """Whether it is a verified file; else a part that a fetch would go on with."""


def list_downloads(settings: Settings, *, now: float | None = None) -> tuple[Download, ...]:
    """List whole files and parts, sorted by path. Files of the user's own are not among them.

    Args:
        settings: The root.
        now: Seconds since the epoch that ages count from; None for the clock.

    Raises:
        AccessError: The folder may not be read.
    """
    at = time.time() if now is None else now
    with disk_errors(settings.downloads):
        found = [*_whole(settings, at), *_parts(settings, at)]
    return tuple(sorted(found, key=lambda download: download.path))


def _whole(settings: Settings, now: float) -> Iterator[Download]:
    urls: dict[str, set[str]] = {}
    for path in (settings.downloads / "index").glob("*.json"):
        record = load_record(path)
        if record is not None and record.outside is None:
            urls.setdefault(record.sha256, set()).add(record.url)
    for path in (settings.downloads / "sha256").glob("??/*"):
        yield _download(path, tuple(sorted(urls.get(path.name, ()))), now, whole=True)


def _parts(settings: Settings, now: float) -> Iterator[Download]:
    folder = settings.downloads / "partial"
    for path in [*folder.glob("*.part"), *folder.glob("*.hub")]:
        url = noted_url(path)
        yield _download(path, (url,) if url else (), now, whole=False)


def _download(path: Path, urls: tuple[str, ...], now: float, *, whole: bool) -> Download:
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    states = [file.stat() for file in files if file.is_file()] or [path.stat()]
    newest = max(state.st_mtime for state in states)
    return Download(path, sum(state.st_size for state in states), urls, now - newest, whole)


def remove_downloads(downloads: Iterable[Download], settings: Settings) -> int:
    """Delete raw files and parts; what URLs had stays on record and is compared next time.

    Parts that a process is fetching at this moment are left alone. Datasets do not need raw files.

    Returns:
        Bytes that were in what was deleted.

    Raises:
        AccessError: The folder may not be written.
    """
    freed = 0
    with disk_errors(settings.downloads):
        for download in downloads:
            if download.whole:
                download.path.unlink(missing_ok=True)
            elif not _remove_part(download.path, settings):
                continue
            freed += download.size
    return freed


def _remove_part(path: Path, settings: Settings) -> bool:
    from filelock import FileLock, Timeout

    lock = settings.downloads / "locks" / f"{path.stem}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                remove_partial(path)
    except Timeout:
        return False
    return True


def discard(fetched: Iterable[FetchedFile], settings: Settings) -> None:
    """Delete files that a run fetched; the user's own files, which it only found, stay.

    Raises:
        AccessError: The folder may not be written.
    """
    with disk_errors(settings.downloads):
        for file in fetched:
            if file.path == whole_path(settings, file.sha256):
                file.path.unlink(missing_ok=True)
