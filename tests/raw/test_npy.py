"""`.npy` and `.npz`: arrays are numpy's own, and no more memory is taken than their bytes hold."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from offline_data.base.errors import FormatError, IntegrityError, NotFoundError
from offline_data.raw.npy import open_npz, read_npy
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)

ARRAYS = {
    "f4": np.arange(6, dtype="f4").reshape(2, 3),
    "big endian": np.arange(6, dtype=">i4"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "text": np.array(["go", "stöp"]),
    "times": np.array(["2020-01-01"], "M8[ns]"),
    "no dimensions": np.array(7.5),
    "empty": np.zeros((0, 3), "u1"),
    "bool": np.array([True, False]),
}


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def read(data: bytes, **options: Any) -> Any:
    return read_npy(io.BytesIO(data), size=len(data), where="x.npy", **options)


def header(fields: str, values: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = fields.encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + values


HEADER = "{'descr': %s, 'fortran_order': False, 'shape': %s}"
DAMAGED = {
    "nothing": b"",
    "a web page": b"<html>404",
    "cut in its header": saved(ARRAYS["f4"])[:40],
    "cut short": saved(ARRAYS["f4"])[:-1],
    "with more": saved(ARRAYS["f4"]) + b"1",
    "of 10**13 rows": header(HEADER % ("'<f8'", "(10000000000000,)")),
    "of 2**70 rows": header(HEADER % ("'<f8'", f"({2**70},)")),
    "of negative rows": header(HEADER % ("'<f8'", "(-1,)"), bytes(8)),
    "of a shape of text": header(HEADER % ("'<f8'", "('1',)"), bytes(8)),
    "with a shape that is not a tuple": header(HEADER % ("'<f8'", "8"), bytes(64)),
    "of 33 axes": header(HEADER % ("'<f8'", "(" + "1," * 33 + ")"), bytes(8)),
    "structured": saved(np.zeros(2, [("a", "f4")])),
    "of objects in arrays": header(HEADER % ("'f4,(100000,100000)O'", "(1,)"), bytes(8)),
    "calling": header(HEADER % ("__import__('os').getcwd()", "(1,)"), bytes(8)),
    "no header": header("[1, 2]", bytes(8)),
    "without an order": header("{'descr': '<f8', 'shape': (1,)}", bytes(8)),
    "deep": header("(" * 4000 + ")" * 4000),
    "version 9": header(HEADER % ("'<f8'", "(1,)"), bytes(8), b"\x09\0"),
    "text of no characters": header(HEADER % ("'<U1'", "(1,)"), b"\xff" * 4),
    "objects": saved(np.array([{"a": 1}], object), allow_pickle=True),
}


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(ARRAYS.values()))
    | npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_side=0))
)
def test_arrays_are_those_of_numpy(expected: Any) -> None:
    found = read(saved(expected))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.flags.f_contiguous == expected.flags.f_contiguous
    assert found.tobytes() == expected.tobytes()
    assert found.flags.writeable


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, ARRAYS["f4"], version=version)
    np.testing.assert_array_equal(read(file.getvalue()), ARRAYS["f4"])


def test_headers_of_python_2() -> None:
    data = header(
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2L, 1L), }", b"\1\0\0\0\2\0\0\0"
    )
    assert read(data).tolist() == [[1], [2]]


@REFUSALS.of("arrays", DAMAGED)
def test_damage_is_named(name: str, memory_below: Callable[[int], Any]) -> None:
    with memory_below(4 << 20):
        REFUSALS.check("arrays", name, lambda: read(DAMAGED[name]))


def test_objects_are_read_when_asked_for() -> None:
    expected = np.array([{"a": np.arange(3)}, None, [1, 2]], object)
    found = read(saved(expected, allow_pickle=True), objects=True)
    assert found[0]["a"].tolist() == [0, 1, 2]
    assert found[1:].tolist() == [None, [1, 2]]
    other = saved(expected, allow_pickle=True).replace(b"(3,)", b"(4,)")
    with pytest.raises(FormatError, match="not hold the array of its header"):
        read(other, objects=True)


@settings(max_examples=50, deadline=None)
@given(at=st.integers(0, 200), more=st.binary(max_size=3), cut=st.integers(0, 3))
def test_damaged_bytes_are_an_error_or_an_array_of_the_same_bytes(
    at: int, more: bytes, cut: int
) -> None:
    data = bytearray(saved(ARRAYS["f4"]))
    data[at : at + cut] = more
    try:
        found = read(bytes(data))
    except FormatError:
        return
    assert found.nbytes <= len(data)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_by_name(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.txt", b"1")
    with open_npz(tmp_path / "a.npz", budget=1 << 20) as arrays:
        assert (list(arrays), arrays.others) == (list(ARRAYS), ("notes.txt",))
        for key, expected in ARRAYS.items():
            assert arrays[key].tolist() == expected.tolist()
            header = arrays.header(key)
            assert (header.shape, header.dtype) == (expected.shape, expected.dtype)
        assert arrays.get("nothing") is None
        with pytest.raises(NotFoundError, match="has no array 'nothing'; arrays: f4, big"):
            arrays["nothing"]


def test_damaged_files_are_refused_or_whole(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", reward=np.arange(50.0), action=np.arange(9))
    whole = (tmp_path / "x.npz").read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        (tmp_path / "x.npz").write_bytes(damaged)
        try:
            with open_npz(tmp_path / "x.npz", budget=1 << 20) as arrays:
                values = [arrays[name].tolist() for name in arrays]
        except (IntegrityError, NotFoundError):
            continue
        expected = [list(range(50)), list(range(9))]
        assert all(value in expected for value in values)


@pytest.mark.parametrize(("count", "refused"), [(2, True), (1, False)])
def test_bytes_behind_the_last_row_are_refused_once_it_is_read(
    tmp_path: Path, count: int, refused: bool
) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("obs.npy", saved(np.arange(6.0).reshape(2, 3)) + b"more")
    expected = (
        pytest.raises(FormatError, match="'obs' is damaged: bytes follow")
        if refused
        else nullcontext()
    )
    with open_npz(path, budget=1000) as arrays, expected, arrays.rows("obs") as rows:
        assert rows.read(count).shape == (count, 3)


def test_more_than_the_budget_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", zeros=np.zeros(1 << 20))
    with (
        pytest.raises(FormatError, match=r"x\.npz has a member 'zeros\.npy' that has 838"),
        open_npz(tmp_path / "x.npz", budget=1 << 20),
    ):
        pass


def test_real_files(realdata: Path) -> None:
    paths = sorted((realdata / "fixtures_generated" / "vd4rl").rglob("*.npz"))
    assert paths
    for path in paths[:20]:
        with open_npz(path, budget=1 << 30) as arrays, np.load(path) as expected:
            assert list(arrays) == list(expected)
            for name in expected:
                assert np.array_equal(arrays[name], expected[name])
