"""What the directory of a zip file says of its members, checked before one of them is read."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from itertools import pairwise
from typing import TYPE_CHECKING

from offline_data.readers.members import Inventory, Source, bad_archive, bad_member

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.errors import FormatError

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}

_ENCRYPTED = 0x1 | 0x40 | 0x2000
_PATCHED = 0x20
"""Bits of an entry's flags; these and the next are from PKWARE's APPNOTE.TXT, 4.3 and 4.4."""
_UNIX = {3, 19}
"""Systems that write a Unix mode into the upper half of an entry's external attributes."""
_HEADER = struct.Struct("<26xHH")
"""Header before a member's data, of which the lengths of name and extra field are read."""
_FINISH = struct.Struct("<4s6xH10x")
"""Record at the end of the file, of which mark and number of entries are read."""
_FINISH_64 = struct.Struct("<32xQ36x")
"""Record before it in files of many entries, with the one that leads there; their number."""
_MANY = 0xFFFF
"""Number of entries that says: it is in the record before."""


def check_directory(archive: zipfile.ZipFile, file: Source, most: int) -> dict[int, int]:
    """Check the directory as a whole and each entry, without reading a member.

    Args:
        archive: What `zipfile` made of the directory.
        file: The zip file.
        most: Bytes that its members together may have.

    Returns:
        For each byte at which a member's header begins, the one that must come after its data.

    Raises:
        IntegrityError: An entry whose name would leave the folder it is extracted to.
        FormatError: Anything else that `open_zip` refuses.
        struct.error: A wild value, as also `ValueError` and `OSError`.
    """
    infos = archive.infolist()
    _check_count(file, len(infos), len(archive.comment))
    inventory = Inventory(file.path, most)
    for info in infos:
        if info.is_dir():
            inventory.add_folder(info.orig_filename)
        else:
            inventory.add_file(info.orig_filename, info.file_size)
        objection = _objection(info)
        if objection:
            raise bad_member(file.path, info.orig_filename, objection)
    return _ends(file.path, infos, archive.start_dir)


def check_place(file: Source, info: zipfile.ZipInfo, end: int) -> None:
    """Raise `FormatError` where a member's data, after its own header, go on beyond `end`.

    Raises:
        struct.error: There is no whole header.
    """
    lengths = _HEADER.unpack(os.pread(file.fileno(), _HEADER.size, info.header_offset))
    if info.header_offset + _HEADER.size + sum(lengths) + info.compress_size > end:
        raise _overlap(file.path, info)


def _check_count(file: Source, count: int, comment: int) -> None:
    """Raise unless so many entries, and a comment of so many bytes, are all that the end says.

    Otherwise an entry whose damaged length takes the next one in would hide it.
    """
    at = file.seek(0, os.SEEK_END) - comment - _FINISH.size
    mark, announced = _FINISH.unpack(os.pread(file.fileno(), _FINISH.size, at))
    if announced == _MANY and count != _MANY:
        place = at - _FINISH_64.size
        (announced,) = _FINISH_64.unpack(os.pread(file.fileno(), _FINISH_64.size, place))
    if mark != b"PK\5\6":
        raise bad_archive(file.path, "is damaged: it does not end with the end of its directory")
    if announced != count:
        found = f"is damaged: its directory has {count} entries; expected {announced}"
        raise bad_archive(file.path, found)


def _objection(info: zipfile.ZipInfo) -> str | None:
    """Say what is wrong with an entry by itself, or None."""
    mode = info.external_attr >> 16 if info.create_system in _UNIX else 0
    if stat.S_IFMT(mode) not in {0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG}:
        return f"is a link or device (mode {mode:o}); expected files and folders"
    if info.filename != info.orig_filename:
        return f"is also named {info.filename!r}"
    if info.flag_bits & (_ENCRYPTED | _PATCHED):
        return "is encrypted or a patch, which is not supported"
    if info.compress_type not in _METHODS:
        return f"is compressed by method {info.compress_type}; expected stored or deflated"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return f"has {info.compress_size} bytes; expected the {info.file_size} announced"
    return None


def _ends(path: Path, infos: list[zipfile.ZipInfo], directory: int) -> dict[int, int]:
    ordered = sorted(infos, key=lambda info: info.header_offset)
    starts = [*(info.header_offset for info in ordered), directory]
    if starts[0] != 0:
        raise bad_archive(path, "is damaged: its directory names no member that begins at byte 0")
    for info, following in zip(ordered, starts[1:], strict=True):
        if info.header_offset + _HEADER.size + info.compress_size > following:
            raise _overlap(path, info)
    return dict(pairwise(starts))


def _overlap(path: Path, info: zipfile.ZipInfo) -> FormatError:
    return bad_member(path, info.orig_filename, "lies where the next one or the directory does")
