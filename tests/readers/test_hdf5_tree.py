from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from offline_data.errors import FormatError
from offline_data.readers import hdf5_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    with h5py.File(tmp_path / "x.hdf5", "w") as opened:
        yield opened


def test_walk(file: Any) -> None:
    file["a/deep/x"] = np.zeros((4, 2), ">f4")
    file["a/s"] = ["one", "two"]
    file["one"] = 3
    file.create_dataset("v", (2,), h5py.vlen_dtype(np.uint8))
    file.create_dataset("w", (2,), h5py.vlen_dtype(np.float32))
    found = {leaf.path: leaf for leaf in hdf5_tree.walk(file)}
    assert {path: leaf.form for path, leaf in found.items()} == {
        ("a", "deep", "x"): "array",
        ("a", "s"): "text",
        ("one",): "array",
        ("v",): "bytes",
        ("w",): "other",
    }
    x = found["a", "deep", "x"]
    assert (x.rows, x.shape, x.dtype) == (4, (2,), np.dtype("f4"))
    assert found["one",].rows is None


@pytest.mark.parametrize("kind", ["<f8", "<i2", "|u1", "bool", "<c8"])
def test_reads_what_fits(file: Any, kind: str) -> None:
    values = np.arange(12).astype(kind).reshape(4, 3)
    file["x"] = values
    out = np.zeros((6, 3), kind)
    assert hdf5_tree.read_if_fits(file["x"].id, out[1:5])
    np.testing.assert_array_equal(out[1:5], values)
    assert not out[0].any()
    assert not out[5].any()


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (4, 4)])
def test_another_number_of_values_does_not_fit(file: Any, shape: tuple[int, ...]) -> None:
    file["x"] = np.ones((4, 3))
    out = np.zeros(shape)
    assert not hdf5_tree.read_if_fits(file["x"].id, out)
    assert not out.any()


@pytest.mark.parametrize("kind", ["f4", "i8", ">f8"])
def test_another_type_does_not_fit(file: Any, kind: str) -> None:
    file["x"] = np.ones((4, 3), kind)
    out = np.zeros((4, 3))
    assert not hdf5_tree.read_if_fits(file["x"].id, out)
    hdf5_tree.read_into(file["x"].id, out)
    assert out.all()


def test_what_is_not_there(file: Any) -> None:
    file["a/x"] = [1]
    assert hdf5_tree.open_dataset(file.id, ("a", "y")) is None
    assert hdf5_tree.open_dataset(file.id, ("b", "x")) is None
    assert hdf5_tree.open_group(file.id, ("c",)) is None
    assert hdf5_tree.open_dataset(file.id, ("a", "x")).shape == (1,)


def test_what_is_there_but_is_no_dataset(file: Any) -> None:
    file["a/x"] = [1]
    with pytest.raises(OSError, match="'a' exists but cannot be opened"):
        hdf5_tree.open_dataset(file.id, ("a",))


@pytest.mark.parametrize("number", [0, -7, 2**63 - 1, 2**63, 2**64 - 1])
def test_integer_attributes_of_any_width(file: Any, number: int) -> None:
    file.attrs["n"] = np.uint64(number) if number >= 2**63 else np.int64(number)
    assert hdf5_tree.integer_attribute(file.id, "n") == number


def test_text(file: Any) -> None:
    file["u"] = ["ä", "", "c"]
    file["s"] = np.array([b"one", b"three"])
    file["bad"] = np.array([b"\xff\xfe"])
    assert hdf5_tree.read_text(file["u"].id, "u").tolist() == ["ä", "", "c"]
    assert hdf5_tree.read_text(file["s"].id, "s").tolist() == ["one", "three"]
    with pytest.raises(FormatError, match="the place is not UTF-8"):
        hdf5_tree.read_text(file["bad"].id, "the place")
