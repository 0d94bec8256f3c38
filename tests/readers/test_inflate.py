"""Rows inflated here are the rows that h5py reads, for any chunks, filters and range."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
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
        {"chunks": (4, 2), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (4, 2), "fletcher32": True},
        {"chunks": (4, 2), "shuffle": True},
        {"chunks": (4, 2), "compression": "lzf"},
        {"chunks": (4, 2), "compression": "lzf", "shuffle": True},
        {"chunks": (4, 2), "compression": "gzip", "compression_opts": 0},
        {"chunks": (4, 2), "compression": "gzip", "maxshape": (None, 3)},
    ],
    ids=str,
)
def test_other_storage_is_read_alike(tmp_path: Path, options: Any) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", data=numbers((11, 3), "f8"), **options)
        assert_same(file["x"], 2, 10)


@settings(max_examples=60, deadline=None)
@given(
    layout=layouts(),
    dtype=st.sampled_from(DTYPES),
    shuffle=st.booleans(),
    fletcher32=st.booleans(),
    compression=st.sampled_from(["gzip", "lzf", None]),
    seed=st.integers(0, 3),
)
def test_any_filters_in_h5pys_order(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]],
    dtype: str,
    shuffle: bool,
    fletcher32: bool,
    compression: str | None,
    seed: int,
) -> None:
    shape, chunks, (start, stop) = layout
    values = numbers(shape, dtype)
    if seed:  # repeated, so that lzf finds copies that overlap themselves
        values = np.random.default_rng(seed).integers(0, seed, shape).astype(dtype)
    options: Any = {"shuffle": shuffle, "fletcher32": fletcher32, "compression": compression}
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        file.create_dataset("x", data=values, chunks=chunks, **options)
        assert_same(file["x"], start, stop)


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


def test_chunks_that_were_never_written_are_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dataset = file.create_dataset("x", (9,), "f4", chunks=(3,), compression="gzip", fillvalue=7)
        dataset[3:6] = [1, 2, 3]
        assert read_rows(dataset, 2, 8).tolist() == [7, 1, 2, 3, 7, 7]


@pytest.mark.parametrize("dtype", ["f4", "?"])
def test_what_was_never_written_at_all(tmp_path: Path, dtype: str) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", (1000,), dtype, compression="gzip")
        file.create_dataset("y", (1000,), dtype, chunks=(10,))
        for name in file:
            found = read_rows(file[name], 1, 999)
            assert found.dtype == file[name].dtype
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


@pytest.fixture
def _zlib_afresh() -> Iterator[None]:
    inflate._zlib.cache_clear()
    yield
    inflate._zlib.cache_clear()


@pytest.mark.usefixtures("_zlib_afresh")
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
    assert (inflate._zlib() is zlib) == (not isal)


@pytest.mark.parametrize("isal", [True, False])
def test_a_stream_that_claims_more_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isal: bool
) -> None:
    grown = []
    library = pytest.importorskip("isal.isal_zlib") if isal else zlib

    class Watched:
        """A decompressor that tells how many bytes it gave out."""

        def __init__(self) -> None:
            self.stream = library.decompressobj()
            self.eof = False

        def decompress(self, raw: bytes, limit: int = 0) -> Any:
            data = self.stream.decompress(raw, limit)
            grown.append(len(data))
            return data

    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", (4,), "f8", chunks=(4,), compression="gzip")
        file["x"].id.write_direct_chunk((0,), zlib.compress(bytes(5_000_000)))
        watched = SimpleNamespace(decompressobj=Watched, error=library.error)
        monkeypatch.setattr(inflate, "_zlib", lambda: watched)
        with pytest.raises(FormatError, match="does not decompress to its 32 bytes"):
            read_rows(file["x"], 0, 4)
    assert grown == [33]
