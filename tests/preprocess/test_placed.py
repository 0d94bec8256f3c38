"""Bytes land in their range and nowhere else, whole; a full disk is an error that leaves nothing."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.errors import AccessError, NoSpaceError
from offline_data.preprocess.placed import PlacedFiles, Range, allocate, holds


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    rows = np.arange(1, 121, dtype=np.uint32)
    allocate(tmp_path, {"a/rows": rows.nbytes})
    with (
        PlacedFiles(tmp_path, {"a/rows": 4 * 50}) as second,
        PlacedFiles(tmp_path, {"a/rows": 0}) as first,
    ):
        second.append("a/rows", rows[50:70])
        first.append("a/rows", rows[:30])
        second.append("a/rows", rows[70:])
        first.append("a/rows", rows[30:50])
        first.append("b", b"")
        first.append("b", b"xyz")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "a/rows", np.uint32), rows)
    assert (tmp_path / "b").read_bytes() == b"xyz"
    head, tail = rows[:50].tobytes(), rows[50:].tobytes()
    assert first.written["a/rows"] == Range(0, 200, zlib.crc32(head))
    assert second.written == {"a/rows": Range(200, 280, zlib.crc32(tail))}


def test_bytes_that_the_system_takes_piecemeal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: whole(handle, data[:3], at))
    with PlacedFiles(tmp_path, {"one": 5}) as files:
        files.append("one", b"0123456789")
        files.append("one", np.array([[1, 2]], np.uint8))
    assert (tmp_path / "one").read_bytes() == bytes(5) + b"0123456789\x01\x02"


@pytest.mark.parametrize("alone", [False, True])
def test_what_files_held_before(tmp_path: Path, alone: bool) -> None:
    """Of a task that is run again, and is shorter then."""
    (tmp_path / "one").write_bytes(b"0123456789")
    with PlacedFiles(tmp_path, {}, alone=alone) as files:
        files.append("one", b"ab")
        files.append("one", b"c")
        assert (tmp_path / "one").read_bytes() == b"abc3456789"
        files.sync()
    assert (tmp_path / "one").read_bytes() == (b"abc" if alone else b"abc3456789")


def test_a_disk_that_becomes_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwrite", full)
    with PlacedFiles(tmp_path, {}) as files, pytest.raises(NoSpaceError, match="became full"):
        files.append("one", b"1")
    monkeypatch.setattr(os, "posix_fallocate", full)
    (tmp_path / "old").write_bytes(b"here before")
    with pytest.raises(NoSpaceError):
        allocate(tmp_path, {"old": 11, "new/one": 7, "new/two": 8})
    assert not list(tmp_path.glob("new/*"))
    assert (tmp_path / "old").read_bytes() == b"here before"


def test_files_get_their_sizes_and_keep_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "long").write_bytes(b"abcdef")
    sizes = {"short": 5, "long": 4, "below/new": 6, "empty": 0}
    for _ in range(2):
        allocate(tmp_path, sizes)
        assert {name: (tmp_path / name).stat().st_size for name in sizes} == sizes
    assert (tmp_path / "short").read_bytes() == b"abc\0\0"
    assert (tmp_path / "long").read_bytes() == b"abcd"
    assert (tmp_path / "below/new").stat().st_blocks > 0


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AccessError):
        allocate(tmp_path / "file", {"x": 1})
    with PlacedFiles(tmp_path / "file", {}) as files, pytest.raises(AccessError):
        files.append("x", b"1")


def test_what_was_written_is_recognised(tmp_path: Path) -> None:
    with PlacedFiles(tmp_path, {"one": 2}) as files:
        files.append("one", b"rows")
        files.append("two", b"")
    assert holds(tmp_path, files.written)
    path = tmp_path / "one"
    for damaged in (b"xxrow", b"xxroWs", b"xxsrow", b""):
        path.write_bytes(damaged)
        assert not holds(tmp_path, files.written)
    path.write_bytes(b"..rows...")
    assert holds(tmp_path, files.written)
    path.unlink()
    assert not holds(tmp_path, files.written)
