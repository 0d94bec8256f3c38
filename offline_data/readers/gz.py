"""Gzip files as streams of inflated bytes; damage and floods are errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from offline_data.disk import human_bytes
from offline_data.heads import check_magic
from offline_data.readers.inflate import gzip_decompressor
from offline_data.readers.members import BLOCK, Source, bad_archive, buffered

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"\x1f\x8b"
"""First bytes of every gzip member (RFC 1952)."""

_READ = 1 << 16
"""Compressed bytes at once: what is left of them is copied for every block that they inflate to."""


@contextmanager
def open_gz(path: Path, *, most: int) -> Iterator[BinaryIO]:
    """Open a gzip file, of one gzip member or several, as a stream of its inflated bytes.

    The last byte is handed out only after all checksums were right, so that a reader that stops
    there, as `numpy.lib.format.read_array` does, has been told of any damage. It cannot seek.
    Memory is a few blocks of 256 KiB, whatever the file says.

    Args:
        path: The file.
        most: Bytes that it may inflate to.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        FormatError: It is not a gzip file; also while reading, where it is damaged, is cut short,
            or inflates to more than `most`.

    Example:
        >>> import gzip, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "reward.gz")
        ...     _ = path.write_bytes(gzip.compress(b"1001"))
        ...     with open_gz(path, most=4) as stream:
        ...         stream.read()
        b'1001'
    """
    check_magic(path, MAGIC, "a gzip file")
    with Source(path) as file, buffered(_Bounded(file, most).read) as stream:
        yield stream


def inflated(file: Source) -> io.BufferedReader:
    """Return the inflated bytes of a gzip file, without a bound and as soon as they come.

    Raises:
        FormatError: While reading: the file is damaged or cut short.
    """
    return buffered(_Inflater(file).read)


class _Inflater:
    """Inflates the members of a gzip file one after the other."""

    def __init__(self, file: Source) -> None:
        self._file = file
        self._raw = b""
        self._stream, self._error = gzip_decompressor()

    def read(self, most: int) -> bytes:
        """Return at most `most` bytes; none only after the last checksum was right."""
        while not self._stream.eof or self._begin_next():
            raw = self._raw or self._file.read(_READ)
            data = self._inflate(raw, most)
            if data:
                return data
            if not raw and not self._stream.eof:
                raise bad_archive(self._file.path, "is cut short: its gzip stream has no end")
        return b""

    def _inflate(self, raw: bytes, most: int) -> bytes:
        stream = self._stream
        try:
            data: bytes = stream.decompress(raw, most)
        except self._error as error:
            raise bad_archive(self._file.path, f"is damaged: {error}") from error
        self._raw = stream.unused_data if stream.eof else stream.unconsumed_tail
        return data

    def _begin_next(self) -> bool:
        """Tell whether another member follows; zeros that fill up a tape's block are none."""
        rest = self._raw.lstrip(b"\0")
        while not rest:
            raw = self._file.read(_READ)
            if not raw:
                return False
            rest = raw.lstrip(b"\0")
        self._raw = rest
        self._stream, self._error = gzip_decompressor()
        return True


class _Bounded:
    """Inflates at most `most` bytes in all; holds a block back until the next one has come."""

    def __init__(self, file: Source, most: int) -> None:
        self._inflater, self._path, self._most = _Inflater(file), file.path, most
        self._total = 0
        self._held = self._next()

    def read(self, most: int) -> bytes:
        """Return at most `most` bytes, none only at the end."""
        data, self._held = self._held[:most], self._held[most:]
        self._held = self._held or self._next()
        return data

    def _next(self) -> bytes:
        data = self._inflater.read(BLOCK)
        self._total += len(data)
        if self._total > self._most:
            found = f"inflates to more than the {self._most} bytes it may have"
            raise bad_archive(self._path, f"{found} ({human_bytes(self._most)})")
        return data
