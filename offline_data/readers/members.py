"""Members of an archive: what its reader hands out, and the checks that all formats share."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO

from offline_data.disk import human_bytes
from offline_data.errors import AccessError, FormatError
from offline_data.paths import check_relative

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Buffer

BLOCK = 1 << 18
"""Bytes that are read, inflated or copied at once."""

_NAMES = 1 << 27
"""Bytes of memory that the names of one archive may take: some 700,000 members."""

_NAME = 128
"""What a name takes besides its text: the string, and its place in a set."""

_LONGEST = 255
"""Bytes of one part of a path that the usual file systems can hold."""


@dataclass(frozen=True)
class Member:
    """One file in an archive; the mode, owner and times it has there are ignored."""

    name: str
    """Relative posix path, checked: joined to a folder it stays inside."""
    size: int
    """Bytes announced; -1 for a lone gzip file, which announces none."""
    stream: BinaryIO
    """Its bytes, never more than announced. Closed when the next member is asked for, or when
    the iterator that gave it is gone.

    Reading to the end raises `FormatError` where they are fewer than announced, or damaged in a
    format that can tell.
    """


def bad_archive(path: Path, found: str) -> FormatError:
    """Say what is wrong with an archive as a whole."""
    return FormatError(f"{path} {found}", hint="fetch it again, or from another mirror")


def bad_member(path: Path, name: str, found: str) -> FormatError:
    """Say what is wrong with one member of an archive."""
    return bad_archive(path, f"has a member {name!r} that {found}")


class Source(io.FileIO):
    """An archive on disk, open for reading.

    Raises:
        AccessError: It cannot be opened or, later, read.
    """

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path, "rb")
        except OSError as error:
            raise _unreadable(path, error) from error
        self.path = path

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as `io.FileIO` does."""
        try:
            return super().read(size)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def readinto(self, buffer: Buffer, /) -> int:
        """Read as `io.FileIO` does."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise _unreadable(self.path, error) from error


def _unreadable(path: Path, error: OSError) -> AccessError:
    return AccessError(f"{path} cannot be read: {error.strerror}")


def buffered(read: Callable[[int], bytes], size: int = BLOCK) -> io.BufferedReader:
    """Make a binary stream out of a function.

    Args:
        read: Gives some bytes, at most as many as asked for, and none only at the end. It is
            never asked for more than `BLOCK`.
        size: Bytes the stream will have in all, where that is known and small.

    Example:
        >>> chunks = iter([b"10", b"01", b""])
        >>> buffered(lambda most: next(chunks)).read()
        b'1001'
    """
    return io.BufferedReader(_Raw(read), max(1, min(size, BLOCK)))


class _Raw(io.RawIOBase):
    """What `io.BufferedReader` wants of a function that reads."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._some = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._some(min(len(view), BLOCK))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Join blocks; what is inherited asks for 8 KiB at a time."""
        return b"".join(iter(lambda: self._some(BLOCK), b""))


class Inventory:
    """What an archive has announced so far; refuses what must not become files.

    Args:
        path: The archive, for messages.
        most: Bytes that all its members together may have.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._total = 0
        self._memory = 0

    def add_folder(self, given: str) -> None:
        """Check the name of a folder, which may be announced any number of times."""
        name = without_dot(given.rstrip("/"))
        if name != ".":
            self._charge(self._checked(name))

    def add_file(self, given: str, size: int) -> str:
        """Check a file's name and size, and return the name without leading `./`.

        Raises:
            IntegrityError: The name would leave the folder the archive is extracted to.
            FormatError: It was there before, is also a folder's or a part of it is also a file's,
                cannot be a file's, or with this member the archive is larger than it may be.
        """
        name = self._checked(given)
        folders = _folders_of(name)
        if name in self._files or name in self._folders or not self._files.isdisjoint(folders):
            raise bad_member(self._path, name, "is there twice, or is both a file and a folder")
        self._charge(name, *folders - self._folders)
        self._files.add(name)
        self._folders |= folders
        self._add_bytes(name, size)
        return name

    def _checked(self, given: str) -> str:
        name = without_dot(given)
        check_relative(name, f"A member of {self._path}")
        try:
            longest = max(len(part) for part in name.encode().split(b"/"))
        except UnicodeEncodeError as error:
            raise bad_member(self._path, name, "has a name that is not UTF-8") from error
        if longest > _LONGEST:
            raise bad_member(self._path, name[:40] + "…", f"has a name of {longest} bytes")
        return name

    def _charge(self, *names: str) -> None:
        self._memory += sum(len(name) + _NAME for name in names)
        if self._memory > _NAMES:
            found = f"has names that take more than {human_bytes(_NAMES)}; expected fewer members"
            raise bad_archive(self._path, found)

    def _add_bytes(self, name: str, size: int) -> None:
        self._total += size
        if size < 0 or self._total > self._most:
            found = (
                f"has {size} bytes, which makes {self._total} in all; "
                f"expected at most {self._most} ({human_bytes(self._most)})"
            )
            raise bad_member(self._path, name, found)


def without_dot(name: str) -> str:
    """Return a member's name without the `./` that `tar -c .` writes before each.

    Example:
        >>> without_dot("./a/b"), without_dot("../a"), without_dot(".//a")
        ('a/b', '../a', '/a')
    """
    while name.startswith("./"):
        name = name[2:]
    return name


def _folders_of(name: str) -> set[str]:
    return set(accumulate(name.split("/")[:-1], "{}/{}".format))
