"""Checks of a file: its digests while it streams, its size, its first bytes."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Protocol

from offline_data.errors import AccessError, IntegrityError, UsageError
from offline_data.fetch.crc32c import Crc32c
from offline_data.heads import describe_head

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offline_data.fetch.files import RemoteFile

HEAD = 512
"""Bytes kept from the beginning, to say what a wrong file is."""
_BLOCK = 1 << 20
_AGAIN = "try again; if it persists, the host or its mirror serves something else than published"


class _Hash(Protocol):
    def update(self, block: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


_HEX_DIGITS = {"sha256": 64, "md5": 32, "crc32c": 8, "git": 40}


def _hash(algorithm: str, size: int | None) -> _Hash:
    if algorithm == "crc32c":
        return Crc32c()
    if algorithm == "git":  # git names a blob by the sha1 of its size and its content
        return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    return hashlib.new(algorithm, usedforsecurity=False)


def split_digest(digest: str) -> tuple[str, str]:
    """Split `sha256:…` into algorithm and lower-case hex; raises `UsageError` for other forms.

    Example:
        >>> split_digest("crc32c:E3069283")
        ('crc32c', 'e3069283')
    """
    algorithm, _, value = digest.partition(":")
    value = value.lower()
    if len(value) != _HEX_DIGITS.get(algorithm) or set(value) - set("0123456789abcdef"):
        raise UsageError(
            f"{digest!r} is not a digest; expected sha256:, md5:, crc32c: or git: "
            "and 64, 32, 8 or 40 hex digits"
        )
    return algorithm, value


class Hashes:
    """Digests, size and first bytes of a file that arrives block by block.

    Args:
        file: What is published; the algorithm of its digest is computed beside sha256.

    Raises:
        UsageError: Its digest is git's, which covers the size, and its size is not published.
    """

    def __init__(self, file: RemoteFile) -> None:
        self.size = 0
        self.head = b""
        algorithm = split_digest(file.digest)[0] if file.digest else "sha256"
        if algorithm == "git" and file.size is None:
            raise UsageError(f"{file.path} has a digest of git and no size; expected both")
        self._hashes = {name: _hash(name, file.size) for name in {"sha256", algorithm}}

    def update(self, block: bytes) -> None:
        """Take the next bytes."""
        for running in self._hashes.values():
            running.update(block)
        self.size += len(block)
        self.head += block[: HEAD - len(self.head)]

    def hex(self, algorithm: str = "sha256") -> str:
        """Digest of all bytes so far."""
        return self._hashes[algorithm].hexdigest()


def hash_file(path: Path, published: RemoteFile, report: Callable[[int], None]) -> Hashes:
    """Read a file once for its digests; `report` is called with the bytes read so far.

    Raises:
        AccessError: It is not a plain file: a FIFO or a device may never end.
        OSError: It cannot be read.
    """
    hashes = Hashes(published)
    with open(path, "rb", opener=_open_plain) as file:
        while block := file.read(_BLOCK):
            hashes.update(block)
            report(hashes.size)
    return hashes


def _open_plain(path: str, flags: int) -> int:
    # O_NONBLOCK: without it, opening a FIFO waits for somebody to write to it
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AccessError(f"{path} is not a plain file")
    return descriptor


def check_head(file: RemoteFile, head: bytes, url: str) -> None:
    """Raise `IntegrityError` unless a file may begin like this, as far as it is known."""
    known = min(len(head), len(file.magic))
    if head[:known] != file.magic[:known]:
        raise IntegrityError(
            f"{url} is not {file.path}: {describe_head(head)}; "
            f"expected it to begin with {file.magic!r}",
            hint=_AGAIN,
        )


def check_size(file: RemoteFile, size: int, url: str) -> None:
    """Raise `IntegrityError` unless the size is the published one."""
    if file.size is not None and size != file.size:
        raise IntegrityError(
            f"{url} has {size} bytes; published for {file.path}: {file.size}", hint=_AGAIN
        )


def check_whole(file: RemoteFile, hashes: Hashes, url: str) -> None:
    """Raise `IntegrityError` unless a whole file is what its source publishes."""
    if len(hashes.head) < len(file.magic):
        raise IntegrityError(f"{url} has only {hashes.size} bytes, no whole file", hint=_AGAIN)
    check_head(file, hashes.head, url)
    check_size(file, hashes.size, url)
    if file.digest is None:
        return
    algorithm, wanted = split_digest(file.digest)
    if hashes.hex(algorithm) != wanted:
        raise IntegrityError(
            f"{url} has {algorithm} {hashes.hex(algorithm)}; published for {file.path}: {wanted}",
            hint=_AGAIN,
        )
