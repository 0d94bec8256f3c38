"""Arrow and Parquet files as numpy leaves, and the JPEG images in them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from offline_data.base.errors import FormatError
from offline_data.pipeline.jobs.processes.child import Child
from offline_data.raw.arrow import ArrowLeaf, read_table, table_leaves
from offline_data.raw.images import decode_jpeg


def leaves(**columns: pa.Array) -> dict[tuple[str, ...], ArrowLeaf]:
    table = pa.table(columns)
    return {leaf.path: leaf for leaf in table_leaves(table.slice(1, 3))}


def values(array: pa.Array) -> Any:
    return leaves(x=array)["x",].values


PAIRS = [[10 * n, 10 * n + 1] for n in range(5)]
GRIDS = [[[n, n + 1], [n + 2, n + 3], [0, 1]] for n in range(5)]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([np.float16(n + 0.5) for n in range(4)], pa.float16()),
        ([True, False, True, True], pa.bool_()),
        ([0, 1, 2, 3], pa.uint16()),
        (PAIRS, pa.list_(pa.int64(), 2)),
        (PAIRS, pa.list_(pa.int64())),
        (GRIDS, pa.list_(pa.list_(pa.int32(), 2), 3)),
        ([*PAIRS[:2], None, *PAIRS[:2]], pa.list_(pa.int64())),
        (["a", "b", "ü", "d"], pa.string()),
        ([b"a", b"\xff", b"c", b"d"], pa.binary()),
        (["a", "b", "b", "d"], pa.dictionary(pa.int8(), pa.string())),
    ],
)
def test_values_of_a_slice(rows: list[Any], kind: pa.DataType) -> None:
    found = values(pa.array(rows, type=kind))
    assert found.tolist() == [[0, 0] if row is None else row for row in rows[1:4]]
    if pa.types.is_primitive(kind):
        assert found.dtype == np.dtype(str(kind).replace("halffloat", "float16"))


@pytest.mark.parametrize("third", [[], [1], [3, 4]], ids=str)
def test_lists_of_unequal_length_have_no_values(third: list[int]) -> None:
    leaf = leaves(x=pa.array([[1], [1], [1, 2], third, [1]]))["x",]
    assert leaf.values is None
    assert leaf.kind.startswith("list<")


def test_structs_become_leaves_with_the_nulls_of_the_struct() -> None:
    rows = [{"a": n, "b": {"c": str(n)}} for n in range(5)]
    rows[2] = None  # type: ignore[call-overload]
    found = leaves(x=pa.array(rows))
    assert set(found) == {("x", "a"), ("x", "b", "c")}
    assert found["x", "b", "c"].values is not None
    assert found["x", "b", "c"].values.tolist() == ["1", None, "3"]
    a = found["x", "a"]
    assert a.values is not None
    assert a.nulls is not None
    assert (a.values.tolist(), a.nulls.tolist()) == ([1, 0, 3], [False, True, False])


@pytest.mark.parametrize("names", ["xx", "xy"])
def test_files_of_one_table_follow_each_other(tmp_path: Path, names: str) -> None:
    paths = [tmp_path / f"part-{n}.parquet" for n in range(2)]
    for n, path in enumerate(paths):
        parquet.write_table(pa.table({names[n]: [10 * n, 10 * n + 1]}), path)
    if names == "xy":
        with pytest.raises(FormatError, match="different columns"):
            read_table(paths)
        return
    (leaf,) = table_leaves(read_table(paths))
    assert leaf.values is not None
    assert leaf.values.tolist() == [0, 1, 10, 11]


def test_an_arrow_stream(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2]})
    with pa.ipc.new_stream(str(tmp_path / "part-0.arrow"), table.schema) as stream:
        stream.write_table(table)
    assert read_table([tmp_path / "part-0.arrow"]).equals(table)


def test_an_arrow_file_whose_offsets_lead_astray(tmp_path: Path) -> None:
    path = tmp_path / "part-0.arrow"
    table = pa.table({"x": ["a", "bc", "def"]})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    right, wrong = (np.array([0, 1, 3, end], np.int32).tobytes() for end in (6, 1_000_000))
    content = path.read_bytes()
    assert content.count(right) == 1
    path.write_bytes(content.replace(right, wrong))
    with pytest.raises(FormatError, match=r"part-0\.arrow is damaged"):
        read_table([path])


@pytest.mark.parametrize("rows", [[[[12345, 2], [3]], [[4]]], [["ab", "c"], ["d"]]])
def test_offsets_at_which_pyarrow_crashes(tmp_path: Path, rows: list[Any]) -> None:
    """Of lists of lists and of texts: their size is that of the values that their offsets name."""
    path = tmp_path / "part-0.arrow"
    table = pa.table({"x": pa.array(rows)})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    right, wrong = (np.array([0, 2, end], np.int32).tobytes() for end in (3, 1 << 30))
    content = path.read_bytes()
    path.write_bytes(content.replace(right, wrong, 1))
    with (
        Child(read_table, quiet=True) as child,
        pytest.raises(FormatError, match=r"part-0\.arrow is damaged"),
    ):
        child.ask([path])


def encoded(shape: tuple[int, ...], kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8\xff", encoded((9, 5))[:-60], b"text", encoded((9, 5), "PNG")]
)
def test_what_is_no_jpeg_image_names_the_place(data: bytes) -> None:
    with pytest.raises(FormatError, match="the place is not a JPEG image"):
        decode_jpeg(data, "the place")
