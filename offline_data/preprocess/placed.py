"""Bytes to places in files that several processes write: each its own range, none another's."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_data.disk import disk_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

_CHUNK = 1 << 20
"""Bytes that are read at once."""


class Range(NamedTuple):
    """Bytes of a file that somebody wrote."""

    begin: int
    """The first one."""
    size: int
    """How many."""
    crc: int
    """CRC-32 of all of them."""


class PlacedFiles:
    """Appends to ranges of files of one folder, as a `Sink` appends to whole files.

    `pwrite`, not memory maps: a full disk is an error there, and the end of the process here.

    Args:
        folder: Where the files are, or will be.
        begin: Byte where the range of each file begins; 0 where nothing is said.
        alone: Whether there is nothing else in these files: what they hold behind the ranges goes
            with `sync`, not before, for another process may be writing the same to them.

    Raises:
        NoSpaceError, AccessError: The disk.
    """

    def __init__(self, folder: Path, begin: Mapping[str, int], *, alone: bool = False) -> None:
        self._folder = folder
        self._alone = alone
        self._begin = dict(begin)
        self._ranges: dict[str, Range] = {}
        self._handles: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    @property
    def written(self) -> dict[str, Range]:
        """What has been written, by the name of the file."""
        return dict(self._ranges)

    def append(self, name: str, data: Any) -> None:
        """Write a contiguous array or bytes behind what this object wrote to file `name`."""
        whole = memoryview(data).cast("B") if len(data) else memoryview(b"")
        begin, size, crc = self._ranges.get(name, (self._begin.get(name, 0), 0, 0))
        with disk_errors(self._folder):
            handle, rest, at = self._handle(name), whole, begin + size
            while len(rest):
                written = os.pwrite(handle, rest, at)
                rest, at = rest[written:], at + written
        self._ranges[name] = Range(begin, size + len(whole), zlib.crc32(whole, crc))

    def sync(self) -> None:
        """Force everything to the disk."""
        with disk_errors(self._folder):
            for name, handle in self._handles.items():
                if self._alone:
                    part = self._ranges[name]
                    os.ftruncate(handle, part.begin + part.size)
                os.fsync(handle)

    def _handle(self, name: str) -> int:
        if name not in self._handles:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handles[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self._handles[name]


def holds(folder: Path, written: Mapping[str, Range]) -> bool:
    """Return True if files still hold what was written to them; reads it all."""
    try:
        return all(_crc(folder / name, part) == part.crc for name, part in written.items())
    except OSError:
        return False


def _crc(path: Path, part: Range) -> int | None:
    """Compute the CRC-32 of a range; None where the file ends before it does."""
    crc, left = 0, part.size
    with path.open("rb", buffering=0) as file:
        file.seek(part.begin)
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                return None
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
    return crc


def allocate(folder: Path, sizes: Mapping[str, int]) -> None:
    """Give files these sizes, their room on the disk taken; what they hold stays.

    Raises:
        NoSpaceError, AccessError: The disk; files that were not there before are not left.
    """
    new = [folder / name for name in sizes if not (folder / name).exists()]
    try:
        with disk_errors(folder):
            for name, size in sizes.items():
                _resize(folder / name, size)
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.unlink()
        raise


def _resize(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if file.tell() == size > 0:
            return
        file.truncate(size)
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
