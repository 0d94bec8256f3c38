"""The note beside a part: whose bytes they are, and how many of them would outlive a crash."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.fetch.cache import read_json
from offline_data.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Note:
    """What is known about the bytes of a part; the defaults say that nothing is."""

    url: str | None = None
    """Where they are from; where a digest is published, what was added later may be another's."""
    validator: str | None = None
    """What identified this version of the file there: a strong `ETag` or a `Last-Modified`."""
    total: int | None = None
    """Bytes that the file has, as the host said then."""
    boot: str | None = None
    """The running system that wrote them, None where it has no name."""
    durable: int = 0
    """Bytes, from the first on, that were on the disk itself and not only in its memory."""

    def trusted(self, size: int) -> int:
        """Return how many of the `size` bytes that are here were written.

        After a crash of the system that wrote them a file may have its size and lack its content:
        only what was synced is sure. Another system that shares the disk is as good as a crash.
        """
        if self.boot is not None and self.boot == boot_id():
            return size
        return min(self.durable, size)

    def encode(self) -> bytes:
        """Return the content of the note's file; no password is in it."""
        return json.dumps({**asdict(self), "url": self.url and redact(self.url)}).encode()


def note_path(part: Path) -> Path:
    """Where the note of a part is, or would be."""
    return part.with_suffix(".json")


def read_note(path: Path) -> Note:
    """Read a note; what is missing, damaged or of an older form counts as not known."""
    value = read_json(path)
    return Note(
        url=_text(value, "url"),
        validator=_text(value, "validator"),
        total=_count(value, "total"),
        boot=_text(value, "boot"),
        durable=_count(value, "durable") or 0,
    )


def boot_id() -> str | None:
    """Name the running system; it changes with every start. None where it has no name (macOS)."""
    try:
        return _BOOT_ID.read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None


def _text(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _count(value: Mapping[str, Any], name: str) -> int | None:
    found = value.get(name)
    return found if isinstance(found, int) and found >= 0 else None
