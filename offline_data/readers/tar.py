"""Members of a tar archive, plain or gzip-compressed, in one pass over a stream."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING, Any

from offline_data.heads import describe_head, read_head
from offline_data.readers import gz
from offline_data.readers.members import (
    BLOCK,
    Inventory,
    Member,
    Source,
    bad_archive,
    buffered,
)
from offline_data.readers.tar_headers import RECORD, Header, is_extension, member_header, said_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METADATA = 1 << 20
"""Bytes that may lie between two members, and after the last."""


def is_tar(head: bytes) -> bool:
    """Tell whether 512 first bytes are a tar header: they say `ustar`, or their checksum fits."""
    if head[257:262] == b"ustar":
        return True
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def tar_members(path: Path, *, most: int) -> Iterator[Member]:
    """Yield the files of a tar archive in their order; folders are skipped.

    Formats: ustar, the older v7, GNU and pax (POSIX.1-2001), each plain or in gzip, told apart by
    first bytes. A leading `./` of a name is dropped; modes, owners and times are ignored. The
    archive must end as one does, with zeros: a reader that comes to the end has had every member,
    and in gzip also every checksum. A plain tar has checksums of its headers only.

    Memory is some blocks of 256 KiB, 1 MiB for a header that says more than it should, and the
    names, which may take 128 MiB; whatever the archive says.

    Args:
        path: The archive.
        most: Bytes that its members together may have.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        IntegrityError: A member whose name would leave the folder it is extracted to.
        FormatError: It is not a tar archive, is damaged or cut short, or has a member that is a
            link, a device, a fifo or sparse, that is there twice, or is more than `most` allows.
            Nothing of such a member was handed out.
    """
    compressed = read_head(path).startswith(gz.MAGIC)
    with Source(path) as file, _stream(file, compressed) as stream:
        yield from _members(_Records(path, stream), Inventory(path, most))


def _stream(file: Source, compressed: bool) -> io.BufferedReader[Any]:
    return gz.inflated(file) if compressed else io.BufferedReader(file, BLOCK)


def _members(records: _Records, inventory: Inventory) -> Iterator[Member]:
    while (header := _next_header(records)) is not None:
        if header.is_folder:
            inventory.add_folder(header.name)
            continue
        name = inventory.add_file(header.name, header.size)
        content = _Content(records, name, header.size)
        with buffered(content.read, header.size) as stream:
            yield Member(name, header.size, stream)
        content.skip()
    records.check_end()


def _next_header(records: _Records) -> Header | None:
    """Return the header of the next member, or None at the end of the archive."""
    start = records.at
    said: dict[str, str] = {}
    while (record := records.header()) is not None:
        if not is_extension(record):
            return member_header(records.path, record, said)
        said |= _extension(records, record, METADATA - (records.at - start))
    if said:
        raise bad_archive(records.path, "is cut short: it announces a member and ends")
    return None


def _extension(records: _Records, record: tarfile.TarInfo, most: int) -> dict[str, str]:
    if not 0 <= record.size <= most:
        raise bad_archive(
            records.path,
            f"is damaged: the header at byte {records.at - RECORD} announces {record.size} bytes "
            f"of names; expected at most {METADATA} between two members",
        )
    content = records.take(record.size, "a header")
    records.skip(-record.size % RECORD, "a header")
    return said_by(records.path, record, content)


class _Records:
    """The records of 512 bytes that a tar archive is made of, and where in it we are."""

    def __init__(self, path: Path, stream: io.BufferedReader[Any]) -> None:
        self.path = path
        self.at = 0
        self._stream = stream

    def header(self) -> tarfile.TarInfo | None:
        """Read the next record as a header; None where it is the zeros that end an archive."""
        raw = self.take(RECORD, "a header, before the zeros that end an archive")
        if not raw.strip(b"\0"):
            return None
        try:
            return tarfile.TarInfo.frombuf(raw, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if self.at == RECORD:
                found = f"is not a tar archive: {describe_head(raw)}"
            else:
                found = f"is damaged: no header of a member at byte {self.at - RECORD}: {error}"
            raise bad_archive(self.path, found) from error

    def take(self, count: int, what: str) -> bytes:
        """Read so many bytes of `what`, all of them."""
        data = self._stream.read(count)
        self.at += len(data)
        if len(data) < count:
            raise bad_archive(self.path, f"is cut short: it ends at byte {self.at}, in {what}")
        return data

    def skip(self, count: int, what: str) -> None:
        """Pass over so many bytes of `what`, without reading them where that can be."""
        if not self._stream.seekable():
            for start in range(0, count, BLOCK):
                self.take(min(BLOCK, count - start), what)
            return
        size = os.fstat(self._stream.fileno()).st_size
        if count > size - self.at:
            raise bad_archive(self.path, f"is cut short: it ends at byte {size}, in {what}")
        self._stream.seek(count, os.SEEK_CUR)
        self.at += count

    def check_end(self) -> None:
        """Raise unless nothing but zeros follows."""
        rest = self._stream.read(METADATA + 1)
        if len(rest) > METADATA or rest.strip(b"\0"):
            raise bad_archive(self.path, f"goes on after its end at byte {self.at}")


class _Content:
    """The bytes of one member, and the zeros that fill up its last record."""

    def __init__(self, records: _Records, name: str, size: int) -> None:
        self._records = records
        self._what = f"its member {name!r}"
        self._left = size
        self._padding = -size % RECORD

    def read(self, most: int) -> bytes:
        """Return at most `most` bytes, none only at the end of the member."""
        data = self._records.take(min(most, self._left), self._what)
        self._left -= len(data)
        return data

    def skip(self) -> None:
        """Go to the header after this member."""
        self._records.skip(self._left + self._padding, self._what)
