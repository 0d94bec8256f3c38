"""Gzip files: the bytes that went in, or an error of the tree."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.format import read_array

from offline_data.errors import FormatError, NotFoundError
from offline_data.readers import inflate
from offline_data.readers.gz import open_gz

ZEROS = 200_000_000

shared_folder = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=["isal", "zlib"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test, with each library that may inflate."""
    if request.param == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
    assert (inflate.gzip_decompressor()[1] is zlib.error) == (request.param == "zlib")


def read(path: Path, most: int = 1 << 20) -> bytes:
    with open_gz(path, most=most) as stream:
        return stream.read()


@pytest.fixture(scope="session")
def zeros() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    block = bytes(1_000_000)
    return b"".join(packer.compress(block) for _ in range(ZEROS // len(block))) + packer.flush()


@shared_folder
@given(
    pieces=st.lists(st.integers(0, 700_000), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 600_000), min_size=1, max_size=8),
    padding=st.integers(0, 3),
)
def test_what_went_in_comes_out(
    tmp_path: Path, pieces: list[int], sizes: list[int], padding: int
) -> None:
    values = np.arange(1, sum(pieces) // 4 + 2, dtype="<u4").tobytes()[: sum(pieces)]
    cuts = [sum(pieces[:i]) for i in range(len(pieces) + 1)]
    members = [gzip.compress(values[a:b], 1) for a, b in pairwise(cuts)]
    path = tmp_path / "x.gz"
    path.write_bytes(bytes(padding).join([*members, b""]))
    out = b""
    with open_gz(path, most=len(values)) as stream:
        for size in sizes:
            out += stream.read(size)
        out += stream.read()
        assert stream.read(1) == b""
    assert out == values


def test_files_of_the_field(realdata: Path) -> None:
    paths = sorted((realdata / "atari_dqn_generated").rglob("*.gz"))
    assert paths
    for path in paths:
        with gzip.open(path) as theirs:
            assert read(path, 1 << 30) == theirs.read()


def test_more_than_allowed_is_refused_as_it_comes(
    tmp_path: Path, zeros: bytes, memory_below: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(zeros)
    taken: list[int] = []
    with (
        memory_below(4 << 20),
        pytest.raises(FormatError, match=r"bomb\.gz inflates to more than the 1500000 bytes"),
        open_gz(path, most=1_500_000) as stream,
    ):
        taken.extend(len(data) for data in iter(lambda: stream.read(100_000), b""))
    assert 500_000 < sum(taken) <= 1_500_000


def test_one_byte_more_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"1001"))
    assert read(path, most=4) == b"1001"
    with pytest.raises(FormatError, match="more than the 3 bytes"):
        read(path, most=3)


def test_memory_is_bounded(
    tmp_path: Path, zeros: bytes, memory_below: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(zeros)
    count = 0
    with memory_below(4 << 20), open_gz(path, most=ZEROS) as stream:
        while data := stream.read(1 << 18):
            count += len(data)
    assert count == ZEROS


def test_a_reader_that_stops_at_the_last_byte_is_told_of_damage(tmp_path: Path) -> None:
    values = np.arange(1, 300_001, dtype="<i4")
    saved = io.BytesIO()
    np.save(saved, values, allow_pickle=False)
    whole = gzip.compress(saved.getvalue(), 1)
    path = tmp_path / "x.gz"
    path.write_bytes(whole)
    with open_gz(path, most=1 << 30) as stream:
        np.testing.assert_array_equal(read_array(stream, allow_pickle=False), values)
    for damaged in (whole[:-8] + bytes(8), whole[:-1]):
        path.write_bytes(damaged)
        with open_gz(path, most=1 << 30) as stream, pytest.raises(FormatError, match=r"x\.gz is"):
            read_array(stream, allow_pickle=False)


@pytest.mark.parametrize("after", [b"x", b"\0\0x", gzip.compress(b"2002", mtime=0)[:-1]])
def test_what_follows_a_member_is_a_member(tmp_path: Path, after: bytes) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"1001") + after)
    with pytest.raises(FormatError, match=r"x\.gz is (damaged|cut short)"):
        read(path)


def test_cut_at_any_byte_is_an_error(tmp_path: Path) -> None:
    whole = gzip.compress(b"1001;1002;" * 20) + gzip.compress(b"2001")
    path = tmp_path / "x.gz"
    between = len(whole) - len(gzip.compress(b"2001"))
    for size in set(range(len(whole))) - {between}:
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"x\.gz is"):
            read(path)


def test_any_other_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    values = np.arange(1, 60, dtype="<u2").tobytes() * 2
    whole = gzip.compress(values)
    path = tmp_path / "x.gz"
    harmless = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert read(path) == values
        except FormatError:
            continue
        harmless += 1
    assert harmless < 20


@pytest.mark.parametrize(
    ("head", "found"), [(b"<html>", "a web page"), (b"", "is empty"), (b"PK\3\4", "begins with")]
)
def test_other_files_are_described(tmp_path: Path, head: bytes, found: str) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(head)
    with pytest.raises(FormatError, match=rf"x\.gz is not a gzip file: .*{found}"):
        read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"x\.gz"):
        read(tmp_path / "x.gz")
