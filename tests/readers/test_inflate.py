"""Rows inflated here are the rows that h5py reads, for any chunks, filters and range."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offline_data.errors import FormatError
from offline_data.readers import inflate
from offline_data.readers.inflate import read_rows

DTYPES = ["f4", "f8", "i8", "u1", "?", ">f4", ">i2", "f2"]


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    size = int(np.prod(shape))
    return (np.arange(1, size + 1) % 251).reshape(shape).astype(dtype)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    rows = draw(st.integers(1, 40))
    chunks = tuple(draw(st.integers(1, size)) for size in (rows, *shape[1:]))
    start = draw(st.integers(0, rows))
    return (rows, *shape[1:]), chunks, (start, draw(st.integers(start, rows)))


def assert_same(dataset: Any, start: int, stop: int) -> None:
    found, expected = read_rows(dataset, start, stop), dataset[start:stop]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=150, deadline=None)
@given(layout=layouts(), dtype=st.sampled_from(DTYPES), small=st.booleans())
@example(layout=((3003, 8), (751, 4), (700, 2500)), dtype="f4", small=False)
@example(layout=((60, 7, 7, 3), (30, 4, 7, 3), (29, 31)), dtype="f4", small=True)
def test_gzip_chunks(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]], dtype: str, small: bool
) -> None:
    shape, chunks, (start, stop) = layout
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_SMALL", 1 << 30 if small else 0)
        patch.setattr(inflate._Tiles, "_left_to_h5py", None)
        with h5py.File("memory", "w", driver="core", backing_store=False) as file:
            file.create_dataset("x", data=numbers(shape, dtype), chunks=chunks, compression="gzip")
            assert_same(file["x"], start, stop)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (4, 2)},
        {"chunks": (4, 2), "compression": "gzip", "shuffle": True},
        {"chunks": (4, 2), "compression": "gzip", "fletcher32": True},
        {"chunks": (4, 2), "compression": "lzf"},
        {"chunks": (4, 2), "compression": "gzip", "compression_opts": 0},
        {"chunks": (4, 2), "compression": "gzip", "maxshape": (None, 3)},
    ],
    ids=str,
)
def test_other_storage_is_left_to_h5py_or_read_alike(tmp_path: Path, options: Any) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", data=numbers((11, 3), "f8"), **options)
        assert_same(file["x"], 2, 10)


def test_only_plain_gzip_is_inflated_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_Tiles", None)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        values = numbers((11, 3), "f8")
        file.create_dataset("shuffled", data=values, compression="gzip", shuffle=True)
        file.create_dataset("plain", data=values, compression="gzip")
        assert_same(file["shuffled"], 0, 11)
        with pytest.raises(TypeError):
            read_rows(file["plain"], 0, 11)


def test_chunks_that_skipped_the_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate._Tiles, "_left_to_h5py", None)
    values = numbers((8, 2), "f4")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(4, 2), compression="gzip")
        dataset.id.write_direct_chunk((4, 0), (values[4:] + 9).tobytes(), filter_mask=1)
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert_same(file["x"], 1, 8)
        assert read_rows(file["x"], 7, 8).tolist() == [[24.0, 25.0]]


def test_chunks_that_were_never_written_are_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dataset = file.create_dataset("x", (9,), "f4", chunks=(3,), compression="gzip", fillvalue=7)
        dataset[3:6] = [1, 2, 3]
        assert read_rows(dataset, 2, 8).tolist() == [7, 1, 2, 3, 7, 7]


def test_columns_of_no_width(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", (5, 0), "f4")
        assert read_rows(file["x"], 1, 4).shape == (3, 0)


@pytest.mark.parametrize("isal", [True, False])
@pytest.mark.parametrize("damage", ["bytes", "short", "long"])
def test_damage_names_file_dataset_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, isal: bool
) -> None:
    if not isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    raw = {
        "bytes": b"\xff" * 40,
        "short": zlib.compress(bytes(range(64)))[:30],
        "long": zlib.compress(bytes(100_000))[:-1],
    }[damage]
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", data=numbers((16,), "f8"), chunks=(8,), compression="gzip"
        )
        dataset.id.write_direct_chunk((8,), raw)
    with h5py.File(path) as file:
        assert read_rows(file["x"], 0, 8).tolist() == list(range(1, 9))
        with pytest.raises(FormatError, match=r"x\.hdf5 is damaged: '/x' .* rows 8 to 15"):
            read_rows(file["x"], 0, 16)


@pytest.mark.parametrize("isal", [True, False])
def test_both_libraries_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isal: bool
) -> None:
    if isal:
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
    values = np.random.default_rng(0).standard_normal((5000, 17))
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", data=values, compression="gzip")
        np.testing.assert_array_equal(read_rows(file["x"], 10, 4990), values[10:4990])
    assert (inflate._zlib().error is zlib.error) == (not isal)


def test_a_stream_that_claims_more_is_not_followed() -> None:
    grown = []

    class Watched:
        """A decompressor that tells how many bytes it gave out."""

        def __init__(self) -> None:
            self.stream = zlib.decompressobj()
            self.eof = False

        def decompress(self, raw: bytes, limit: int = 0) -> bytes:
            data = self.stream.decompress(raw, limit)
            grown.append(len(data))
            return data

    bomb = zlib.compress(bytes(5_000_000))
    assert inflate._Zlib(Watched, zlib.error).inflate(bomb, 1000) is None
    assert grown == [1001]
    assert inflate._zlib().inflate(bomb, 1000) is None
    assert inflate._zlib().inflate(zlib.compress(bytes(1000)), 1000) == bytes(1000)
    assert inflate._zlib().inflate(zlib.compress(bytes(999)), 1000) is None
