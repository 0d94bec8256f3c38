"""zarr: every value beside the zarr package's own, and what is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.raw.zarr_arrays import is_zarr, open_zarr
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)


def write_plain(path: Path, name: str, values: np.ndarray, chunk: int, **changes: Any) -> Path:
    """Write an array of format 2 by hand, without compression."""
    folder = path / name
    folder.mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    metadata = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": [chunk, *values.shape[1:]],
        "dtype": values.dtype.str,
        "compressor": None,
        "filters": None,
        "fill_value": 7,
        "order": "C",
    }
    (folder / ".zarray").write_text(json.dumps({**metadata, **changes}))
    for number in range(-(-len(values) // chunk)):
        rows = np.zeros((chunk, *values.shape[1:]), values.dtype)
        some = values[number * chunk : (number + 1) * chunk]
        rows[: len(some)] = some
        (folder / ".".join([str(number)] + ["0"] * (values.ndim - 1))).write_bytes(rows.tobytes())
    return path


def zipped(folder: Path, top: str = "") -> Path:
    path = folder.with_name("set.zarr.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            if file.is_file():
                archive.write(file, top + file.relative_to(folder).as_posix())
    return path


@pytest.mark.parametrize("top", [None, "", "set/"])
def test_values_without_compression(tmp_path: Path, top: str | None) -> None:
    values = np.arange(46, dtype=">f4").reshape(23, 2)
    path = write_plain(tmp_path / "set.zarr", "data/action", values, 5)
    path = path if top is None else zipped(path, top)
    assert is_zarr(path)
    with open_zarr(path) as arrays:
        assert list(arrays) == ["data/action"]
        array = arrays["data/action"]
        for start, stop in [(0, 23), (3, 4), (4, 11), (22, 23), (9, 9)]:
            found = array.read(start, stop)
            assert found.dtype == np.dtype("=f4")
            np.testing.assert_array_equal(found, values[start:stop])


def test_chunk_that_was_not_written_is_the_fill_value(tmp_path: Path) -> None:
    path = write_plain(tmp_path, "a", np.arange(6), 2)
    (path / "a/1").unlink()
    with open_zarr(path) as arrays:
        assert arrays["a"].read(0, 6).tolist() == [0, 1, 7, 7, 4, 5]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"compressor": None},
    {"order": "F"},
    {"chunks": (4, 2, 2)},
    {"dimension_separator": "/"},
    *({"codec": name} for name in ("Zlib", "GZip", "BZ2", "LZMA", "LZ4", "Zstd")),
    {"filters": ("Delta",)},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", ["<f4", ">i2", "|u1", "<f8"])
def test_values_of_format_2_equal_those_of_zarr(
    tmp_path: Path, options: dict[str, Any], dtype: str
) -> None:
    zarr = pytest.importorskip("zarr")
    numcodecs = pytest.importorskip("numcodecs")
    given = {"chunks": (7, 3, 4), **options}
    if codec := given.pop("codec", None):
        given["compressor"] = getattr(numcodecs, codec)()
    if given.pop("filters", None):
        given["filters"] = [numcodecs.Delta(dtype)]
    if zarr.__version__ >= "3":
        given["zarr_format"] = 2
    values = np.random.default_rng(1).integers(0, 99, (17, 3, 4)).astype(dtype)
    place = str(tmp_path / "set" / "x" / "y")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/.zgroup").write_text('{"zarr_format": 2}')
    zarr.create(store=place, shape=values.shape, dtype=dtype, **given)[:] = values
    for path in (tmp_path / "set", zipped(tmp_path / "set")):
        with open_zarr(path) as arrays:
            assert arrays["x/y"].shape == values.shape
            for start, stop in [(0, 17), (5, 9), (16, 17)]:
                np.testing.assert_array_equal(arrays["x/y"].read(start, stop), values[start:stop])


@pytest.mark.parametrize("codec", ["BloscCodec", "GzipCodec", "ZstdCodec", None])
@pytest.mark.parametrize("dtype", [">f4", "int64", "uint8", "bool"])
def test_values_of_format_3_equal_those_of_zarr(
    tmp_path: Path, codec: str | None, dtype: str
) -> None:
    zarr = pytest.importorskip("zarr", minversion="3")
    group = zarr.open_group(str(tmp_path / "set"), mode="w", zarr_format=3)
    values = np.random.default_rng(1).integers(0, 2, (17, 3)).astype(dtype)
    compressors = [getattr(zarr.codecs, codec)(), zarr.codecs.Crc32cCodec()] if codec else None
    array = group.create_array(
        "x/y", shape=values.shape, chunks=(5, 2), dtype=dtype, compressors=compressors
    )
    array[:] = values
    for path in (tmp_path / "set", zipped(tmp_path / "set")):
        with open_zarr(path) as arrays:
            np.testing.assert_array_equal(arrays["x/y"].read(0, 17), values)


def plain_set(path: Path, chunk: int = 3, **changes: Any) -> Path:
    return write_plain(path, "a", np.arange(12.0).reshape(6, 2), chunk, **changes)


HEADERS: dict[str, dict[str, Any]] = {
    "a pickle filter": {"filters": [{"id": "pickle"}]},
    "a codec of images": {"compressor": {"id": "imagecodecs_jpegxl"}},
    "objects": {"dtype": "|O", "filters": [{"id": "pickle"}]},
    "fields": {"dtype": "f4,f4"},
    "2**50 rows": {"shape": [1 << 50, 2]},
    "negative rows": {"shape": [-1, 2]},
    "chunks of no rows": {"chunks": [0, 2]},
    "chunks of 2**40 rows": {"chunks": [1 << 40, 2]},
    "larger chunks": {"chunks": [4, 2]},
    "a shape of text": {"shape": "ab"},
    "a shape that is a number": {"shape": 3},
}
FILES: dict[str, dict[str, bytes | None]] = {
    "a short chunk": {"a/1.0": b"short"},
    "half a header": {"a/.zarray": b"{"},
    "a list as a header": {"a/.zarray": b"[]"},
    "nothing": {"a/.zarray": None, ".zgroup": None},
}


def damaged(folder: Path, name: str) -> Path:
    """Write a store with one damage."""
    path = plain_set(folder / "set", **HEADERS.get(name, {}))
    for file, content in FILES.get(name, {}).items():
        (path / file).unlink()
        if content is not None:
            (path / file).write_bytes(content)
    if name in LINKS:
        other = plain_set(folder / "other")
        (path / LINKS[name]).rename(folder / "away")
        (path / LINKS[name]).symlink_to(other / LINKS[name])
    elif name == "a link beside":
        (path / "b").symlink_to(plain_set(folder / "other") / "a", target_is_directory=True)
    elif name == "names that leave a zip":
        path = folder / "x.zarr.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("../.zarray", "{}")
    return path


LINKS = {"a link to a chunk": "a/1.0", "a link to an array": "a"}
DAMAGES = [*HEADERS, *FILES, *LINKS, "a link beside", "names that leave a zip"]


def read_all(path: Path) -> None:
    with open_zarr(path) as arrays:
        for array in arrays.values():
            array.read(0, array.shape[0])


@REFUSALS.of("stores", DAMAGES)
def test_what_is_hostile_or_damaged(tmp_path: Path, name: str) -> None:
    path = damaged(tmp_path, name)
    REFUSALS.check("stores", name, lambda: read_all(path), {tmp_path: "FOLDER"})


@pytest.mark.parametrize("top", [None, "", "set/"])
@pytest.mark.parametrize("inside", ["", "0"])
def test_a_folder_in_the_place_of_a_chunk(tmp_path: Path, top: str | None, inside: str) -> None:
    path = write_plain(tmp_path / "set.zarr", "a", np.arange(12.0), 3)
    (path / "a/1").unlink()
    (path / "a/1").mkdir()
    if inside:
        (path / "a/1" / inside).write_bytes(b"x")
    if top is not None:
        path = zipped(path, top)
        if not inside:
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr(f"{top}a/1/", b"")
    with open_zarr(path) as arrays, pytest.raises(FormatError, match="1 is a folder"):
        arrays["a"].read(0, 12)
    with open_zarr(path) as arrays, pytest.raises(FormatError, match="1 is a folder"):
        _ = arrays["a"].absent_chunks
