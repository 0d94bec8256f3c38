"""HDF5 groups as trees of leaves; only what lies in the file itself is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import FEW
from offline_data.raw.hdf5_tree import datasets_in, dtype_of


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
    found = {path: hdf5_tree.describe(dataset) for path, dataset in hdf5_tree.walk(file["/"].id)}
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


@pytest.mark.parametrize(
    ("link", "said"),
    [
        (h5py.SoftLink("/a/x"), "has a link 'link' to '/a/x', which is not followed"),
        (h5py.ExternalLink("o.h5", "/x"), "has a link 'link' to 'o.h5', which is not followed"),
        ("ring", "is more than 32 groups deep"),
    ],
)
def test_walk_refuses_what_leads_elsewhere(file: Any, link: Any, said: str) -> None:
    file["a/x"] = [1]
    file["a/link"] = file["a"] if link == "ring" else link
    with pytest.raises(FormatError, match=said):
        list(hdf5_tree.walk(file["/"].id))


@pytest.mark.parametrize(
    ("row", "kind"),
    [*((row, "f8") for row in [(4,), (), (1,), (3, 1)])]
    + [((3,), kind) for kind in ["f4", "i8", ">f8", "S8", "f8"]],
    ids=str,
)
def test_only_the_same_row_and_type_is_read(file: Any, row: tuple[int, ...], kind: str) -> None:
    file["x"] = np.arange(1, 13).reshape(4, 3).astype(kind)
    if kind != "S8":
        whole = hdf5_tree.read_numbers(file["x"].id)
        assert whole.dtype == np.dtype(kind).newbyteorder("=")
        np.testing.assert_array_equal(whole, file["x"])
    values = hdf5_tree.read_plain(file.id, "x", np.dtype("f8"), row)
    assert (values is not None) == (row == (3,) and kind == "f8")
    if values is not None:
        np.testing.assert_array_equal(values, file["x"])


def test_only_plain_values_of_this_file_are_read_at_once(tmp_path: Path) -> None:
    """Of all others the general way finds out whether they are sound."""
    values = np.arange(1.0, 5)
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["x"] = values
    values.tofile(tmp_path / "raw")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["x"] = values
        file["hard"] = file["x"]
        file["soft"] = h5py.SoftLink("/x")
        file["out"] = h5py.ExternalLink("other.hdf5", "/x")
        file["group/a"] = 1
        file.create_dataset("raw", (4,), "f8", external=[(str(tmp_path / "raw"), 0, 32)])
        for name, where in (("within", "."), ("across", "other.hdf5")):
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource(where, "x", (4,))
            file.create_virtual_dataset(name, layout)
        file.create_dataset("gzip", data=values, compression="gzip")
        file.create_dataset("unwritten", (4,), "f8")
        half = file.create_dataset("half", (4,), "f8", chunks=(2,))
        half[:2] = values[:2]
    with h5py.File(tmp_path / "x.hdf5") as file:
        found = {}
        for name in (*file, "absent"):
            read = hdf5_tree.read_plain(file.id, name, values.dtype, ())
            found[name] = None if read is None else read.tolist()
    assert {name for name, was_read in found.items() if was_read} == {"x", "hard"}
    assert found["x"] == found["hard"] == values.tolist()


def test_more_rows_than_the_file_can_have_are_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    """The header is that of a sound dataset but for its length, and says where the values are."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", data=np.arange(4.0), chunks=(2,), maxshape=(None,))
        file["many"] = np.ones(FEW + 1)
        many = hdf5_tree.read_plain(file.id, "many", np.dtype("f8"), ())
        assert many is not None
        assert len(many) == FEW + 1
        file["x"].resize((2**40,))
        with pytest.raises(FormatError, match="declares 8,796,093,022,208 bytes"):
            hdf5_tree.read_plain(file.id, "x", np.dtype("f8"), ())


def test_what_is_not_there_or_is_no_dataset(file: Any) -> None:
    file["a/x"] = [1]
    assert hdf5_tree.open_dataset(file.id, ("a", "y")) is None
    assert hdf5_tree.open_dataset(file.id, ("b", "x")) is None
    assert hdf5_tree.open_group(file.id, ("c",)) is None
    assert hdf5_tree.open_dataset(file.id, ("a", "x")).shape == (1,)
    with pytest.raises(OSError, match="'a' exists but cannot be opened"):
        hdf5_tree.open_dataset(file.id, ("a",))


@pytest.mark.parametrize("open_at", [hdf5_tree.open_group, hdf5_tree.open_dataset])
@pytest.mark.parametrize("path", [("out",), ("a", "out"), ("out", "x"), ("a", "out", "x")], ids=str)
def test_what_lies_in_another_file_is_not_opened(
    tmp_path: Path, file: Any, path: tuple[str, ...], open_at: Any
) -> None:
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["group/x"] = other["x"] = [1]
    whole = path[-1] == "out"
    target = "/" if not whole else "/group" if open_at is hdf5_tree.open_group else "/x"
    file["a/x"] = [1]
    file["/".join(path[: path.index("out") + 1])] = h5py.ExternalLink("other.hdf5", target)
    with pytest.raises(FormatError, match=r"to 'other\.hdf5', which is not followed"):
        open_at(file.id, path)


@pytest.mark.parametrize("number", [0, -7, 2**63 - 1, 2**63, 2**64 - 1])
def test_number_attributes_of_any_width(file: Any, number: int) -> None:
    file.attrs["n"] = np.uint64(number) if number >= 2**63 else np.int64(number)
    assert hdf5_tree.number_attribute(file.id, "n") == number


def test_text(file: Any) -> None:
    file["u"] = ["ä", "", "c"]
    file["s"] = np.array([b"one", b"three"])
    file["bad"] = np.array([b"\xff\xfe"])
    assert hdf5_tree.read_text(file["u"].id, "u").tolist() == ["ä", "", "c"]
    assert hdf5_tree.read_text(file["s"].id, "s").tolist() == ["one", "three"]
    with pytest.raises(FormatError, match="the place is not UTF-8"):
        hdf5_tree.read_text(file["bad"].id, "the place")


def test_links_are_named_and_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["a/b/c"] = np.arange(3)
        file["a/hard"] = file["a/b/c"]
        file["a/loop"] = file["a"]
        file["a/root"] = file["/"]
        file["soft"] = h5py.SoftLink("/a/b/c")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["out"] = h5py.ExternalLink("other.hdf5", "/x")
        found, links = datasets_in(file)
        assert set(found) == {"a/b/c", "a/hard"}
        assert links == {"soft": "/a/b/c", "dangling": "/nowhere", "out": "other.hdf5"}


def test_types_without_a_numpy_form_are_none(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["plain"] = np.arange(3.0)
        time = h5py.h5t.UNIX_D32LE
        h5py.h5d.create(file.id, b"time", time, h5py.h5s.create_simple((3,)))
        assert dtype_of(file["plain"]) == np.float64
        assert dtype_of(file["time"]) is None
