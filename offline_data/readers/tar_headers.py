"""Headers of a tar archive: what a member is, also where several headers say so together.

The record itself is taken apart by `tarfile.TarInfo.frombuf`. What leads from one header to the
next is done here: `tarfile.TarFile` takes a damaged header for the end of the archive, reads an
extended header into memory whatever its size, and before Python 3.11.10 looks through a hostile
one in quadratic time (CVE-2024-6232).
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.readers.members import bad_archive, bad_member

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

RECORD = tarfile.BLOCKSIZE
"""Bytes of a header; contents are filled up to a multiple of it."""

_FILES = {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE}

_PAX = {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE}

_EXTENSIONS = {*_PAX, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
"""Headers that say something of the member after them, or of all."""

_REFUSED = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a fifo",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}

_DIGITS = 20
"""Digits of the largest number that is meant: sizes fit into 64 bits."""


@dataclass(frozen=True)
class Header:
    """A file or a folder in a tar archive, as all headers before it together say."""

    name: str
    """As given, not checked."""
    size: int
    """Bytes of content."""
    is_folder: bool
    """Whether it has no content."""


def is_extension(record: tarfile.TarInfo) -> bool:
    """Tell whether a header record says something of the members after it."""
    return record.type in _EXTENSIONS


def member_header(path: Path, record: tarfile.TarInfo, said: Mapping[str, str]) -> Header:
    """Join a member's header record with what was said before it.

    Args:
        path: The archive, for messages.
        record: The member's own header.
        said: `path` and `size`, where the headers before it say them.

    Raises:
        FormatError: It is neither a file nor a folder.
    """
    name = said.get("path", record.name)
    if record.isdir():
        return Header(name, 0, is_folder=True)
    if record.type not in _FILES:
        kind = _REFUSED.get(record.type, f"of the unknown type {record.type!r}")
        raise bad_member(path, name, f"is {kind}; expected files and folders")
    return Header(name, _size(path, said["size"]) if "size" in said else record.size, False)


def said_by(path: Path, record: tarfile.TarInfo, content: bytes) -> dict[str, str]:
    """Return what an extension says of the member after it: its `path`, its `size`, or neither.

    Raises:
        FormatError: It is damaged, says this of all members, or that the next is sparse.
    """
    if record.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    if record.type == tarfile.GNUTYPE_LONGLINK:
        return {}
    said = {key: value for key, value in _pax_records(path, content) if _matters(path, key)}
    if said and record.type == tarfile.XGLTYPE:
        raise bad_archive(path, f"says one {' and '.join(sorted(said))} for all its members")
    return said


def _matters(path: Path, key: str) -> bool:
    if key.startswith("GNU.sparse."):
        raise bad_archive(path, "has a sparse member; expected plain files")
    return key in {"path", "size"}


def _pax_records(path: Path, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield keys and values of records `length key=value`, each with a line end."""
    at, size = 0, len(content.rstrip(b"\0"))
    while at < size:
        space = content.find(b" ", at, at + _DIGITS)
        length = content[at:space] if space > 0 else b""
        end = at + int(length) if length.isdigit() else at
        key, equals, value = content[space + 1 : end].partition(b"=")
        if end > size or not equals or not value.endswith(b"\n"):
            raise bad_archive(path, "is damaged: a pax header is not made of records")
        yield key.decode("utf-8", "replace"), value[:-1].decode("utf-8", "surrogateescape")
        at = end


def _size(path: Path, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise bad_archive(path, f"is damaged: a pax header has the size {text[:40]!r}")
    return int(text)
