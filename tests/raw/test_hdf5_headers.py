"""Datasets that are known by their object headers are of the same kind, and no others are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5_headers import KnownHeaders

VALUES = np.arange(1.0, 13).reshape(4, 3)
KEY = ("plain", np.dtype("f8"), (3,))


def growing(group: Any, name: str, values: Any = VALUES, **how: Any) -> Any:
    """Write as Minari does."""
    return group.create_dataset(name, data=values, **{"chunks": True, **how})


def external(group: Any, name: str) -> None:
    raw = group.file.filename + ".raw"
    VALUES.tofile(raw)
    group.create_dataset(name, (4, 3), "f8", external=[(raw, 0, VALUES.nbytes)])


def virtual(group: Any, name: str) -> None:
    layout = h5py.VirtualLayout((4, 3), "f8")
    layout[:] = h5py.VirtualSource(".", "plain", (4, 3))
    group.create_virtual_dataset(name, layout)


OTHERS: dict[str, Callable[[Any, str], Any]] = {
    "gzip": lambda group, name: growing(group, name, compression="gzip"),
    "shuffle": lambda group, name: growing(group, name, shuffle=True),
    "fletcher32": lambda group, name: growing(group, name, fletcher32=True),
    "other type": lambda group, name: growing(group, name, VALUES.astype("i8")),
    "other width": lambda group, name: growing(group, name, VALUES.astype("f4")),
    "other order": lambda group, name: growing(group, name, VALUES.astype(">f8")),
    "transposed": lambda group, name: growing(group, name, VALUES.T),
    "flat": lambda group, name: growing(group, name, VALUES.ravel()),
    "deeper": lambda group, name: growing(group, name, VALUES[None]),
    "external": external,
    "virtual": virtual,
    "no chunks": lambda group, name: growing(group, name, chunks=None),
    "compact": lambda group, name: h5py.h5d.create(
        group.id,
        name.encode(),
        h5py.h5t.NATIVE_DOUBLE,
        h5py.h5s.create_simple((4, 3)),
        dcpl=_compact(),
    ),
}


def _compact() -> Any:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    return plan


@contextmanager
def known(path: Path) -> Iterator[tuple[Any, KnownHeaders]]:
    with h5py.File(path) as file, KnownHeaders(path, file.id) as headers:
        assert read(file.id, headers) is not None
        yield file, headers


def read(group: Any, headers: KnownHeaders | None = None) -> Any:
    return hdf5_tree.read_plain(group, "plain", np.dtype("f8"), (3,), headers)


def read_or_refuse(group: Any, headers: KnownHeaders | None = None) -> Any:
    """Return the values, or None where damage is an error."""
    try:
        return read(group, headers)
    except FormatError:
        return None


def shape_of(file: Any, headers: KnownHeaders, name: str) -> tuple[int, ...] | None:
    address = file.id.links.get_info(name.encode()).u
    found = headers.find(KEY, address)
    return None if found is None else found.shape


@pytest.mark.parametrize("chunks", [True, None])
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_a_dataset_of_the_same_kind_is_known_and_read(
    tmp_path: Path, rows: int, chunks: bool | None
) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        growing(file, "plain", chunks=chunks)
        values = np.random.default_rng(0).normal(size=(rows, 3))
        growing(file.create_group("next"), "plain", values, chunks=chunks)
    with known(tmp_path / "x.hdf5") as (file, headers):
        assert shape_of(file, headers, "next/plain") == (rows, 3)
        np.testing.assert_array_equal(read(file["next"].id, headers), values)


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_else_is_taken_for_it(tmp_path: Path, other: str) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        growing(file, "plain")
        OTHERS[other](file.create_group("next"), "plain")
    with known(tmp_path / "x.hdf5") as (file, headers):
        assert shape_of(file, headers, "next/plain") is None
        values = read(file["next"].id, headers)
        assert (values is not None) == (other in {"no chunks", "compact"})
        if values is not None:
            np.testing.assert_array_equal(values, file["next/plain"])


CRASHES = pytest.mark.skipif(
    h5py.version.hdf5_version_tuple < (2, 0),
    reason="HDF5 1.14 itself crashes on some damaged shapes of chunks",
)


@pytest.mark.parametrize(
    "chunks",
    [
        True,
        *(pytest.param(x, marks=[CRASHES, pytest.mark.slow]) for x in [(6, 3), (2, 2), (3, 1)]),
        None,
    ],
)
def test_no_single_byte_of_a_header_makes_another_dataset_of_it(
    tmp_path: Path, chunks: bool | tuple[int, int] | None
) -> None:
    """A header or list of chunks with one byte changed is read like HDF5 reads it, or left to it."""
    most = {"maxshape": (None, 3)} if chunks else {}
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        growing(file, "plain", chunks=chunks, **most)
        growing(file.create_group("next"), "plain", VALUES + 100, chunks=chunks, **most)
        address = file.id.links.get_info(b"next/plain").u
    sound = (tmp_path / "x.hdf5").read_bytes()
    places = [*range(address, address + 16 + 256)]
    if chunks:
        node = sound.rindex(b"TREE\1")
        height, width = chunks if isinstance(chunks, tuple) else (4, 3)
        count = -(-4 // height) * -(-3 // width)
        places += range(node, node + 24 + 40 * count - 8)  # not to where the last chunk is
    seen = set()
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 0x01
        path = tmp_path / "damaged.hdf5"
        path.write_bytes(damaged)
        with known(path) as (file, headers):
            values = read_or_refuse(file["next"].id, headers)
            if values is not None:
                np.testing.assert_array_equal(values, file["next/plain"])
            seen.add(values is not None)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("rows", "chunk", "here"),
    [
        (5, (5, 3), True),
        (5, (8, 3), True),
        (5, None, True),
        (5, (4, 3), True),
        (5, (5, 2), True),
        (5, (2, 2), True),
        (64, (1, 3), True),
        (65, (1, 3), False),  # of two nodes
        (50_000, (50_000, 3), False),
        (5, (50_000, 3), False),
    ],
)
def test_a_small_dataset_in_few_chunks_is_read_without_hdf5(
    tmp_path: Path, rows: int, chunk: tuple[int, int] | None, here: bool
) -> None:
    values = np.random.default_rng(0).normal(size=(rows, 3))
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        most = (None, 3) if chunk else None
        growing(file, "plain", values, chunks=chunk, maxshape=most)
        group = file.create_group("next")
        growing(group, "plain", values[: rows // 2], chunks=chunk, maxshape=most)
        if chunk:  # its chunks are not one after the other
            growing(group, "other", values, chunks=chunk, maxshape=most)
            group["plain"].resize(rows, 0)
            group["plain"][rows // 2 :] = values[rows // 2 :]
        else:
            del group["plain"]
            growing(group, "plain", values, chunks=chunk)
    with known(tmp_path / "x.hdf5") as (file, headers):
        found = headers.find(KEY, file.id.links.get_info(b"next/plain").u)
        assert found is not None
        read_here = headers.read(found, np.dtype("f8"))
        assert (read_here is not None) == here
        for one in (read(file["next"].id, headers), read_here):
            if one is not None:
                np.testing.assert_array_equal(one, values)
                assert one.flags.writeable


@pytest.mark.parametrize("chunk", [(3, 3), (4, 2)])
def test_a_dataset_with_one_of_several_chunks_is_left_to_hdf5(
    tmp_path: Path, chunk: tuple[int, int]
) -> None:
    """HDF5 fills in the chunks that were never written."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        growing(file, "plain")
        part = file.create_dataset("next/plain", (4, 3), "f8", chunks=chunk, maxshape=(4, 3))
        part[: chunk[0], : chunk[1]] = VALUES[: chunk[0], : chunk[1]]
    with known(tmp_path / "x.hdf5") as (file, headers):
        found = headers.find(KEY, file.id.links.get_info(b"next/plain").u)
        assert found is not None
        assert headers.read(found, np.dtype("f8")) is None
        assert read(file["next"].id, headers) is None


@pytest.mark.parametrize("place", [2**64 - 1, 2**63, 2**40, 7])
def test_an_address_that_leads_nowhere(tmp_path: Path, place: int) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        growing(file, "plain")
        growing(file.create_group("next"), "plain")
        address = file.id.links.get_info(b"next/plain").u
    damaged = (tmp_path / "x.hdf5").read_bytes()
    assert damaged.count(struct.pack("<Q", address)) == 1
    damaged = damaged.replace(struct.pack("<Q", address), struct.pack("<Q", place))
    (tmp_path / "x.hdf5").write_bytes(damaged)
    with known(tmp_path / "x.hdf5") as (file, headers):
        assert read(file["next"].id, headers) is None


def test_a_header_in_several_places_is_not_known_again(tmp_path: Path) -> None:
    """What is elsewhere could be filters."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        plain = growing(file, "plain")
        for number in range(20):
            plain.attrs[f"note {number}"] = number
    with known(tmp_path / "x.hdf5") as (file, headers):
        assert shape_of(file, headers, "plain") is None


def test_files_with_numbers_of_other_widths_or_a_user_block(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w", userblock_size=512) as file:
        growing(file, "plain")
    with known(tmp_path / "x.hdf5") as (file, headers):
        assert shape_of(file, headers, "plain") is None
