"""Every name under `.downloads`, and the records of what was fetched from where.

    sha256/ab/<sha256>      whole files by content, read-only, shared by all datasets
    index/<key>.json        what the URL had when it was last fetched; outlives the file
    partial/<key>.part      bytes so far; beside it <key>.json: from where, with what validator, and
                            how many of them would outlive a crash
    locks/<key>.lock        held while a process fetches the URL

A key is the sha256 of a file's first published URL.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data import strict_json
from offline_data.disk import write_durably
from offline_data.errors import OfflineDataError
from offline_data.urls import redact

if TYPE_CHECKING:
    from offline_data.config import Settings
    from offline_data.fetch.files import RemoteFile


@dataclass(frozen=True)
class Record:
    """What a URL had when it was last fetched."""

    url: str
    """First published URL of the file; on the disk it is redacted, as `came_from`."""
    sha256: str
    """Hex digest of the content."""
    size: int
    """Bytes."""
    came_from: str
    """Where it was fetched from: `url`, another published URL, or a mirror's."""
    fetched: str
    """When, ISO 8601 in UTC."""
    etag: str | None = None
    """Validator that the host gave."""
    outside: str | None = None
    """Absolute path, where the bytes are the user's own file and were not copied."""
    mtime_ns: int | None = None
    """Modification time of that file when it was read."""
    digest: str | None = None
    """What its source published then."""
    failed: tuple[str, ...] = ()
    """Places passed over before `came_from`, as `host: reason`."""

    def agrees(self, file: RemoteFile) -> bool:
        """Tell whether what is published now can be what was fetched then."""
        same = file.digest in {None, self.digest, f"sha256:{self.sha256}"}
        return same and file.size in {None, self.size}


def key_of(url: str) -> str:
    """Name under which everything about a URL is kept."""
    return hashlib.sha256(url.encode()).hexdigest()


def whole_path(settings: Settings, sha256: str) -> Path:
    """Where the file with this content is, or would be."""
    return settings.downloads / "sha256" / sha256[:2] / sha256


def partial_path(settings: Settings, url: str) -> Path:
    """Where bytes from `url` gather until the file is whole."""
    return settings.downloads / "partial" / f"{key_of(url)}.part"


def lock_path(settings: Settings, url: str) -> Path:
    """What a process holds while it fetches `url`; never deleted, so that nobody holds a ghost."""
    return settings.downloads / "locks" / f"{key_of(url)}.lock"


def record_path(settings: Settings, url: str) -> Path:
    """Where the record of `url` is, or would be."""
    return settings.downloads / "index" / f"{key_of(url)}.json"


def read_record(settings: Settings, url: str) -> Record | None:
    """Return what is known about `url`, or None; a damaged record counts as none."""
    return load_record(record_path(settings, url))


def load_record(path: Path) -> Record | None:
    """Read one record, or None where there is none that can be read."""
    value = read_json(path)
    known = {name: value[name] for name in Record.__dataclass_fields__ if name in value}
    try:
        record = Record(**{**known, "failed": tuple(known.get("failed", ()))})
        return record if _is_sound(record) else None
    except TypeError:
        return None


def _is_sound(record: Record) -> bool:
    """Return True if the fields of a record that was read have the types that they should have."""
    texts = (record.url, record.came_from, record.fetched, *record.failed)
    maybe = (record.etag, record.outside, record.digest)
    return (
        all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in maybe)
        and isinstance(record.sha256, str)
        and re.fullmatch("[0-9a-f]{64}", record.sha256) is not None
        and type(record.size) is int
        and "\0" not in (record.outside or "")
    )


def write_record(settings: Settings, record: Record) -> None:
    """Remember what a URL had."""
    public = {**vars(record), "url": redact(record.url), "came_from": redact(record.came_from)}
    write_durably(record_path(settings, record.url), json.dumps(public, indent=1).encode())


def forget(settings: Settings, url: str) -> None:
    """Remember no longer what a URL had."""
    record_path(settings, url).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object of this folder; empty where it is missing or damaged."""
    try:
        value = strict_json.read_json(path)
    except OfflineDataError:
        return {}
    return value if isinstance(value, dict) else {}


def bytes_of(settings: Settings, record: Record) -> Path | None:
    """Return where the recorded bytes are, or None if they are gone or have another size."""
    path = Path(record.outside) if record.outside else whole_path(settings, record.sha256)
    try:
        state = path.stat()
    except OSError:
        return None
    touched = record.outside is not None and state.st_mtime_ns != record.mtime_ns
    return None if touched or state.st_size != record.size else path
