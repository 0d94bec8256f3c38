from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_data.base.errors import FormatError
from offline_data.raw.tfrecord import masked_crc32c, read_records, write_records
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)

RECORDS = [b"first", b"", b"x" * 100_000, b"last"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_records(tmp_path / "data.tfrecord", RECORDS)


def test_records_come_in_order(path: Path) -> None:
    assert [record.data for record in read_records(path)] == RECORDS
    assert [(r.number, r.data) for r in read_records(path, first=1, stop=3)] == [
        (1, b""),
        (2, RECORDS[2]),
    ]
    assert list(read_records(write_records(path, []))) == []


def test_crc_of_the_rfc() -> None:
    crc = struct.unpack("<I", struct.pack("<I", 0x8A9136AA))[0]  # 32 zero bytes: RFC 3720, B.4
    assert masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)


def test_a_file_written_by_tensorflow(realdata: Path) -> None:
    (path,) = (realdata / "rlds_tfds_generated").rglob("*-train.tfrecord*")
    assert sum(len(record.data) for record in read_records(path)) == path.stat().st_size - 5 * 16


def length_of(size: int) -> bytes:
    length = struct.pack("<Q", size)
    return length + struct.pack("<I", masked_crc32c(length)) + bytes(50)


SECOND = 16 + 5
"""Where the second record begins, which has no bytes."""
FILES: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "cut after 1": (lambda whole: whole[: SECOND + 1], 1),
    "cut after 8": (lambda whole: whole[: SECOND + 8], 1),
    "cut after 15": (lambda whole: whole[: SECOND + 15], 1),
    "cut after 20": (lambda whole: whole[: SECOND + 20], 2),
    "cut after 30": (lambda whole: whole[: SECOND + 30], 2),
    "a length": (lambda whole: whole[:SECOND] + b"\1" + whole[SECOND + 1 :], 1),
    "a web page": (lambda _: b"<!DOCTYPE html><title>403", 0),
    "a pointer": (lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0", 0),
    "gzip": (lambda _: b"\x1f\x8b" + bytes(20), 0),
    "1 MiB": (lambda _: length_of(1 << 20), 0),
    "1 TiB": (lambda _: length_of(1 << 40), 0),
    "the most": (lambda _: length_of((1 << 64) - 1), 0),
}
"""Files made of a sound one, and how many of its records are read before the error."""


@REFUSALS.of("files", FILES)
def test_what_is_no_whole_file(path: Path, name: str) -> None:
    change, readable = FILES[name]
    path.write_bytes(change(path.read_bytes()))
    found: list[bytes] = []

    def read() -> None:
        found.extend(record.data for record in read_records(path))

    REFUSALS.check("files", name, read, {path.parent: "FOLDER"})
    assert found == RECORDS[:readable]


def test_a_file_that_ends_after_a_record_is_whole(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: SECOND + 16])
    assert len(list(read_records(path))) == 2


def test_damage_in_the_data_leaves_the_other_records_readable(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[12] ^= 1
    path.write_bytes(content)
    first, *others = read_records(path)
    with pytest.raises(FormatError, match="checksum"):
        _ = first.data
    assert [record.data for record in others] == RECORDS[1:]


RANGES: dict[str, dict[str, int]] = {"first": {"first": 5}, "stop": {"stop": 5}, "missing": {}}


@REFUSALS.of("ranges", RANGES)
def test_what_is_not_there(path: Path, name: str) -> None:
    asked = path.with_name("other") if name == "missing" else path
    records = read_records(asked, **RANGES[name])
    REFUSALS.check("ranges", name, lambda: list(records), {path.parent: "FOLDER"})
