"""The downloads folder: every name in it, the records of what was fetched, listing and deleting.

    sha256/ab/<sha256>      whole files by content, read-only, shared by all datasets
    index/<key>.json        the content of the URL when it was last fetched; outlives the file
    partial/<key>.part      bytes so far; next to it <key>.json: from where, with what validator, and
                            how many of them would outlive a crash
    locks/<key>.lock        held while a process fetches the URL

A key is the sha256 of a file's first published URL.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offline_data.base import json as strict_json
from offline_data.base.config import Settings
from offline_data.base.errors import OfflineDataError
from offline_data.base.files import boot_id, disk_errors, unless_locked, write_durably
from offline_data.base.urls import redact
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.mirrors import scheme_of


@dataclass(frozen=True)
class FetchRecord:
    """The content of a URL when it was last fetched."""

    url: str  # first published URL of the file; redacted on the disk, as `came_from`
    sha256: str  # hex digest of the content
    size: int  # bytes
    came_from: str  # URL it was fetched from: `url`, another published URL, or a mirror's
    fetched: str  # ISO 8601 in UTC
    etag: str | None = None  # validator that the host gave
    outside: str | None = None  # absolute path, if the bytes are the user's own, not copied
    mtime_ns: int | None = None  # modification time of that file when it was read
    digest: str | None = None  # digest that its source published then
    failed: tuple[str, ...] = ()  # places that failed before `came_from`, as `host: reason`

    def agrees(self, file: RemoteFile) -> bool:
        """Return True if the file as published now can be what was fetched then."""
        same = file.digest in {None, self.digest, f"sha256:{self.sha256}"}
        return same and file.size in {None, self.size}


@dataclass(frozen=True)
class PartialState:
    """The origin of the bytes of a partial file; by default nothing is known."""

    url: str | None = None  # where from; with a published digest, later bytes may be another host's
    validator: str | None = None  # of the file's version: a strong `ETag` or a `Last-Modified`
    total: int | None = None  # bytes that the file has, as the host said then
    boot: str | None = None  # boot id of the system that wrote them, None if unknown
    durable: int = 0  # number of leading bytes that have been synced to the disk

    @classmethod
    def read(cls, part: Path) -> PartialState:
        """Read the state of a partial file; missing, damaged or older fields count as unknown."""
        found = read_json(state_path(part))
        texts = {
            name: found[name]
            for name in ("url", "validator", "boot")
            if isinstance(found.get(name), str)
        }
        counts = {
            name: found[name]
            for name in ("total", "durable")
            if isinstance(found.get(name), int) and found[name] >= 0
        }
        return cls(**texts, **counts)

    def count_written(self, size: int) -> int:
        """Return how many of the `size` bytes of the partial file were written."""
        # After a crash of the system that wrote it, a file may have its size without its content:
        # then only synced bytes count. The same holds if another system wrote it to a shared disk.
        if self.boot is not None and self.boot == boot_id():
            return size
        return min(self.durable, size)

    def encode(self) -> bytes:
        """Return the content of the state's file, with passwords redacted."""
        return json.dumps({**asdict(self), "url": self.url and redact(self.url)}).encode()


def key_of(url: str) -> str:
    """Return the name under which everything about a URL is kept."""
    return hashlib.sha256(url.encode()).hexdigest()


def whole_path(settings: Settings, sha256: str) -> Path:
    """Return the path of the file with this content, whether or not it exists."""
    return settings.downloads / "sha256" / sha256[:2] / sha256


def partial_path(settings: Settings, url: str) -> Path:
    """Return the path of the partial file of `url`."""
    return settings.downloads / "partial" / f"{key_of(url)}.part"


def state_path(part: Path) -> Path:
    """Return the path of the `PartialState` of a partial file."""
    return part.with_suffix(".json")


def lock_path(settings: Settings, url: str) -> Path:
    """Return the path of the lock of `url`."""
    return settings.downloads / "locks" / f"{key_of(url)}.lock"


def record_path(settings: Settings, url: str) -> Path:
    """Return the path of the record of `url`."""
    return settings.downloads / "index" / f"{key_of(url)}.json"


def remove_partial(part: Path) -> None:
    """Delete a partial file and its state, if they exist."""
    part.unlink(missing_ok=True)
    state_path(part).unlink(missing_ok=True)


def remove_unused_partial(part: Path) -> bool:
    """Delete a partial file and its state; return False if a process is fetching it."""
    lock = part.parent.parent / "locks" / f"{part.stem}.lock"
    return unless_locked(lock, lambda: remove_partial(part))


def read_record(settings: Settings, url: str) -> FetchRecord | None:
    """Return the record of `url`; None if there is none or it is damaged."""
    return load_record(record_path(settings, url))


def load_record(path: Path) -> FetchRecord | None:
    """Read one record; None if it is missing or damaged."""
    value = read_json(path)
    known = {name: value[name] for name in FetchRecord.__dataclass_fields__ if name in value}
    try:
        record = FetchRecord(**{**known, "failed": tuple(known.get("failed", ()))})
    except TypeError:
        return None
    texts = (record.url, record.sha256, record.came_from, record.fetched, *record.failed)
    maybe = (record.etag, record.outside, record.digest)
    sound = (
        all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in maybe)
        and re.fullmatch("[0-9a-f]{64}", record.sha256)
        and type(record.size) is int
        and "\0" not in (record.outside or "")
    )
    return record if sound else None


def write_record(settings: Settings, record: FetchRecord) -> None:
    """Write the record of a URL."""
    public = {**vars(record), "url": redact(record.url), "came_from": redact(record.came_from)}
    write_durably(record_path(settings, record.url), json.dumps(public, indent=1).encode())


def forget(settings: Settings, url: str) -> None:
    """Delete the record of a URL."""
    record_path(settings, url).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object of this folder; empty if it is missing or damaged."""
    try:
        value = strict_json.read_json(path)
    except OfflineDataError:
        return {}
    return value if isinstance(value, dict) else {}


def bytes_of(settings: Settings, record: FetchRecord) -> Path | None:
    """Return where the recorded bytes are, or None if they are gone or have another size."""
    path = Path(record.outside) if record.outside else whole_path(settings, record.sha256)
    try:
        state = path.stat()
    except OSError:
        return None
    touched = record.outside is not None and state.st_mtime_ns != record.mtime_ns
    return None if touched or state.st_size != record.size else path


@dataclass(frozen=True)
class Download:
    """One raw file in the downloads folder, whole or partial."""

    path: Path
    size: int  # bytes that are here
    urls: tuple[str, ...]  # published, sorted; empty if no record names one any more
    age: float  # seconds since it was last written to
    whole: bool  # whether it is verified; else a partial file that a fetch would resume

    @property
    def refetchable(self) -> bool:
        """Whether it can be fetched again, according to the records; True for a partial file."""
        return not self.whole or any(scheme_of(url) != "file" for url in self.urls)


def list_downloads(settings: Settings, *, now: float | None = None) -> tuple[Download, ...]:
    """List whole and partial files, sorted by path. The user's own files are not among them.

    Files that another process deletes meanwhile may be listed or not. Ages count from `now`,
    seconds since the epoch; None: the clock. Raises `AccessError`.
    """
    at = time.time() if now is None else now
    found: list[Download] = []
    with disk_errors(settings.downloads):
        urls: dict[str, set[str]] = {}
        for path in (settings.downloads / "index").glob("*.json"):
            record = load_record(path)
            if record is not None and record.outside is None:
                urls.setdefault(record.sha256, set()).add(record.url)
        whole_files = (settings.downloads / "sha256").glob("??/*")
        listed = [(path, urls.get(path.name, set()), True) for path in whole_files]
        for path in (settings.downloads / "partial").glob("*.part"):
            url = PartialState.read(path).url
            listed.append((path, {url} if url else set(), False))
        for path, came_from, whole in sorted(listed):
            with suppress(FileNotFoundError):
                state = path.stat()
                age = max(0.0, at - state.st_mtime)  # of a file from the future: 0
                found.append(Download(path, state.st_size, tuple(sorted(came_from)), age, whole))
    return tuple(found)


def discard(fetched: Iterable[FetchedFile], settings: Settings) -> None:
    """Delete files that a run fetched, not the user's own; raises `AccessError`."""
    with disk_errors(settings.downloads):
        for file in fetched:
            if file.path == whole_path(settings, file.sha256):
                file.path.unlink(missing_ok=True)
