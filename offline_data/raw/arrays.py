"""Arrays of any file by name, read in blocks of rows: HDF5, npz, npy in folders, zarr, Parquet, Arrow, CSV, `.pt`.

A name is the path to an array, with slashes. Episodes may have groups of their own, which are HDF5 or zarr
groups, beginnings of names, numbers at the end of all names (`obs_7`, `act_7`), subfolders, or files of a
folder: `groups` lists and `below` opens them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import defect_of, describe_head, is_file, is_folder, read_head
from offline_data.raw import hdf5_tree
from offline_data.raw.archive import name_damage, open_zip
from offline_data.raw.arrow import (
    ARROW,
    PARQUET,
    count_rows,
    is_saved,
    iter_ranges,
    saved_files,
    table_leaves,
)
from offline_data.raw.hdf5 import h5, is_hdf5, name_hdf5_damage, open_hdf5
from offline_data.raw.images import is_image
from offline_data.raw.inflate import read_rows
from offline_data.raw.npy import NpyRows, NpzArrays, read_header, read_npy
from offline_data.raw.rows import read_rows as read_csv
from offline_data.raw.torch_file import TorchTensors
from offline_data.raw.zarr_arrays import is_zarr, open_zarr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.raw.npy import NpyHeader

Block = dict[str, "NDArray[Any]"]
Ranges = list[tuple[int, int]]

BYTES = np.dtype("V")
"""Item type of a column whose rows are `bytes` of any length."""

SUFFIXES = (
    ".hdf5",
    ".h5",
    ".npz",
    ".pt",
    ".pth",
    ".parquet",
    ".arrow",
    ".csv",
    ".tsv",
    ".csv.gz",
    ".tsv.gz",
)
"""Suffixes of files in a folder that are episodes."""
READ = (
    "read are HDF5, npz, folders of npy, zarr, Parquet, Arrow, CSV, and .pt files of plain tensors"
)
"""Hint for files of another kind."""
_BUDGET = 1 << 42
"""Bytes of all arrays of a file, of which a block is in memory at a time."""
_DESCRIBED = 1024
"""Rows of a table that are read to describe its columns."""


@dataclass(frozen=True)
class NamedArray:
    """An array, described but not read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Item type in this machine's byte order; object: text, or nothing that is read; or `BYTES`."""
    problem: str = ""
    """Why it cannot be read, as the end of a sentence that begins with `It`; empty: it can."""


def natural(name: str) -> list[Any]:
    """Return a sort key by which `ep_2` comes before `ep_10`."""
    return [
        int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", name))
    ]


class Arrays(ABC):
    """The arrays of an open file, folder or group."""

    path: Path

    @cached_property
    @abstractmethod
    def columns(self) -> Mapping[str, NamedArray]:
        """All arrays by name, in the file's order."""

    @abstractmethod
    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        """Yield rows of some arrays for each of ascending half-open ranges; raises `FormatError`.

        An array without dimensions is one row.
        """

    def read(self, name: str) -> NDArray[Any]:
        """Read all rows of an array."""
        shape = self.columns[name].shape
        (block,) = self.blocks([name], [(0, shape[0] if shape else 1)])
        return block[name]

    def groups(self, parent: str) -> list[str]:
        """List the names below which there are groups or arrays, in natural order.

        Without any, `_7` is the group of the arrays whose names end so, if all arrays have such a name.
        """
        start = f"{parent}/" if parent else ""
        parts = (name.removeprefix(start) for name in self.columns if name.startswith(start))
        found = sorted({part.partition("/")[0] for part in parts if "/" in part}, key=natural)
        return found or ([] if parent else self._numbers())

    def _numbers(self) -> list[str]:
        """Return the numbers at the end of all names, if they have the same stems, as `_0`."""
        stems: dict[str, set[str]] = {}
        rows: dict[str, set[int]] = {}
        wide = False
        for name, column in self.columns.items():
            match = _NUMBERED.fullmatch(name)
            if match is None or not column.shape:
                return []
            stems.setdefault(match[2], set()).add(match[1])
            rows.setdefault(match[1], set()).add(column.shape[0])
            wide |= len(column.shape) > 1
        alike = len(stems) > 1 and all(one == rows.keys() for one in stems.values())
        columns = not wide and all(len(some) == 1 for some in rows.values())  # of one table
        return sorted(stems, key=natural) if alike and not columns else []

    @contextmanager
    def below(self, group: str) -> Iterator[Arrays]:
        """Open the arrays of a group, by their names in it."""
        numbered = group.startswith("_") and group in self._numbers()
        yield _Below(self, "", group) if numbered else _Below(self, f"{group}/")


class _Below(Arrays):
    """Arrays whose names begin alike, or end alike."""

    def __init__(self, whole: Arrays, start: str, end: str = "") -> None:
        self.path, self._whole, self._start, self._end = whole.path, whole, start, end

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        found = self._whole.columns.items()
        return {
            self._short(name): column
            for name, column in found
            if name.startswith(self._start) and name.endswith(self._end)
        }

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        whole = [self._start + name + self._end for name in names]
        for block in self._whole.blocks(whole, ranges):
            yield {self._short(name): values for name, values in block.items()}

    def _short(self, name: str) -> str:
        return name.removeprefix(self._start).removesuffix(self._end)


class _Hdf5(Arrays):
    def __init__(
        self, path: Path, group: Any, found: Callable[[], tuple[Any, Mapping[str, str]]]
    ) -> None:
        self.path, self._group, self._find = path, group, found

    @cached_property
    def _datasets(self) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        with name_hdf5_damage(self.path):
            return self._find()

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        datasets, links = self._datasets
        linked = {
            n: _unread(f"is a link to {to!r}, which is not followed") for n, to in links.items()
        }
        return {**{name: self._describe(one) for name, one in datasets.items()}, **linked}

    def _describe(self, dataset: Any) -> NamedArray:
        dtype = hdf5_tree.dtype_of(dataset)
        if dtype is None or dataset.shape is None:
            return _unread("has no values, or a type that numpy does not have")
        if hdf5_tree.lies_elsewhere(dataset):
            return _unread("has its values in another file, which is not followed")
        if self._is_bytes(dataset, dtype):
            return NamedArray(dataset.shape, BYTES, _BYTES)
        text = dtype.kind == "S" or h5().check_string_dtype(dtype) is not None
        return _column(dataset.shape, np.dtype(object) if text else dtype, text=text)

    @staticmethod
    def _is_bytes(dataset: Any, dtype: np.dtype[Any]) -> bool:
        """Return True for rows of bytes: those of any lengths, opaque ones, and strings that are not text."""
        if len(dataset.shape) != 1 or not dataset.shape[0]:
            return False
        if dtype.kind == "S":
            return is_image(hdf5_tree.read_frames(dataset.id, 0, 1)[0])
        return (dtype.kind == "V" and not dtype.fields) or h5().check_vlen_dtype(dtype) == np.uint8

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        with name_hdf5_damage(self.path):
            whole = {n: self._read_whole(n) for n in names if self.columns[n].dtype == object}
            whole |= {n: self._read_whole(n) for n in names if not self.columns[n].shape}
            for start, stop in ranges:
                yield {
                    n: whole[n][start:stop] if n in whole else self._read_rows(n, start, stop)
                    for n in names
                }

    def _read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        dataset = self._datasets[0][name]
        if self.columns[name].dtype == BYTES:
            return _objects(hdf5_tree.read_frames(dataset.id, start, stop))
        return _native(read_rows(dataset, start, stop))

    def _read_whole(self, name: str) -> NDArray[Any]:
        dataset = self._datasets[0][name].id
        if self.columns[name].dtype == object:
            return np.atleast_1d(hdf5_tree.read_text(dataset, f"{self.path}: {name!r}"))
        return np.atleast_1d(_native(np.asarray(hdf5_tree.read_scalar(dataset))))

    def groups(self, parent: str) -> list[str]:
        with name_hdf5_damage(self.path):
            group = (
                hdf5_tree.open_group(self._group, tuple(parent.split("/")))
                if parent
                else self._group
            )
            names = (
                []
                if group is None
                else [name for name, to in hdf5_tree.members(group) if to is None]
            )
            kind = h5().h5o.TYPE_GROUP
            found = [n for n in names if h5().h5o.get_info(group, n.encode()).type == kind]
        return sorted(found, key=natural) or ([] if parent else self._numbers())

    @contextmanager
    def below(self, group: str) -> Iterator[Arrays]:
        with name_hdf5_damage(self.path):
            opened = hdf5_tree.open_group(self._group, tuple(group.split("/")))
        if opened is None:
            if group not in self._numbers():
                raise FormatError(f"{self.path} has no group {group!r}")
            yield _Below(self, "", group)
            return

        def find() -> tuple[Mapping[str, Any], Mapping[str, str]]:
            found = hdf5_tree.walk(opened)
            return {"/".join(place): h5().Dataset(one) for place, one in found}, {}

        yield _Hdf5(self.path, opened, find)


class _Streams(Arrays):
    """Arrays that are read in order, each as a stream of rows: npz, `.pt`, npy in folders."""

    def __init__(
        self,
        path: Path,
        names: Callable[[], list[str]],
        header: Callable[[str], NpyHeader],
        rows: Callable[[str], AbstractContextManager[NpyRows]],
        whole: Callable[[str], NDArray[Any]],
    ) -> None:
        self.path, self._names, self._header, self._rows, self._whole = (
            path,
            names,
            header,
            rows,
            whole,
        )

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        found = {}
        for name in self._names():
            header = self._header(name)
            text = header.dtype.kind == "U"
            found[name] = _column(
                header.shape, np.dtype(object) if text else header.dtype, text=text
            )
            if header.dtype.kind == "S" and len(header.shape) == 1:
                found[name] = NamedArray(header.shape, BYTES, _BYTES)
            if header.dtype.hasobject:
                found[name] = _unread("has Python objects, which are a pickle")
        return found

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        with ExitStack() as stack:
            streams: dict[str, NpyRows] = {}
            whole: Block = {}
            for name in names:
                header = self._header(name)
                if not header.shape or (header.order == "F" and len(header.shape) > 1):
                    whole[name] = np.atleast_1d(self._whole(name))
                else:
                    streams[name] = stack.enter_context(self._rows(name))
            done = 0
            for start, stop in ranges:
                block = {name: values[start:stop] for name, values in whole.items()}
                for name, stream in streams.items():
                    if start > done:
                        stream.skip(start - done)
                    block[name] = stream.read(stop - start)
                done = stop
                with name_damage(self.path):
                    yield {name: _native(block[name]) for name in names}


class _NpyFolder(_Streams):
    """The `.npy` files of a folder and its subfolders, named without the suffix; other files are groups."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, self._list, self._read_header, self._open, self._read)

    def _list(self) -> list[str]:
        found = sorted(file for file in self.path.rglob("*.npy") if is_file(file))
        return [file.relative_to(self.path).as_posix()[:-4] for file in found]

    @contextmanager
    def _stream(self, name: str) -> Iterator[tuple[Any, int, Path]]:
        file = self.path / f"{name}.npy"
        read_head(file)  # a file that may not be read, in our words
        with name_damage(file), file.open("rb") as stream:
            yield stream, file.stat().st_size, file

    def _read_header(self, name: str) -> NpyHeader:
        with self._stream(name) as (stream, _, file):
            return read_header(stream, where=str(file))

    @contextmanager
    def _open(self, name: str) -> Iterator[NpyRows]:
        with self._stream(name) as (stream, size, file):
            yield NpyRows(file, stream, size)

    def _read(self, name: str) -> NDArray[Any]:
        with self._stream(name) as (stream, size, file):
            return read_npy(stream, size=size, where=str(file))

    def groups(self, parent: str) -> list[str]:
        folder = self.path / parent
        names = [
            one.name for one in folder.iterdir() if is_folder(one) or one.name.endswith(SUFFIXES)
        ]
        return sorted(names, key=natural) or ([] if parent else self._numbers())

    @contextmanager
    def below(self, group: str) -> Iterator[Arrays]:
        if group in self._numbers():
            yield _Below(self, "", group)
            return
        with open_arrays(self.path / group) as arrays:
            yield arrays


class _Zarr(Arrays):
    def __init__(self, path: Path, arrays: Mapping[str, Any]) -> None:
        self.path, self._arrays = path, arrays

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        return {
            name: _unread(f"is encoded by {one.unknown_codec!r:.60}, which is not read")
            if one.unknown_codec is not None
            else _column(one.shape, one.dtype)
            for name, one in self._arrays.items()
        }

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        for start, stop in ranges:
            yield {name: self._arrays[name].read(start, stop) for name in names}


class _Table(Arrays):
    """The columns of Parquet or Arrow files whose rows follow each other."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path, self._files, self._rows = path, files, count_rows(files)
        self._fields: dict[str, str] = {}

    def _leaves(self, fields: Sequence[str] | None, ranges: Ranges) -> Iterator[dict[str, Any]]:
        for table in iter_ranges(self._files, ranges, fields):
            leaves = list(table_leaves(table))
            self._fields |= {"/".join(leaf.path): leaf.path[0] for leaf in leaves}
            yield {"/".join(leaf.path): leaf for leaf in leaves}

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        found: dict[str, NamedArray] = {}
        for leaves in self._leaves(None, [(0, min(self._rows, _DESCRIBED))]):
            for name, leaf in leaves.items():
                text = "string" in leaf.kind
                if "binary" in leaf.kind and leaf.values is not None:
                    found[name] = NamedArray((self._rows,), BYTES, _BYTES)
                elif leaf.values is None or (leaf.values.dtype == object and not text):
                    found[name] = _unread(f"is {leaf.kind:.60}, or its rows differ in length")
                else:
                    shape = (self._rows, *leaf.values.shape[1:])
                    found[name] = _column(shape, leaf.values.dtype, text=text)
        return found

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        expected = {name: self.columns[name] for name in names}
        for leaves in self._leaves([self._fields[name] for name in names], ranges):
            for name, column in expected.items():
                leaf = leaves[name]
                values: Any = leaf.values
                if column.dtype == BYTES and values is not None and leaf.nulls is None:
                    continue
                if values is None or (values.shape[1:], values.dtype) != (
                    column.shape[1:],
                    column.dtype,
                ):
                    raise FormatError(f"{self.path}: the rows of {name!r} differ in shape or type")
                if leaf.nulls is not None and values.dtype.kind not in "fO":
                    raise FormatError(f"{self.path}: {name!r} has rows without a value")
            yield {name: _native(leaves[name].values) for name in names}


class _Csv(Arrays):
    """A table of text; see `_Cells` for the dtype of a column."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        found: dict[str, _Cells] = {}
        rows = 0
        for part in read_csv(self.path):
            for name, cells in part.items():
                found.setdefault(name, _Cells()).add(cells)
            rows += len(next(iter(part.values())))
        return {name: cells.describe(rows) for name, cells in found.items()}

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        parts, done = read_csv(self.path, names), 0
        cells: dict[str, list[str]] = {name: [] for name in names}
        for start, stop in ranges:
            while done + len(cells[names[0]]) < stop:
                for name, more in next(parts).items():
                    cells[name] += more
            block = {}
            for name in names:
                some = cells[name][max(0, start - done) : stop - done]
                del cells[name][: stop - done]
                dtype = self.columns[name].dtype
                if dtype == bool:
                    block[name] = np.array([cell.strip().lower() == "true" for cell in some], bool)
                elif dtype == object:
                    block[name] = _objects(some)
                else:
                    filled = [cell if cell.strip() else "nan" for cell in some]
                    block[name] = np.array(filled, np.str_).astype(dtype)
            done = stop
            yield block


_NUMBERED = re.compile(r"(.*?[^/])(_[0-9]{1,9})")
_BYTES = "has rows of bytes that are neither JPEG nor PNG images"
_CSV = [np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64), np.dtype(object)]
_TEXT = 3
_PADDED = re.compile(r"^[ \t]*[+-]?0[0-9]", re.MULTILINE)
_LARGE = re.compile(r"\s*[+-]?[0-9]{16,}\s*")
_DIGITS, _SHOWN = 300, 40


class _Cells:
    """The cells of a column of text so far, by which its dtype is decided.

    They are numbers if they read as such and are not changed by it: integers with leading zeros (`007`)
    or underscores are text, and one that the dtype does not hold is a problem.
    """

    def __init__(self) -> None:
        self._kind, self._padded, self._whole = 0, False, True
        self._beyond = self._inexact = ""

    def add(self, cells: Sequence[str]) -> None:
        """Take note of more cells."""
        self._kind, values = _csv_kind(cells, self._kind)
        if values is None:
            return
        lines = "\n".join(cells)
        self._whole = self._whole and not any(sign in lines for sign in ".eE")
        if self._whole and not self._padded:
            self._padded = "_" in lines or _PADDED.search(lines) is not None
        if not (np.abs(values.astype(np.float64)) >= 2.0**53).any():
            return
        for cell in map(str.strip, filter(_LARGE.fullmatch, cells)):
            number = int(cell[:_DIGITS])  # of more digits no float is near
            said = cell if len(cell) <= _SHOWN else f"{cell[:_SHOWN]}…"
            if not -(1 << 63) <= number < 1 << 63:
                self._beyond = self._beyond or said
            if len(cell) > _DIGITS or int(float(number)) != number:
                self._inexact = self._inexact or said

    def describe(self, rows: int) -> NamedArray:
        """Return the column of all cells."""
        kind = _TEXT if self._padded and self._whole else self._kind
        problem = ""
        if kind != _TEXT and self._beyond and (self._whole or self._inexact):
            problem = f"has {self._beyond}, an integer beyond int64"
        elif _CSV[kind] == np.float64 and self._inexact:
            problem = f"has {self._inexact} among other numbers, which float64 does not hold"
        return NamedArray((rows,), _CSV[kind], problem)


def _csv_kind(cells: Sequence[str], least: int) -> tuple[int, NDArray[Any] | None]:
    """Return the first of `_CSV`, from number `least` on, that has all cells as values, and numbers."""
    text = np.array([cell if cell.strip() else "nan" for cell in cells], np.str_)
    if least == 0 and set(np.char.lower(np.char.strip(text)).tolist()) <= {"true", "false"}:
        return 0, None
    for kind in range(max(1, least), _TEXT):
        try:
            return kind, text.astype(_CSV[kind])
        except (ValueError, OverflowError):
            continue
    return _TEXT, None


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """Open a file, or a folder of `.npy` files, of other files, of zarr or of `datasets`, by its content.

    Raises:
        FormatError: It is of another kind, or damaged; later also where a block is.
        NotFoundError, AccessError, MissingDependencyError: It cannot be read.
    """
    if is_saved(path):
        yield _Table(path, saved_files(path))
        return
    if is_folder(path) and not is_zarr(path):
        yield _NpyFolder(path)
        return
    head = b"" if is_folder(path) else read_head(path)
    if is_zarr(path):
        with open_zarr(path) as arrays:
            yield _Zarr(path, arrays)
    elif head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        with open_zip(path, budget=_BUDGET) as (archive, files):
            if not files or any(name.endswith(".npy") for name in files):
                yield npz_arrays(NpzArrays(path, archive, files))
            elif any(name.rpartition("/")[2] == "data.pkl" for name in files):
                pt = TorchTensors(path, archive, files)
                yield _Streams(path, lambda: list(pt.found), pt.header, pt.rows, pt.read)
            else:
                with open_zarr(path) as arrays:
                    yield _Zarr(path, arrays)
    elif head.startswith((PARQUET, *ARROW)):
        yield _Table(path, [path])
    elif re.search(r"\.(csv|tsv)(\.gz)?\Z", path.name.lower()):
        yield _Csv(path)
    elif is_hdf5(path):
        with open_hdf5(path) as file:
            yield _Hdf5(path, file.id, lambda: hdf5_tree.datasets_in(file))
    else:
        described, advice = defect_of(head) or (describe_head(head), READ)
        raise FormatError(f"{path} has no arrays that are read: {described}", hint=advice)


def npz_arrays(npz: NpzArrays) -> Arrays:
    """Return the arrays of an open npz file."""
    return _Streams(npz.path, lambda: list(npz), npz.header, npz.rows, npz.__getitem__)


def _unread(problem: str) -> NamedArray:
    return NamedArray((), np.dtype(object), problem)


def _column(shape: tuple[int, ...], dtype: np.dtype[Any], *, text: bool = False) -> NamedArray:
    if not text and (dtype.kind not in "biuf" or dtype.itemsize > 8):
        return NamedArray(
            shape, dtype, f"is {dtype}; expected real numbers of at most 8 bytes, or bool"
        )
    return NamedArray(shape, dtype.newbyteorder("="))


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array of objects `[n]`, whatever they are."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in this machine's byte order, and text as objects."""
    text = values.dtype.kind == "U"
    return values.astype(object if text else values.dtype.newbyteorder("="), copy=False)
