"""A file as published, a verified file on this disk, and the checks between them."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_data.base.errors import AccessError, IntegrityError, UsageError
from offline_data.base.files import check_relative, describe_head, disk_errors
from offline_data.base.plurals import plural
from offline_data.base.urls import redact

HEAD = 512  # bytes kept from the beginning, to say what a wrong file is
_BLOCK = 1 << 20
_AGAIN = "try again; if it persists, the host or its mirror serves something else than published"
_CHANGED = f"{_AGAIN}; if the change is meant, accept it with --allow-changed"
_LARGEST = 1 << 50  # bytes that no host's file has: a larger size is wrong, whatever the disk has
_HEX_DIGITS = {"sha256": 64, "md5": 32, "crc32c": 8, "git": 40}


@dataclass(frozen=True)
class RemoteFile:
    """One raw file of a dataset, as it is published."""

    path: str
    """Relative posix path inside the raw folder; no `..`, not absolute."""
    urls: tuple[str, ...]
    """Its places, best first. `hf://datasets/<repo>@<commit>/<path>` goes through
    huggingface_hub, `http(s)://` is fetched plainly, `file://` is already here."""
    size: int | None = None
    """Bytes, where the source publishes them."""
    digest: str | None = None
    """`sha256:…`, `md5:…`, `crc32c:…` or `git:…` (the id of the blob, for which the size must be
    known too) in hex, where the source publishes one."""
    magic: bytes = b""
    """First bytes that the file must have (`\\x89HDF\\r\\n\\x1a\\n`); empty: anything."""
    accepts_changes: bool = False
    """Whether other bytes than the published ones are accepted, and than those of an earlier fetch."""

    @property
    def compared(self) -> str:
        """Facts of the bytes that are compared with the published ones, such as `size and sha256`."""
        if self.accepts_changes:
            return "nothing, as changes were accepted"
        known = ["size"] if self.size is not None else []
        known += [split_digest(self.digest)[0]] if self.digest else []
        return " and ".join(known) or "nothing, as nothing is published"


@dataclass(frozen=True)
class FetchedFile:
    """One raw file on this disk, verified against everything its source publishes about it."""

    name: str  # relative posix path inside the raw folder: `RemoteFile.path`
    path: Path  # path of its bytes; never write to it: it is shared
    sha256: str  # hex digest
    size: int  # bytes
    url: str  # where they came from: a published URL or a mirror's; redacted
    failed: tuple[str, ...] = ()  # places before `url` that failed, `host: reason`; redacted
    compared: str | None = None  # see `RemoteFile`

    def __post_init__(self) -> None:  # these values go into manifests: no password
        object.__setattr__(self, "url", redact(self.url))
        object.__setattr__(self, "failed", tuple(map(redact, self.failed)))


def assemble(fetched: Iterable[FetchedFile], folder: Path) -> None:
    """Give every file its name under `folder`: a hard link, or a symlink where that cannot be.

    An existing file of that name is replaced. Files are shared and read-only: never write to them.
    Raises `IntegrityError`, `AccessError`.
    """
    places = [(file.path, folder / check_relative(file.name)) for file in fetched]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            staged = place.with_name(f".{secrets.token_hex(4)}.link")
            try:
                staged.hardlink_to(path.resolve())
            except OSError:  # another disk, or a file of another user
                staged.symlink_to(path.resolve())
            try:
                staged.replace(place)
            finally:
                staged.unlink(missing_ok=True)  # rename does nothing between two links of one file


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

    `file` is what is published; the algorithm of its digest is computed in addition to sha256.
    Raises `UsageError`.
    """

    def __init__(self, file: RemoteFile) -> None:
        self.size = 0
        self.head = b""
        self._hashes: dict[str, Any] = {"sha256": hashlib.sha256()}
        algorithm = split_digest(file.digest)[0] if file.digest else "sha256"
        if algorithm == "crc32c":
            import google_crc32c

            self._hashes[algorithm] = google_crc32c.Checksum()
        elif algorithm == "git":  # git names a blob by the sha1 of its size and its content
            if file.size is None:
                raise UsageError(f"{file.path} has a digest of git and no size; expected both")
            header = f"blob {file.size}\0".encode()
            self._hashes[algorithm] = hashlib.sha1(header, usedforsecurity=False)
        elif algorithm == "md5":
            self._hashes[algorithm] = hashlib.md5(usedforsecurity=False)

    def update(self, block: bytes) -> None:
        """Take the next bytes."""
        for running in self._hashes.values():
            running.update(block)
        self.size += len(block)
        self.head += block[: HEAD - len(self.head)]

    def hex(self, algorithm: str = "sha256") -> str:
        """Digest of all bytes so far."""
        digest: bytes = self._hashes[algorithm].digest()
        return digest.hex()


def hash_file(path: Path, published: RemoteFile, report: Callable[[int], None]) -> Hashes:
    """Read a file for its digests, `report`ing bytes so far; raises `AccessError`, `OSError`."""

    def open_plain(path: str, flags: int) -> int:
        # O_NONBLOCK: without it, opening a FIFO waits for somebody to write to it
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise AccessError(f"{path} is not a plain file")
        return descriptor

    hashes = Hashes(published)
    with open(path, "rb", opener=open_plain) as file:
        while block := file.read(_BLOCK):
            hashes.update(block)
            report(hashes.size)
    return hashes


def check_head(file: RemoteFile, head: bytes, url: str) -> None:
    """Raise `IntegrityError` unless a file may begin like this, as far as it is known."""
    known = min(len(head), len(file.magic))
    if head[:known] != file.magic[:known]:
        raise IntegrityError(
            f"{url} is not {file.path}: {describe_head(head)}; "
            f"expected it to begin with {file.magic!r}",
            hint=_AGAIN,
        )


def check_plausible(size: int, what: str) -> None:
    """Raise `IntegrityError` for a size that no file has."""
    if size > _LARGEST:
        raise IntegrityError(
            f"{what} has {size:,} bytes; expected at most {_LARGEST:,}", hint=_AGAIN
        )


def check_size(file: RemoteFile, size: int, url: str) -> None:
    """Raise `IntegrityError` unless the size is the published one."""
    if file.size is not None and size != file.size:
        raise IntegrityError(
            f"{url} has {plural(size, 'byte')}; published for {file.path}: {file.size:,}",
            hint=_CHANGED,
        )


def check_whole(file: RemoteFile, hashes: Hashes, url: str) -> None:
    """Raise `IntegrityError` unless a whole file is what its source publishes."""
    if len(hashes.head) < len(file.magic):
        raise IntegrityError(
            f"{url} has only {plural(hashes.size, 'byte')}, no whole file", hint=_AGAIN
        )
    check_head(file, hashes.head, url)
    check_size(file, hashes.size, url)
    if file.digest is None:
        return
    algorithm, wanted = split_digest(file.digest)
    if hashes.hex(algorithm) != wanted:
        raise IntegrityError(
            f"{url} has {algorithm} {hashes.hex(algorithm)}; published for {file.path}: {wanted}",
            hint=_CHANGED,
        )
