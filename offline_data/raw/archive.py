"""Archives as streams of checked members: zip, tar (also in gzip, xz or bzip2) and a lone gzip file.

The standard library parses; this file decides what may come out. Names must stay inside a folder
they are joined to, nothing but plain files is handed out, and all bytes count against a budget.
"""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from offline_data.base.ahead import Ahead
from offline_data.base.errors import AccessError, FormatError, OfflineDataError
from offline_data.base.files import (
    advise_on_head,
    check_relative,
    describe_head,
    human_bytes,
    read_head,
)
from offline_data.base.plurals import plural
from offline_data.raw.fast_zlib import fast_zlib, open_gzip

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK = 1 << 18  # bytes read at once
_INFLATED = 1 << 20  # bytes that a thread inflates at once
_AHEAD = 4  # times that many wait to be read
_NAMES = 1 << 27  # bytes of memory for the names of one archive: some 700,000 members
_EXTENDED_HEADER = 1 << 14
"""Bytes of one extended tar header: `tarfile` reads each as a whole, and before Python 3.11.10 takes
time with the square of its length (CVE-2024-6232)."""
_HINT = "download it again, or from another mirror"
_END = 22  # bytes of the record at the end of a zip, without its comment
_TRAILER = 1 << 24  # bytes after the end mark of a tar: zeros that fill up a block of a tape

_DAMAGE = (
    zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError,
    RuntimeError, ValueError, ArithmeticError, LookupError, TypeError, SyntaxError, MemoryError,
    struct.error,
)  # fmt: skip
"""Exceptions of the standard library and numpy for files that are damaged, encrypted or of a kind they
do not read; and `OSError` without a number, or for a place before the file's first byte."""

_STREAMS: tuple[tuple[bytes, Any], ...] = (
    (b"\x1f\x8b", open_gzip),
    (b"\xfd7zXZ\0", lzma.open),
    (b"BZh", bz2.open),
)
"""First bytes of compressed streams, and what opens them."""


@dataclass(frozen=True)
class Member:
    """One file in an archive; the mode, owner and times it has there are ignored."""

    name: str
    """Relative posix path, checked: joined to a folder it stays inside."""
    size: int
    """Bytes announced; -1 for a lone gzip file, which announces none."""
    stream: IO[bytes]
    """Its bytes. Valid until the next member is requested. Reading it to the end raises
    `FormatError` where they are fewer than announced, or damaged in a format that can tell."""


def open_members(path: Path, *, budget: int) -> Iterator[Member]:
    """Yield the files in an archive, in its order; folders are skipped.

    The kind is found by first bytes: zip, tar (ustar, v7, GNU, pax), either of them or one file
    compressed by gzip, xz or bzip2, which is named like the archive without its suffix. Checksums of
    compressed streams are compared; a plain tar has none of its contents. Memory is some blocks, and
    the names. `budget` limits the bytes of all members together, also of those that are not read.

    Raises:
        NotFoundError, AccessError: There is no such file, or it may not be read.
        IntegrityError: A member whose name would leave the folder it is joined to.
        FormatError: It is none of these, is damaged or cut short; or has a member that is a link, a
            device, sparse or encrypted, that is there twice, or goes beyond `budget`. Nothing
            of such a member was handed out.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "episodes.zip")
        ...     with zipfile.ZipFile(path, "w") as new:
        ...         new.writestr("0/reward", b"1001")
        ...     [(member.name, member.stream.read()) for member in open_members(path, budget=1000)]
        [('0/reward', b'1001')]
    """
    head = read_head(path)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_members(path, budget)
    opener: Any = next((open_it for magic, open_it in _STREAMS if head.startswith(magic)), open)
    if opener is not open or _is_tar(head):
        return _stream_members(path, opener, budget)
    raise FormatError(
        f"{path} is not a zip, tar, gzip, xz or bzip2 file: {describe_head(head)}",
        hint=advise_on_head(head),
    )


class _SafeMembers:
    """The names and bytes that an archive has announced; refuses what must not become files."""

    def __init__(self, path: Path, budget: int) -> None:
        self._path, self._budget, self._left = path, budget, budget
        self._memory = 0
        self._is_folder: dict[str, bool] = {}

    def add(self, name: str, size: int = 0, *, is_folder: bool = False) -> str:
        """Check name and size, and return the name without the `./` of `tar -c .`."""
        plain = re.sub(r"^(\./)+", "", name)
        if is_folder:
            plain = plain.rstrip("/") or name
            if plain in {".", "./"}:
                return plain
        check_relative(plain, f"A member of {self._path}")
        above = [plain[:end] for end, character in enumerate(plain) if character == "/"]
        known = self._is_folder.get(plain)
        if (known is not None and not (is_folder and known)) or any(
            self._is_folder.get(folder) is False for folder in above
        ):
            raise _member_error(self._path, plain, "is there twice, or is both a file and a folder")
        new = {**dict.fromkeys(above, True), plain: is_folder}
        self._memory += sum(len(key) + 128 for key in new.keys() - self._is_folder.keys())
        self._is_folder.update(new)
        if self._memory > _NAMES:
            raise _damage_error(
                self._path, f"it has names that take more than {human_bytes(_NAMES)}"
            )
        self._left -= size
        if size < 0 or self._left < 0:
            found = (
                f"has {size} bytes, which makes {self._budget - self._left} in all; expected at "
                f"most {self._budget} ({human_bytes(self._budget)})"
            )
            raise _member_error(self._path, plain, found)
        return plain


# ---- zip -------------------------------------------------------------------------------------


def _zip_members(path: Path, budget: int) -> Iterator[Member]:
    with open_zip(path, budget=budget) as (archive, files):
        for name, info in files.items():
            with name_damage(path), archive.open(info) as stream:
                yield Member(name, info.file_size, _check_stream(stream, path))


@contextmanager
def open_zip(
    path: Path, *, budget: int, content: IO[bytes] | None = None
) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Give checked files of a zip by name; `content`: its bytes, `path` then is for messages."""
    if content is None:
        read_head(path)  # a missing file, or one that may not be read, in our words
    with name_damage(path):
        archive = zipfile.ZipFile(content or path)
        _check_count(archive)
    with archive:
        safe, files = _SafeMembers(path, budget), {}
        for info in archive.infolist():
            if info.filename.endswith("/"):
                safe.add(info.filename, is_folder=True)
                continue
            name = safe.add(info.filename, info.file_size)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in {0, stat.S_IFREG} or info.flag_bits & 1:
                raise _member_error(path, name, "is encrypted, a link or a device; expected a file")
            files[name] = info
        yield archive, files


def _check_count(archive: zipfile.ZipFile) -> None:
    """Raise `BadZipFile` where the directory has not as many files as its end says."""
    # A length in it that is damaged hides the files that follow; `zipfile` does not count.
    file, found = cast("IO[bytes]", archive.fp), len(archive.infolist())
    file.seek(-_END - len(archive.comment), io.SEEK_END)
    end = file.read(_END)
    stated = int.from_bytes(end[10:12], "little")
    if end.startswith(b"PK\x05\x06") and stated not in {0xFFFF, found}:
        raise zipfile.BadZipFile(
            f"its directory has {plural(found, 'file')}, and {stated} are stated"
        )


# ---- tar, and compressed streams -------------------------------------------------------------


class _Header(tarfile.TarInfo):
    """A header that raises on damage; `tarfile` would take it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
        block = archive.fileobj.read(tarfile.BLOCKSIZE)
        try:
            header = cls.frombuf(block, archive.encoding or "utf-8", archive.errors or "strict")
        except tarfile.HeaderError as error:
            if block == bytes(tarfile.BLOCKSIZE):
                raise  # the end
            found = "is cut short" if len(block) < tarfile.BLOCKSIZE else f"is damaged: {error}"
            raise tarfile.ReadError(found) from error
        extended = header.type not in tarfile.SUPPORTED_TYPES or header.type in {
            tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        }  # fmt: skip
        if extended and not 0 <= header.size <= _EXTENDED_HEADER:
            raise tarfile.ReadError(f"has an extended header of {header.size} bytes")
        header.offset = archive.fileobj.tell() - tarfile.BLOCKSIZE
        return header._proc_member(archive)  # type: ignore[attr-defined]


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return head[257:262] == b"ustar"
    return True


def _stream_members(path: Path, opener: Any, budget: int) -> Iterator[Member]:
    """Yield the members of a tar, compressed or not, or the one of a lone compressed file."""
    with name_damage(path), opener(path, "rb") as file:
        if opener is open:
            yield from _tar_members(path, file, budget)
            return
        with io.BufferedReader(_InflatedStream(file), _BLOCK) as stream:
            first = stream.peek(tarfile.BLOCKSIZE)[: tarfile.BLOCKSIZE]
            if len(first) == tarfile.BLOCKSIZE and _is_tar(first):
                yield from _tar_members(path, cast("IO[bytes]", stream), budget)
                return
            known = path.suffix in {".gz", ".xz", ".bz2"}
            name = path.name.removesuffix(path.suffix) if known else ""
            name = check_relative(name or path.name, f"The content of {path}")
            yield Member(name, -1, _check_stream(stream, path, budget=budget))


def _tar_members(path: Path, stream: IO[bytes], budget: int) -> Iterator[Member]:
    """Yield the members of a tar; `stream` is only read forward."""
    safe = _SafeMembers(path, budget)
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header, encoding="utf-8") as archive:
        while (header := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # of which it keeps every one
            if header.isdir():
                safe.add(header.name, is_folder=True)
                continue
            name = safe.add(header.name, header.size)
            if not header.isreg() or header.issparse():
                raise _member_error(path, name, "is a link, a device or sparse; expected a file")
            yield Member(name, header.size, _check_stream(stream, path, header.size))
    trailer = 0
    while block := stream.read(_BLOCK):  # to the checksum of a compressed stream
        trailer += len(block)
        if trailer > _TRAILER:
            raise tarfile.ReadError(f"more than {_TRAILER} bytes follow its end mark")


class _InflatedStream(io.RawIOBase):
    """A stream decompressed ahead by a thread.

    A read raises the error of the block it reaches. Close it before the stream, which ends the
    thread. Seeks forward only.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        blocks = iter(partial(stream.read, _INFLATED), b"")
        self._blocks = Ahead(blocks, _AHEAD, "offline-data-inflate")
        self._block = memoryview(b"")
        self._place = 0

    def close(self) -> None:
        self._blocks.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET or place < self._place:
            raise io.UnsupportedOperation("seeks forward only")
        while self._place < place and self._take(place - self._place):
            pass
        return self._place

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        taken = self._take(len(view))
        view[: len(taken)] = taken
        return len(taken)

    def _take(self, most: int) -> memoryview:
        """Return the next bytes, some at least where there are any."""
        if not self._block:
            self._block = memoryview(next(self._blocks, b""))
        taken, self._block = self._block[:most], self._block[most:]
        self._place += len(taken)
        return taken


def _check_stream(
    stream: IO[bytes], path: Path, size: int | None = None, *, budget: int | None = None
) -> IO[bytes]:
    """Return a stream of the next `size` bytes (None: all), at most `budget`, that names damage."""
    return io.BufferedReader(_CheckedStream(stream, path, size, budget), _BLOCK)


class _CheckedStream(io.RawIOBase):
    def __init__(self, stream: IO[bytes], path: Path, size: int | None, budget: int | None) -> None:
        self._stream: Any = stream
        self._path, self._size, self._left = path, size, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")[:_INFLATED]
        if self._size is not None:
            view = view[: self._size]
        with name_damage(self._path):
            count: int = self._stream.readinto(view) if len(view) else 0
            if self._size is not None:
                self._size -= count
                if len(view) and not count:
                    raise tarfile.ReadError("unexpected end of data")
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise _damage_error(self._path, "it inflates to more bytes than it may have")
        return count


@contextmanager
def name_damage(where: object) -> Iterator[None]:
    """Turn what is raised where a file is damaged into a `FormatError` that names it."""
    try:
        yield
    except OfflineDataError:
        raise
    except (*_DAMAGE, fast_zlib().error) as error:
        raise _damage_error(where, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno in {None, errno.EINVAL}:
            raise _damage_error(where, str(error)) from error
        raise AccessError(f"{where} cannot be read: {error.strerror}") from error


def _damage_error(where: object, found: str) -> FormatError:
    return FormatError(f"{where} is damaged or not supported: {found:.400}", hint=_HINT)


def _member_error(path: Path, name: str, found: str) -> FormatError:
    return FormatError(f"{path} has a member {name!r} that {found}", hint=_HINT)
