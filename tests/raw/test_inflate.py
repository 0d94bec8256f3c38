"""Rows inflated here are the rows that h5py reads, for any chunks, filters and range."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offline_data.base.errors import FormatError
from offline_data.raw import inflate
from offline_data.raw.fast_zlib import _libdeflate, crc32, fast_zlib
from offline_data.raw.fast_zlib import inflate as inflate_stream
from offline_data.raw.inflate import read_rows

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


@settings(max_examples=40, deadline=None)
@given(
    layout=layouts(),
    dtype=st.sampled_from(DTYPES),
    options=st.fixed_dictionaries(
        {
            "shuffle": st.booleans(),
            "fletcher32": st.booleans(),
            "compression": st.sampled_from(["gzip", "lzf", None]),
        }
    ),
    seed=st.integers(0, 3),
    small=st.booleans(),
)
@example(((3003, 8), (751, 4), (700, 2500)), "f4", {"compression": "gzip"}, 0, False)
@example(((60, 7, 7, 3), (30, 4, 7, 3), (29, 31)), "f4", {"compression": "gzip"}, 0, True)
@example(((11, 3), (4, 2), (2, 10)), "f8", {"compression": "gzip", "compression_opts": 0}, 0, True)
@example(((11, 3), (4, 2), (2, 10)), "f8", {"maxshape": (None, 3)}, 0, True)
def test_rows_are_those_of_h5py(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]],
    dtype: str,
    options: Any,
    seed: int,
    small: bool,
) -> None:
    shape, chunks, (start, stop) = layout
    values = numbers(shape, dtype)
    if seed:  # repeated, so that lzf finds copies that overlap themselves
        values = np.random.default_rng(seed).integers(0, seed, shape).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_SMALL", 1 << 30 if small else 0)
        with h5py.File("memory", "w", driver="core", backing_store=False) as file:
            file.create_dataset("x", data=values, chunks=chunks, **options)
            file["plain"] = values
            assert_same(file["x"], start, stop)
            assert_same(file["plain"], start, stop)


@pytest.mark.parametrize(
    "order", [("shuffle", "deflate", "fletcher32"), ("fletcher32", "shuffle", "deflate")], ids=str
)
def test_filters_in_another_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((4, 2))
    for name in order:
        getattr(plan, f"set_{name}")(*([4] if name == "deflate" else []))
    values = numbers((11, 3), "i4")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, dcpl=plan)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
        assert_same(file["x"], 1, 11)


def test_chunks_that_skipped_the_filter(tmp_path: Path) -> None:
    values = numbers((8, 2), "f4")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(4, 2), compression="gzip")
        dataset.id.write_direct_chunk((4, 0), (values[4:] + 9).tobytes(), filter_mask=1)
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert_same(file["x"], 1, 8)
        assert read_rows(file["x"], 7, 8).tolist() == [[24.0, 25.0]]


def test_reading_beside_other_threads(tmp_path: Path) -> None:
    """Chunks are read while others open datasets; h5py 3.10 crashed without its lock."""
    values = numbers((2000, 32, 32), "uint8")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in "ab":
            file.create_dataset(name, data=values, chunks=(4, 32, 32), compression="gzip")

    def same(name: str) -> bool:
        with h5py.File(tmp_path / "x.h5") as mine:
            return all(np.array_equal(read_rows(mine[name], 0, 2000), values) for _ in range(12))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, "abab"))


def test_chunks_that_were_never_written_are_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dataset = file.create_dataset("x", (9,), "f4", chunks=(3,), compression="gzip", fillvalue=7)
        dataset[3:6] = [1, 2, 3]
        assert read_rows(dataset, 2, 8).tolist() == [7, 1, 2, 3, 7, 7]
        for dtype in ("f4", "?"):
            none = [
                file.create_dataset(f"{dtype}1", (1000,), dtype, compression="gzip"),
                file.create_dataset(f"{dtype}2", (1000,), dtype, chunks=(10,)),
            ]
            for never in none:
                found = read_rows(never, 1, 999)
                assert found.dtype == never.dtype
                np.testing.assert_array_equal(found, np.zeros(998, dtype))


def test_a_damaged_list_of_chunks_without_filters(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.ones((8, 1), "f4"), chunks=(1, 1))
    data = bytearray(path.read_bytes())
    third = data.index(b"TREE\x01") + 24 + 3 * (8 + 3 * 8 + 8)  # a key and an address each
    data[third : third + 60] = bytes(60)
    path.write_bytes(data)
    with h5py.File(path) as file, pytest.raises(FormatError, match=r"x\.hdf5: '/x' is damaged"):
        read_rows(file["x"], 0, 8)


def test_the_only_chunk_has_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.ones(4, "f4"), chunks=(4,), compression="gzip")
    data = bytearray(path.read_bytes())
    # a node of the tree of chunks: 24 bytes, then the first chunk's size
    size_at = data.index(b"TREE\x01") + 24
    data[size_at : size_at + 4] = bytes(4)
    path.write_bytes(data)
    with h5py.File(path) as file:
        assert file["x"].id.get_storage_size() == 0
        with pytest.raises(FormatError, match=r"x\.hdf5 is damaged: '/x' .* rows 0 to 3"):
            read_rows(file["x"], 0, 4)


WHOLE = numbers((8,), "f8").tobytes()
"""A chunk as it should be; every damage below is one that HDF5 takes for it, or dies of."""

DAMAGES = {
    "no stream": b"\xff" * 40,
    "cut": zlib.compress(WHOLE)[:30],
    "no checksum": zlib.compress(WHOLE)[:-4],
    "wrong checksum": zlib.compress(WHOLE)[:-1] + b"\0",
    "shorter by one item": zlib.compress(WHOLE[:-8]),
    "shorter by all": zlib.compress(b""),
    "longer by one byte": zlib.compress(WHOLE + b"\0"),
    "a bomb": zlib.compress(bytes(5_000_000)),
    "nothing": b"\0",
}


def tampered(path: Path, raw: bytes, mask: int = 0, **options: Any) -> Path:
    """Write `numbers((16,), "f8")` in two chunks, the second of which lies in the file as `raw`."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=numbers((16,), "f8"), chunks=(8,), **options)
        dataset.id.write_direct_chunk((8,), raw, filter_mask=mask)
    return path


def assert_refused(path: Path) -> None:
    with h5py.File(path) as file:
        assert read_rows(file["x"], 0, 8).tolist() == list(range(1, 9))
        for start in (0, 9):
            with pytest.raises(FormatError, match=r"x\.hdf5 is damaged: '/x' .* rows 8 to 15"):
                read_rows(file["x"], start, 16)


@pytest.fixture(params=["deflate", "isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The fastest library that is there."""
    name: str = request.param
    pytest.importorskip(name)
    for faster in {"deflate": (), "isal": ("deflate",), "zlib": ("deflate", "isal")}[name]:
        monkeypatch.setitem(sys.modules, faster, None)
    chosen = fast_zlib, _libdeflate
    for one in chosen:
        one.cache_clear()
    assert (fast_zlib() is zlib) == (name == "zlib" or not find_spec("isal"))
    assert (_libdeflate() is not None) == (name == "deflate")
    yield name
    for one in chosen:
        one.cache_clear()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_chunk_is_refused_by_file_dataset_and_rows(
    tmp_path: Path, damage: str, shuffle: bool
) -> None:
    raw, path = DAMAGES[damage], tmp_path / "x.hdf5"
    assert_refused(tampered(path, raw, compression="gzip", shuffle=shuffle))


@pytest.mark.parametrize(
    ("options", "mask", "raw"),
    [
        ({"fletcher32": True}, 0, WHOLE + b"\1\2\3\4"),
        ({"fletcher32": True}, 0, WHOLE),
        ({"fletcher32": True}, 0, b"\0\0"),
        ({"shuffle": True}, 0, WHOLE[:-8]),
        ({"compression": "gzip"}, 1, WHOLE[:-8]),
        ({"compression": "lzf"}, 0, b"\x07" + WHOLE[:8]),
        ({"compression": "lzf"}, 0, b"\x07" + WHOLE[:7]),
        ({"compression": "lzf"}, 0, b"\x00\x07\xe0\xff\x00"),
        ({"compression": "lzf"}, 0, b"\x20\x05"),
    ],
    ids=str,
)
def test_damage_under_other_filters(tmp_path: Path, options: Any, mask: int, raw: bytes) -> None:
    assert_refused(tampered(tmp_path / "x.hdf5", raw, mask, **options))


@pytest.mark.parametrize("kind", ["text", "virtual", "enum"])
def test_damage_in_values_that_hdf5_itself_reads(tmp_path: Path, kind: str) -> None:
    short = zlib.compress(bytes(8))
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dtype = {"text": "S8", "virtual": "f8", "enum": h5py.enum_dtype({"a": 1}, "i8")}[kind]
        data = np.ones(16, "i8").astype("S8" if kind == "text" else dtype)
        name = "below" if kind == "virtual" else "x"
        file.create_dataset(name, data=data, dtype=dtype, chunks=(8,), compression="gzip")
        if kind == "virtual":
            layout = h5py.VirtualLayout((16,), "f8")
            layout[:] = h5py.VirtualSource(".", "below", (16,))
            file.create_virtual_dataset("x", layout)
        assert_same(file["x"], 3, 16)
        file[name].id.write_direct_chunk((8,), short)
    with h5py.File(tmp_path / "x.hdf5") as file, pytest.raises(FormatError, match="rows 8 to 15"):
        read_rows(file["x"], 3, 16)


@pytest.mark.parametrize("filters", ["scaleoffset", "twice"])
def test_filters_that_cannot_be_checked_are_refused(tmp_path: Path, filters: str) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((4,))
    if filters == "twice":
        plan.set_deflate(4)
        plan.set_filter(32000, h5py.h5z.FLAG_OPTIONAL)
    else:
        plan.set_scaleoffset(h5py.h5z.SO_INT, 0)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        space = h5py.h5s.create_simple((8,))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, dcpl=plan)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(8, dtype="i4"))
        with pytest.raises(FormatError, match=r"x\.hdf5: '/x' is compressed"):
            read_rows(file["x"], 0, 8)


def test_a_stream_that_claims_more_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    grown = []
    known = fast_zlib()

    class Watched:
        """A decompressor that tells how many bytes it gave out."""

        def __init__(self) -> None:
            self.stream = known.decompressobj()
            self.eof = False

        def decompress(self, raw: bytes, limit: int = 0) -> Any:
            data = self.stream.decompress(raw, limit)
            grown.append(len(data))
            return data

    path = tampered(tmp_path / "x.hdf5", zlib.compress(bytes(5_000_000)), compression="gzip")
    watched = SimpleNamespace(decompressobj=Watched, error=known.error)
    monkeypatch.setattr("offline_data.raw.fast_zlib.fast_zlib", lambda: watched)
    with h5py.File(path) as file, pytest.raises(FormatError, match="does not decompress to its 64"):
        read_rows(file["x"], 8, 16)
    assert grown == ([] if library == "deflate" else [65])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("size", [0, 1, 1000, 70_000])
def test_a_stream_is_inflated_whole_or_not_at_all(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 9, size, np.uint8).tobytes()
    for level in (0, 1, 9):
        raw = zlib.compress(data, level)
        for room in (size, size + 1, size + 100_000, 1 << 40):
            assert inflate_stream(raw, room) == data
        assert inflate_stream(raw + b"more", size) == data
        assert not size or inflate_stream(raw, size - 1) is None
        for damaged in (raw[:-1], raw[:-5], b"", b"y" + raw[1:], raw[:-1] + bytes([raw[-1] ^ 1])):
            assert inflate_stream(damaged, size) is None


@pytest.mark.parametrize("missing", [(), ("deflate",), ("deflate", "isal")])
def test_crc_is_that_of_zlib(missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    _libdeflate.cache_clear()
    fast_zlib.cache_clear()
    try:
        whole = memoryview(bytes(range(256)) * 40)
        for size in (0, 1, 7, len(whole)):
            assert crc32(whole[:size]) == zlib.crc32(whole[:size])
            assert crc32(whole[size:], crc32(whole[:size])) == zlib.crc32(whole)
    finally:
        _libdeflate.cache_clear()
        fast_zlib.cache_clear()
