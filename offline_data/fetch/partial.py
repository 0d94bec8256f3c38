"""The bytes of one file so far: appended, hashed as they come, resumable by another process."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors, write_durably
from offline_data.errors import NoSpaceError
from offline_data.fetch.cache import read_json
from offline_data.fetch.digest import Hashes

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedRandom
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from offline_data.fetch.files import RemoteFile

_BLOCK = 1 << 20


class Partial:
    """A file that grows; opened with `with`, by one holder of the file's lock.

    Killed at any moment it leaves a prefix of what some host sent, and a note of which host and
    which version of the file. The note is written before the first byte.

    Args:
        path: Where the bytes gather; the note is beside it.
        published: What the source publishes about the file.
        seen: Told the bytes that are here, whenever that changes.

    Attributes:
        hashes: Digests of exactly the bytes that are here.
        continued: Whether some bytes were here before the current connection began.
    """

    def __init__(self, path: Path, published: RemoteFile, seen: Callable[[int], None]) -> None:
        self.path = path
        self.hashes = Hashes(published)
        self.continued = False
        self._published = published
        self._seen = seen
        self._note = path.with_suffix(".json")
        self._file: BufferedRandom

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self.hashes.size

    def __enter__(self) -> Self:
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
            while block := self._file.read(_BLOCK):
                self.hashes.update(block)
                self._seen(self.size)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        finally:
            if self.size == 0 or isinstance(error, NoSpaceError):
                remove_partial(self.path)

    def range_from(self, url: str) -> dict[str, str]:
        """Return request headers that ask for the rest, or none where it cannot be continued.

        A part is continued from the host that sent it if the host gave a validator; from any
        host if the source publishes a digest, which will tell.
        """
        validator = self.validator_of(url)
        if self.size == 0 or not (validator or self._published.digest):
            return {}
        condition = {"If-Range": validator} if validator else {}
        return {"Range": f"bytes={self.size}-", **condition}

    def validator_of(self, url: str) -> str | None:
        """Return what identified the file when `url` began to send it, if anything did."""
        note = read_json(self._note)
        validator = note.get("validator") if note.get("url") == url else None
        return validator if isinstance(validator, str) else None

    def clear(self) -> None:
        """Drop what is here."""
        with disk_errors(self.path):
            self._file.seek(0)
            self._file.truncate()
        self.hashes = Hashes(self._published)
        self.continued = False
        self._seen(0)

    def start(self, url: str, validator: str | None) -> None:
        """Drop what is here and note where the bytes to come are from."""
        self.clear()
        with disk_errors(self.path):
            write_durably(self._note, json.dumps({"url": url, "validator": validator}).encode())

    def append(self, block: bytes) -> None:
        """Add the next bytes."""
        with disk_errors(self.path):
            self._file.write(block)
            self._file.flush()
        self.hashes.update(block)
        self._seen(self.size)

    def settle(self) -> None:
        """Make sure that the bytes are on the disk."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())


def remove_partial(path: Path) -> None:
    """Delete a part and the note beside it, where they exist."""
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)


def noted_url(path: Path) -> str | None:
    """Return the URL that a part came from, where its note says so."""
    url = read_json(path.with_suffix(".json")).get("url")
    return url if isinstance(url, str) else None
