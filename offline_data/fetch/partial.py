"""The bytes of one file so far: appended, hashed as they come, resumable by another process."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors, write_durably
from offline_data.errors import NoSpaceError
from offline_data.fetch.behind import Behind
from offline_data.fetch.digest import Hashes
from offline_data.fetch.note import Note, boot_id, note_path, read_note
from offline_data.urls import redact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from offline_data.fetch.files import RemoteFile

_READ = 1 << 20
_BATCH = 16
"""Blocks that are hashed at a time: a thread that is woken for each of them costs more than it saves."""
_BATCHES_BEHIND = 4
SYNC_EVERY = 64 << 20
"""Bytes between two requests to the system to bring a part onto the disk itself."""


class Partial:
    """A file that grows; opened with `with`, by one holder of the file's lock.

    Killed at any moment it leaves a prefix of what some host sent, and a note of which host and
    which version of the file. The note is written before the first byte. A crash of the machine
    may leave less, or another content of the same size: where no digest would tell, what was not
    synced before it is dropped on opening.

    Blocks are written at once; digests and syncing follow in threads of their own.

    Args:
        path: Where the bytes gather; the note is beside it.
        published: What the source publishes about the file.
        seen: Told the bytes that are here, whenever that changes.

    Attributes:
        size: Bytes that are here.
        continued: Whether some bytes were here before the current connection began.
    """

    def __init__(self, path: Path, published: RemoteFile, seen: Callable[[int], None]) -> None:
        self.path = path
        self.size = 0
        self.continued = False
        self._published = published
        self._seen = seen
        self._note = Note()
        self._hashes = Hashes(published)
        self._unhashed: list[bytes] = []
        self._hashing = Behind(_BATCHES_BEHIND)
        self._syncing = Behind(1)
        self._sync_asked = 0
        self._handle = -1

    @property
    def hashes(self) -> Hashes:
        """Digests of exactly the bytes that are here; waits until they are."""
        self._hashing.wait()
        self._hash(self._unhashed)
        self._unhashed = []
        return self._hashes

    def __enter__(self) -> Self:
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._recover()
            except BaseException:
                os.close(self._handle)
                raise
        return self

    def _recover(self) -> None:
        """Take up what an earlier process left."""
        self._note = read_note(note_path(self.path))
        if self._published.digest is None:
            self._drop_untrusted()
        while block := os.read(self._handle, _READ):
            self._hashes.update(block)
            self.size += len(block)
            self._seen(self.size)

    def _drop_untrusted(self) -> None:
        here = os.fstat(self._handle).st_size
        kept = self._note.trusted(here)
        os.ftruncate(self._handle, kept)
        if kept and self._note.boot != boot_id():
            self._note = replace(self._note, boot=boot_id(), durable=kept)
            write_durably(note_path(self.path), self._note.encode())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._hashing.close()
            self._syncing.close()
            with disk_errors(self.path):
                os.close(self._handle)
        finally:
            if self.size == 0 or isinstance(error, NoSpaceError):
                remove_partial(self.path)

    def known(self, url: str) -> Note:
        """Return what was noted when `url` began to send what is here; nothing for another URL."""
        noted = self._note.url and redact(self._note.url)
        return self._note if noted == redact(url) else Note()

    def range_from(self, url: str) -> dict[str, str]:
        """Return request headers that ask for the rest, or none where it cannot be continued.

        A part is continued from the host that sent it if the host gave a validator; from any
        host if the source publishes a digest, which will tell.
        """
        validator = self.known(url).validator
        if self.size == 0 or not (validator or self._published.digest):
            return {}
        condition = {"If-Range": validator} if validator else {}
        return {"Range": f"bytes={self.size}-", **condition}

    def clear(self) -> None:
        """Drop what is here; `start` must come before the next byte."""
        self._hashing.wait()
        self._syncing.wait()
        with disk_errors(self.path):
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
        self._hashes, self._unhashed = Hashes(self._published), []
        self.size = self._sync_asked = 0
        self.continued = False
        self._seen(0)

    def start(self, url: str, validator: str | None, total: int | None) -> None:
        """Drop what is here and note where the bytes to come are from."""
        self.clear()
        first = self._note == Note()
        self._note = Note(url, validator, total, boot_id())
        with disk_errors(self.path):
            if first:
                # if a crash takes it, the bytes beside it are not trusted: no need to wait for it
                note_path(self.path).write_bytes(self._note.encode())
            else:
                # an older note must not come back beside bytes that it does not know
                write_durably(note_path(self.path), self._note.encode())

    def append(self, block: bytes) -> None:
        """Add the next bytes."""
        with disk_errors(self.path):
            _write(self._handle, block)
        self.size += len(block)
        self._unhashed.append(block)
        if len(self._unhashed) >= _BATCH:
            self._hash_behind()
        if self.size - self._sync_asked >= SYNC_EVERY and self._syncing.idle:
            self._sync_behind()
        self._seen(self.size)

    def secure(self) -> None:
        """Have what is here outlive a crash, unless a digest would tell of it in the end."""
        if self._published.digest is None and self.size > self._note.durable:
            self._syncing.wait()
            self._sync(self.size)

    def settle(self) -> None:
        """Make sure that the bytes are on the disk."""
        self._syncing.wait()
        with disk_errors(self.path):
            os.fsync(self._handle)

    def _hash_behind(self) -> None:
        blocks, self._unhashed = self._unhashed, []
        self._hashing.put(lambda: self._hash(blocks))

    def _hash(self, blocks: list[bytes]) -> None:
        for block in blocks:
            self._hashes.update(block)

    def _sync_behind(self) -> None:
        size = self._sync_asked = self.size
        self._syncing.put(lambda: self._sync(size))

    def _sync(self, size: int) -> None:
        with disk_errors(self.path):
            os.fsync(self._handle)
            if self._published.digest is None:
                self._note = replace(self._note, durable=size)
                write_durably(note_path(self.path), self._note.encode())


def _write(handle: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(handle, view) :]


def remove_partial(path: Path) -> None:
    """Delete a part and the note beside it, where they exist."""
    path.unlink(missing_ok=True)
    note_path(path).unlink(missing_ok=True)


def noted_url(path: Path) -> str | None:
    """Return the URL that a part came from, where its note says so."""
    return read_note(note_path(path)).url
