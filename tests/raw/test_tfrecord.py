from __future__ import annotations

import struct
from itertools import islice
from pathlib import Path

import pytest

from offline_data.base.errors import FormatError
from offline_data.raw.tfrecord import masked_crc32c, read_records, write_records

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


@pytest.mark.parametrize("keep", [1, 8, 15, 16, 20, 30])
def test_a_file_that_is_cut_off_names_the_record(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[: 16 + 5 + keep])
    if keep == 16:  # after a whole record
        assert len(list(read_records(path))) == 2
        return
    records = read_records(path)
    assert len(list(islice(records, 1 + (keep > 16)))) == 1 + (keep > 16)
    with pytest.raises(FormatError, match=rf"data\.tfrecord .* record {1 + (keep > 16)}"):
        list(records)


def test_damage_in_the_data_leaves_the_other_records_readable(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[12] ^= 1
    path.write_bytes(content)
    first, *others = read_records(path)
    with pytest.raises(FormatError, match="checksum"):
        _ = first.data
    assert [record.data for record in others] == RECORDS[1:]


def test_damage_in_a_length_ends_the_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[16 + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match="damaged in record 1"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!DOCTYPE html><title>403", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"\x1f\x8b" + bytes(20), "begins with"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=said):
        list(read_records(path))
    with pytest.raises(FormatError, match="is missing"):
        list(read_records(tmp_path / "other"))


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_no_memory_is_taken_for_a_length_alone(tmp_path: Path, size: int) -> None:
    length = struct.pack("<Q", size)
    path = tmp_path / "data.tfrecord"
    path.write_bytes(length + struct.pack("<I", masked_crc32c(length)) + bytes(50))
    with pytest.raises(FormatError, match="record 0"):
        list(read_records(path))


def test_fewer_records_than_asked_for(path: Path) -> None:
    with pytest.raises(FormatError, match="4 records"):
        list(read_records(path, first=5))
    with pytest.raises(FormatError, match="4 records"):
        list(read_records(path, stop=5))
