"""`.npy` files read here are what numpy gives, or are refused before memory is taken for them."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from offline_data.errors import FormatError, NotFoundError
from offline_data.readers.npy import open_npy, read_npy
from offline_data.readers.npy_header import read_header

SCALAR_TYPES = npst.scalar_dtypes() | npst.unicode_string_dtypes() | npst.byte_string_dtypes()
RECORD = np.dtype([("a", "<i4"), ("b", ">f8", (2, 3)), ("c", [("d", "U2"), ("é", "?")])])
ALIGNED = np.dtype([("x", "i1"), ("y", "f8")], align=True)


def saved(array: Any, *, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def read(data: bytes, **options: Any) -> Any:
    options = {"size": len(data), "where": "action.npy", **options}
    return read_npy(io.BytesIO(data), **options)


def refused(data: bytes, match: str, **options: Any) -> None:
    with pytest.raises(FormatError, match=match) as caught:
        read(data, **options)
    assert caught.value.message.startswith("action.npy ")


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.flags.f_contiguous == expected.flags.f_contiguous
    if expected.dtype.names:  # padding is nobody's
        np.testing.assert_array_equal(found, expected)
    else:
        assert found.tobytes() == expected.tobytes()
    assert found.flags.writeable


@settings(max_examples=200, deadline=None)
@given(
    array=npst.arrays(SCALAR_TYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0)),
    moved=st.booleans(),
)
def test_arrays_are_those_of_numpy(array: Any, moved: bool) -> None:
    data = saved(array.T if moved else array)
    assert_same(read(data), np.load(io.BytesIO(data), allow_pickle=False))


def rows_of(dtype: Any) -> Any:
    rows = np.zeros(3, dtype)
    for at, name in enumerate(rows.dtype.names):
        inner = rows[name]
        if inner.dtype.names:
            inner["d"], inner["é"] = ["a", "ä", "1€"], [True, False, True]
        else:
            inner[...] = np.arange(1, inner.size + 1).reshape(inner.shape) + 1000 * at
    return rows


@pytest.mark.parametrize(
    "array",
    [
        rows_of(RECORD),
        rows_of(ALIGNED),
        np.frombuffer(bytes(range(20)), "V5"),
        np.arange(1, 5).astype("M8[25s]"),
        np.arange(1, 5).astype("longdouble"),
    ],
    ids=["record", "aligned", "raw", "time", "longdouble"],
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_other_types(array: Any) -> None:
    data = saved(array)
    assert_same(read(data), np.load(io.BytesIO(data), allow_pickle=False))


def with_header(text: str, values: bytes = b"", version: int = 1) -> bytes:
    header = text.encode("utf-8" if version == 3 else "latin-1")
    width = 2 if version == 1 else 4
    start = b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(width, "little")
    return start + header + values


def header_of(descr: str = "'<i2'", shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}  \n"


TWO = np.array([1001, 1002], "<i2")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions(version: int) -> None:
    data = with_header(header_of(), TWO.tobytes(), version)
    assert_same(read(data), TWO)
    named = with_header(header_of("[('ä', '<i2')]"), TWO.tobytes(), version)
    assert read(named)["ä"].tolist() == [1001, 1002]


def test_headers_of_python_2() -> None:
    data = with_header(header_of(shape="(2L, 1L)"), TWO.tobytes())
    assert_same(read(data), TWO[:, None])


def test_an_array_larger_than_a_block() -> None:
    array = np.arange(700_000, dtype="<i4").reshape(7, -1)
    assert_same(read(saved(array)), array)
    assert_same(read(saved(array), size=1 << 40), array)
    data = saved(np.asfortranarray(array))
    assert_same(read(data), np.load(io.BytesIO(data), allow_pickle=False))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "it ends too early"),
        (b"PK\x03\x04" + bytes(30), r"it begins with b'PK"),
        (b"\x93NUMPY\x01\x00\x76\x00{'descr'", "it ends too early"),
        (with_header(header_of(), TWO.tobytes())[:-1], "takes 4 bytes; at most 3 follow"),
        (with_header(header_of(), TWO.tobytes() + b"\0"), "bytes follow its array"),
        (with_header(header_of(shape="()"), b"\1\0\2"), "bytes follow its array"),
        (with_header(header_of(shape="(0, 3)"), b"\1"), "bytes follow its array"),
        (b"\x93NUMPY\x04\x00\0\0\0\0", r"of version 4\.0"),
        (b"\x93NUMPY\x01\x01\0\0", r"of version 1\.1"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "4294967295 bytes; 10000 at most"),
        (with_header("x"), "no dictionary of text and whole numbers"),
        (with_header("[" * 5000), "its header cannot be read"),
        (with_header("[" * 90 + "]" * 90), "not exactly descr"),
        (with_header("{[]: 1}"), "its header cannot be read"),
        (with_header("{'descr': '<f4'}"), "not exactly descr"),
        (with_header(header_of(order="0")), "neither True nor False"),
        (with_header(header_of(shape="[2]")), "32 whole numbers at most"),
        (with_header(header_of(shape="(True,)")), "no whole numbers from 0 on"),
        (with_header(header_of(shape="(-1,)")), "no dictionary of text and whole numbers"),
        (with_header(header_of(shape=f"({'9' * 30},)")), "no whole numbers from 0 on"),
        (with_header(header_of(shape=f"({'9' * 5000},)")), "its header cannot be read|limit"),
        (with_header(header_of(shape="(1,)*99")), "no dictionary of text and whole numbers"),
        (with_header(header_of("'f4,O'")), "no plain item type"),
        (with_header(header_of("'float32'")), "no plain item type"),
        (with_header(header_of("'<f3'")), "'<f3' is no item type of numpy here"),
        (with_header(header_of("'<M8[zz]'")), r"'<M8\[zz\]' is no item type"),
        (with_header(header_of("3")), "neither a type string nor a list"),
        (with_header(header_of("('<f4', (2,))")), "neither a type string nor a list"),
        (with_header(header_of("[('a', '|O')]")), "fields of objects"),
        (with_header(header_of("[('a', 'f4,f4')]")), "no plain item type"),
        (with_header(header_of("[('a',)]")), "not a name, a type and maybe a shape"),
        (with_header(header_of("[(('t', 'a'), '<f4')]")), "not a name, a type"),
        (with_header(header_of("[('a', '<f4', 2)]")), "32 whole numbers at most"),
        (with_header(header_of("[('a', '<f4', (1000000, 1000000))]")), "size|fit"),
        (with_header(header_of("'<U1'", "()"), b"\0\0\x11\0"), "a number that is no character"),
        (with_header(header_of(shape="(4611686018427387904, 8)")), "at most 0 follow"),
    ],
)
def test_damage_is_named(data: bytes, match: str) -> None:
    refused(data, match)


def test_what_is_announced_takes_no_memory(
    memory_below: Callable[[int], AbstractContextManager[None]],
) -> None:
    for descr, shape in (("'<f8'", "(1099511627776,)"), ("'|S2147483647'", "(999,)")):
        data = with_header(header_of(descr, shape), b"1001")
        with memory_below(200_000):
            refused(data, "at most 4 follow its header")
    huge = with_header(header_of("'<f8'", "(1152921504606846975,)"), b"1001")
    refused(huge, "allocate|too big|maximum", size=1 << 64)


def test_streams_that_end_early_or_give_little() -> None:
    data = saved(np.arange(1000))

    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(7, size or 0))

    found = read_npy(Dribble(data), size=len(data), where="x")
    np.testing.assert_array_equal(found, np.arange(1000))
    with pytest.raises(FormatError, match="ends after 7990 of 8000 bytes"):
        read_npy(Dribble(data[:-10]), size=len(data), where="x")


def test_headers_are_read_without_values() -> None:
    stream = io.BytesIO(saved(np.asfortranarray(np.ones((3, 2), ">f4"))))
    header = read_header(stream, where="x")
    assert (header.shape, header.dtype, header.fortran) == ((3, 2), np.dtype(">f4"), True)
    assert stream.tell() == header.size == 128


EPISODE = {"observations": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "dones": [False, True]}


class Calls:
    """What pickles as a call of a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_objects_are_read_when_asked_for() -> None:
    data = saved(np.array(EPISODE, object), allow_pickle=True)
    refused(data, "an array of Python objects, which is a pickle")
    found = read(data, objects=True)
    assert (found.shape, found.dtype) == ((), np.dtype(object))
    np.testing.assert_array_equal(found.item()["observations"], EPISODE["observations"])
    assert found.item()["dones"] == [False, True]
    several = np.array([None, "1001", (1,)], object)
    assert read(saved(several, allow_pickle=True), objects=True).tolist() == several.tolist()
    assert_same(read(saved(TWO), objects=True), TWO)


def test_objects_that_call_are_refused() -> None:
    data = saved(np.array([Calls()], object), allow_pickle=True)
    refused(data, r"it asks for (posix|nt)\.system", objects=True)


@pytest.mark.parametrize(
    "value", [EPISODE, np.array([1]), np.array([None]), np.array([None, None]).reshape(1, 2)]
)
def test_a_pickle_must_hold_the_array_of_its_header(value: Any) -> None:
    header = with_header(header_of("'|O'"))
    refused(header + pickle.dumps(value), "not hold the array of its header", objects=True)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_are_mapped(tmp_path: Path, shape: tuple[int, ...], order: Any) -> None:
    array = np.arange(1001, 1001 + int(np.prod(shape))).reshape(shape).astype(">f8", order=order)
    path = tmp_path / "x.npy"
    np.save(path, array)
    found = open_npy(path)
    assert type(found) is np.memmap
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, shape, False)
    np.testing.assert_array_equal(found, array)


def test_files_that_cannot_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(NotFoundError):
        open_npy(path)
    whole = saved(TWO)
    for data, match in (
        (whole[:-1], r"x\.npy cannot be read as a \.npy file: its array \[2\] of int16 takes 4"),
        (whole + b"\0", "1 bytes follow its array"),
        (whole[:20], "it ends too early"),
        (b"<!DOCTYPE html>", "a web page"),
        (saved(np.array([None]), allow_pickle=True), "an array of Python objects"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=match):
            open_npy(path)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), objects=st.booleans())
def test_damaged_files(data: st.DataObject, objects: bool) -> None:
    array = np.array([1, "é"], object) if objects else np.zeros(3, RECORD[["a", "c"]])
    whole = bytearray(with_no_padding(saved(array, allow_pickle=objects)))
    place = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(place, min(place + 3, len(whole))))
    whole[place:stop] = data.draw(st.binary(max_size=3))
    try:
        found = read(bytes(whole), objects=data.draw(st.booleans()))
    except FormatError:
        return
    assert type(found) is np.ndarray


def with_no_padding(data: bytes) -> bytes:
    end = data.index(b"\n") + 1
    text = data[10:end].rstrip() + b"\n"
    return data[:8] + len(text).to_bytes(2, "little") + text + data[end:]


def test_real_files_of_objects(realdata: Path) -> None:
    folder = realdata / "fixtures_generated" / "gendgrl"
    seen = 0
    for path in (folder / "100k_procgen_dataset_1.tar", folder / "bigfish.tar.xz"):
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is None or not member.name.endswith(".npy"):
                    continue
                data = stream.read()
                expected = np.load(io.BytesIO(data), allow_pickle=True).item()
                found = read(data, objects=True).item()
                assert list(found) == list(expected)
                for key, value in expected.items():
                    assert found[key].dtype == value.dtype
                    np.testing.assert_array_equal(found[key], value)
                seen += 1
    assert seen == 9
