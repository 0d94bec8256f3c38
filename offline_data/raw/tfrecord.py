"""TFRecord files: a sequence of records with checksums.

```
uint64 length | uint32 masked crc32c of the length | data | uint32 masked crc32c of the data
```
All little-endian: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from offline_data.base.errors import FormatError
from offline_data.base.files import describe_head
from offline_data.base.plurals import plural

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_BUFFER = 1 << 16  # longer records are read past it, without a copy
MAX_RECORD = (1 << 31) - 1  # bytes of a record: no protocol buffer is larger


@dataclass(frozen=True)
class Record:
    """One record as stored in its file; `data` gives its bytes once they have been checked."""

    number: int  # counted from 0 in its file
    raw: bytes
    crc: int  # masked checksum that the file has for `raw`

    @property
    def data(self) -> bytes:
        """Bytes of the record; raises `FormatError` unless they have the checksum of the file."""
        if masked_crc32c(self.raw) != self.crc:
            raise FormatError(
                "its bytes do not have the checksum that the file has for them",
                hint="fetch or copy the file again",
            )
        return self.raw


def read_records(path: Path, *, first: int = 0, stop: int | None = None) -> Iterator[Record]:
    """Read the records of a file in order, one in memory at a time.

    The data of records before `first` are not read; `stop` is one past the last (None: all).

    Raises:
        FormatError: The file is missing, has fewer records than `first`, is cut off, or a record's
            length does not have its checksum: nothing after it can be found.
    """
    try:
        file = path.open("rb", buffering=_BUFFER)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing", hint="fetch or copy the whole dataset") from None
    with file:
        size, at, number = os.fstat(file.fileno()).st_size, 0, 0
        while at < size and (stop is None or number < stop):
            head = file.read(_HEADER.size)
            length, crc = _HEADER.unpack(head) if len(head) == _HEADER.size else (0, None)
            if crc is None or masked_crc32c(head[:8]) != crc:
                what = f"is {'damaged' if crc else 'cut off'} in record {number}"
                if number == 0:
                    what = f"is not a TFRecord file: {describe_head(head + file.read(100))}"
                raise FormatError(f"{path} {what}", hint="fetch or copy it again")
            at += _HEADER.size + length + _CRC.size
            if length > MAX_RECORD or at > size:
                raise FormatError(
                    f"{path} is cut off in record {number}: it has {plural(length, 'byte')}, and the file "
                    f"ends {plural(at - size, 'byte')} too early"
                    if length <= MAX_RECORD
                    else f"{path}: record {number} has {length:,} bytes; expected less than 2 GiB",
                    hint="fetch or copy it again",
                )
            if number < first:
                file.seek(at)
            else:
                raw = file.read(length)
                yield Record(number, raw, _CRC.unpack(file.read(_CRC.size))[0])
            number += 1
        if number < first or (stop is not None and number < stop):
            raise FormatError(
                f"{path} has {plural(number, 'record')}; expected {stop or 'more than ' + str(first)}",
                hint="fetch or copy it again",
            )


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """Write a TFRecord file, and return its path."""
    with path.open("wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + _CRC.pack(masked_crc32c(length)))
            file.write(data + _CRC.pack(masked_crc32c(data)))
    return path


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of TFRecord files: that of the CRC-32C, rotated, and a constant added.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
