"""Zip files whose directory was checked before anything is read, and whose members are as said."""

from __future__ import annotations

import copy
import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from offline_data.errors import OfflineDataError
from offline_data.heads import check_magic
from offline_data.readers.members import (
    BLOCK,
    Member,
    Source,
    bad_archive,
    bad_member,
    buffered,
    without_dot,
)
from offline_data.readers.zip_directory import check_directory, check_place

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

MAGIC = b"PK"
"""First bytes of a zip file, whether its first record is a member or the end of no members."""

_DIRECTORY = 1 << 25
"""Bytes a directory may have: some 300,000 members, which take ten times as much memory."""


@contextmanager
def open_zip(path: Path, *, most: int) -> Iterator[CheckedZip]:
    """Open a zip file after all entries of its directory were checked.

    What `open` and `read` of the result give is checked too: a member that inflates to more or
    fewer bytes than its entry announces, has another checksum, another name before its data, or
    data that are also the next member's, is a `FormatError` by the time that its last byte is
    given. Memory is a few blocks of 256 KiB a member that is open, and the directory.

    Args:
        path: The file.
        most: Bytes that its members together may have.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        IntegrityError: An entry whose name would leave the folder it is extracted to.
        FormatError: It is not a zip file, is damaged or cut short, has something before its first
            member, a directory beyond 32 MiB, or an entry that is there twice, is a link or
            device, encrypted, neither stored nor deflated, overlaps another, or is more than
            `most` allows. Also while reading.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "episodes.zip")
        ...     with zipfile.ZipFile(path, "w") as new:
        ...         new.writestr("reward", b"1001")
        ...     with open_zip(path, most=4) as archive:
        ...         archive.read("reward")
        b'1001'
    """
    check_magic(path, MAGIC, "a zip file")
    with _Frugal(path) as file, CheckedZip(file, path, most) as archive:
        yield archive


def zip_members(path: Path, *, most: int) -> Iterator[Member]:
    """Yield the files of a zip file in the order of its directory; folders are skipped.

    A leading `./` of a name is dropped; modes and times are ignored.

    Args:
        path: The file.
        most: Bytes that its members together may have.

    Raises:
        OfflineDataError: What `open_zip` raises, and when; before the first member is yielded, but
            for what only its data can tell.
    """
    with open_zip(path, most=most) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as stream:
                    yield Member(without_dot(info.filename), info.file_size, stream)


class _Frugal(Source):
    """A zip file whose directory is not read into memory where it is too large."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _DIRECTORY:
            raise bad_archive(
                self.path, f"has a directory of {size} bytes; expected at most {_DIRECTORY}"
            )
        return super().read(size)


class CheckedZip(zipfile.ZipFile):
    """A zip file that believes nothing of its directory; `open_zip` makes one."""

    def __init__(self, file: Source, path: Path, most: int) -> None:
        self._path, self._source = path, file
        with _zip_errors(path, "has no readable directory"):
            super().__init__(file)
            self._ends = check_directory(self, file, most)

    def open(
        self,
        name: str | zipfile.ZipInfo,
        mode: Literal["r", "w"] = "r",
        pwd: bytes | None = None,
        *,
        force_zip64: bool = False,
    ) -> io.BufferedReader:
        """Open a member to read it; the arguments after `name` are there for the base class."""
        info = self.getinfo(name) if isinstance(name, str) else name
        entry = copy.copy(info)
        # the base class hides what follows the announced bytes, and inflates some KiB ahead
        entry.file_size += BLOCK
        with _zip_errors(self._path, f"has a member {info.filename!r} that cannot be read"):
            check_place(self._source, info, self._ends[info.header_offset])
            stream = super().open(entry, mode, pwd, force_zip64=force_zip64)
        return buffered(_Content(self._path, info, stream).read, info.file_size)


class _Content:
    """The bytes of one member, compared with what its entry announces."""

    def __init__(self, path: Path, info: zipfile.ZipInfo, stream: IO[bytes]) -> None:
        self._path, self._name, self._size = path, info.filename, info.file_size
        self._stream = stream
        self._given = 0

    def read(self, most: int) -> bytes:
        """Return at most `most` bytes; the last only after they were found right."""
        data = self._read(min(most, self._size - self._given))
        if not data or self._given == self._size:
            self._read(1)
            if self._given != self._size:
                fewer = "fewer" if self._given < self._size else "more"
                found = f"has {fewer} bytes than the {self._size} announced"
                raise bad_member(self._path, self._name, found)
        return data

    def _read(self, most: int) -> bytes:
        with _zip_errors(self._path, f"has a damaged member {self._name!r}"):
            data = self._stream.read(most)
        self._given += len(data)
        return data


@contextmanager
def _zip_errors(path: Path, found: str) -> Iterator[None]:
    """Turn what `zipfile` and `zlib` raise, on purpose or because of a wild value, into ours."""
    try:
        yield
    except OfflineDataError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        OSError,
        RuntimeError,
        ValueError,
        OverflowError,
    ) as error:
        raise bad_archive(path, f"{found}: {error}") from error
