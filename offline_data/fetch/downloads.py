"""What lies in the downloads folder, and deleting it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors
from offline_data.fetch.cache import load_record, whole_path
from offline_data.fetch.mirrors import scheme_of
from offline_data.fetch.partial import noted_url, remove_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.fetch.files import FetchedFile


@dataclass(frozen=True)
class Download:
    """One raw file in the downloads folder, or a part of one."""

    path: Path
    """The file."""
    size: int
    """Bytes that are here."""
    urls: tuple[str, ...]
    """Where it is from, sorted; empty where nothing says so any more."""
    age: float
    """Seconds since it was last written to."""
    whole: bool
    """Whether it is a verified file; else a part that a fetch would go on with."""

    @property
    def refetchable(self) -> bool:
        """Whether a host has the same, as far as the records tell; a part by itself is nothing."""
        return not self.whole or any(scheme_of(url) != "file" for url in self.urls)


def list_downloads(settings: Settings, *, now: float | None = None) -> tuple[Download, ...]:
    """List whole files and parts, sorted by path. Files of the user's own are not among them.

    What another process deletes meanwhile may be listed or not.

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
        yield from _download(path, tuple(sorted(urls.get(path.name, ()))), now, whole=True)


def _parts(settings: Settings, now: float) -> Iterator[Download]:
    for path in (settings.downloads / "partial").glob("*.part"):
        url = noted_url(path)
        yield from _download(path, (url,) if url else (), now, whole=False)


def _download(path: Path, urls: tuple[str, ...], now: float, *, whole: bool) -> Iterator[Download]:
    with suppress(FileNotFoundError):
        state = path.stat()
        yield Download(path, state.st_size, urls, now - state.st_mtime, whole)


def remove_downloads(downloads: Iterable[Download], settings: Settings) -> int:
    """Delete raw files and parts; what URLs had stays on record and is compared next time.

    Parts that a process is fetching at this moment are left alone. Datasets do not need raw files.

    Returns:
        Bytes that were in what was deleted.

    Raises:
        AccessError: The folder may not be written.
    """
    return sum(item.size for item in downloads if remove_download(item, settings))


def remove_download(download: Download, settings: Settings) -> bool:
    """Delete one raw file or part, as `remove_downloads`; False where a process is fetching it."""
    with disk_errors(settings.downloads):
        if download.whole:
            download.path.unlink(missing_ok=True)
            return True
        lock = settings.downloads / "locks" / f"{download.path.stem}.lock"
        return unless_locked(lock, lambda: remove_partial(download.path))


def unless_locked(lock: Path, act: Callable[[], object]) -> bool:
    """Act while holding a lock; False, and nothing is done, where another process holds it.

    Raises:
        OSError: The lock cannot be made or opened: nobody can tell whether it is held.
    """
    from filelock import FileLock, Timeout

    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, blocking=False):
            act()
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
