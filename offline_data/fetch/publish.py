"""Gives a verified file its name, and remembers what its URL had."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors, sync_folder
from offline_data.errors import IntegrityError
from offline_data.fetch.cache import Record, whole_path, write_record
from offline_data.fetch.files import FetchedFile
from offline_data.fetch.partial import remove_partial

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.fetch.digest import Hashes
    from offline_data.fetch.files import RemoteFile
    from offline_data.fetch.plan import FileStep


@dataclass(frozen=True)
class Arrival:
    """A whole file that has everything its source publishes about it."""

    url: str
    """Where it came from."""
    path: Path
    """Where its bytes are."""
    hashes: Hashes
    """Their digests and size."""
    etag: str | None = None
    """Validator that the host gave."""
    outside: bool = False
    """Whether the bytes are the user's own file, which stays as and where it is."""


def kept(file: RemoteFile, path: Path, record: Record | None) -> FetchedFile:
    """Describe a file that is here already, under its own record or only by its content."""
    if record is None or (str(path) != record.outside and path.name != record.sha256):
        return FetchedFile(file.path, path, path.name, path.stat().st_size, file.urls[0])
    return FetchedFile(
        file.path, path, record.sha256, record.size, record.came_from, tuple(record.failed)
    )


def publish(
    arrival: Arrival, step: FileStep, settings: Settings, failed: tuple[str, ...]
) -> FetchedFile:
    """Move a file to its name and write its record, in this order, each whole or not at all.

    Raises:
        IntegrityError: Its source publishes no digest, and it is not what it was last time.
    """
    try:
        _check_unchanged(arrival, step)
    except IntegrityError:
        _remove(arrival)
        raise
    sha256 = arrival.hashes.hex()
    with disk_errors(settings.downloads):
        path = arrival.path if arrival.outside else _name(arrival, whole_path(settings, sha256))
        write_record(settings, _record(arrival, step, path, failed))
    return FetchedFile(step.file.path, path, sha256, arrival.hashes.size, arrival.url, failed)


def _check_unchanged(arrival: Arrival, step: FileStep) -> None:
    before, now = step.record, arrival.hashes.hex()
    if step.file.digest or step.force or before is None or before.sha256 == now:
        return
    raise IntegrityError(
        f"{step.file.path} changed at {arrival.url}: sha256 {now} now, "
        f"{before.sha256} when it was fetched on {before.fetched}; its source publishes no digest",
        hint="if the change is meant, accept it with --force",
    )


def _name(arrival: Arrival, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrival.path.chmod(0o444)
    arrival.path.replace(path)
    sync_folder(path.parent)
    _remove(arrival)
    return path


def _remove(arrival: Arrival) -> None:
    if not arrival.outside:
        remove_partial(arrival.path)


def _record(arrival: Arrival, step: FileStep, path: Path, failed: tuple[str, ...]) -> Record:
    return Record(
        url=step.file.urls[0],
        sha256=arrival.hashes.hex(),
        size=arrival.hashes.size,
        came_from=arrival.url,
        fetched=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        etag=arrival.etag,
        outside=str(path) if arrival.outside else None,
        mtime_ns=path.stat().st_mtime_ns if arrival.outside else None,
        digest=step.file.digest,
        failed=failed,
    )
