"""`.npy` and `.npz` files: arrays of plain items, and never more than their bytes can hold."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy_format

from offline_data.errors import FormatError, NotFoundError
from offline_data.files import check_magic
from offline_data.readers.archive import damage_named, open_zip
from offline_data.readers.restricted_pickle import check_text, load, plain_dtype

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

_BLOCK = 1 << 20
_LONGEST_HEADER = 10_000
"""Bytes of a header, which is parsed as a Python literal; numpy's own limit."""
_SUFFIX = ".npy"


@dataclass(frozen=True)
class NpyHeader:
    """Header of a `.npy` file."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    """`F` where the first axis changes fastest."""
    dtype: np.dtype[Any]
    """Of one item; object where the values are a pickle."""
    size: int
    """Bytes before the values."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values, however many they are."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy(stream: IO[bytes], *, size: int, where: str, objects: bool = False) -> NDArray[Any]:
    """Read the array of a `.npy` file, in its own memory, of the file's byte order and axis order.

    Args:
        stream: The file from its first byte to its last.
        size: Bytes it has at most; an array that would have more is refused before memory is
            taken for it.
        where: What it is, for messages: the file, and the member of an archive.
        objects: Whether an array of objects is read, as `restricted_pickle.loads` does; a dict that
            `numpy.save` was given is `.item()` of one of no dimensions.

    Raises:
        FormatError: It is no `.npy` file, is cut short, has bytes after its array, or has objects
            that are not asked for or not plain.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.save(file, np.array([[1001, 1002], [1003, 1004]], dtype="<i4"))
        >>> read_npy(io.BytesIO(file.getvalue()), size=1000, where="action.npy").tolist()
        [[1001, 1002], [1003, 1004]]
    """
    header = read_header(stream, where=where)
    if header.dtype.hasobject and objects:
        value = load(stream, size=size - header.size, where=where)
        if type(value) is not np.ndarray or value.dtype != object or value.shape != header.shape:
            raise FormatError(f"{where}: its pickle does not hold the array of its header")
        return value
    _check_size(header, size, where)
    raw = np.empty(header.nbytes, np.uint8)
    _fill(stream, raw.data, where)
    array: NDArray[Any] = np.ndarray(header.shape, header.dtype, raw, order=header.order)
    with damage_named(where):
        check_text(array)
    return array


def open_npy(path: Path) -> np.memmap[Any, Any]:
    """Map the array of a `.npy` file, read-only; no value is read before it is used.

    Raises:
        NotFoundError, AccessError: There is no such file, or it may not be read.
        FormatError: It is no `.npy` file, has objects, or fewer or more bytes than its array.
    """
    check_magic(path, npy_format.MAGIC_PREFIX, "a .npy file")
    size = path.stat().st_size
    with path.open("rb") as file:
        header = read_header(file, where=str(path))
    _check_size(header, size, str(path))
    if size != header.size + header.nbytes:
        more = size - header.size - header.nbytes
        raise FormatError(f"{path} is damaged: {more} bytes follow its array")
    with damage_named(path):
        mapped: np.memmap[Any, Any] = np.memmap(
            path, header.dtype, "r", header.size, header.shape, header.order
        )
        return mapped


def read_header(stream: IO[bytes], *, where: str) -> NpyHeader:
    """Read the header of a `.npy` file and leave the stream at the first value.

    Raises `FormatError` where it is damaged, or names an item type that is not plain.
    """
    with damage_named(where):
        major, _minor = version = npy_format.read_magic(stream)
        if version not in {(1, 0), (2, 0), (3, 0)}:
            raise ValueError(f"it has format version {version}")
        width = 2 if major == 1 else 4
        length = int.from_bytes(stream.read(width), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header has {length} bytes")
        raw = stream.read(length)
        if len(raw) < length:
            raise ValueError("it is cut short")
        text = raw.decode("latin-1" if major < 3 else "utf-8")
        fields = ast.literal_eval(text.replace("L,", ",").replace("L)", ")"))  # of Python 2
        if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
            raise ValueError("its header is not that of an array")
        shape = fields["shape"]
        lengths = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not lengths or len(shape) > 32 or math.prod(shape) >= 1 << 62:
            raise ValueError(f"its shape is {shape!r:.80}")
        dtype = plain_dtype(fields["descr"])
        order: Literal["C", "F"] = "F" if fields["fortran_order"] else "C"
        return NpyHeader(shape, order, dtype, 8 + width + length)


@contextmanager
def open_npz(path: Path, *, budget: int) -> Iterator[NpzArrays]:
    """Open a `.npz` file, whatever its name, whose arrays together have at most `budget` bytes.

    Raises:
        OfflineDataError: What `archive.open_zip` raises.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "episode.npz")
        ...     np.savez_compressed(path, reward=np.array([1001, 1002], np.float32))
        ...     with open_npz(path, budget=1000) as arrays:
        ...         print(list(arrays), arrays.header("reward").shape, arrays["reward"])
        ['reward'] (2,) [1001. 1002.]
    """
    with open_zip(path, budget=budget) as archive:
        yield NpzArrays(archive, path)


class NpzArrays(Mapping[str, "NDArray[Any]"]):
    """The arrays of an open `.npz` file by name, in the order of its directory.

    Every access reads the array anew; one thread at a time. `others` names members that are no arrays.
    """

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive, self._path = archive, path
        files = [info for info in archive.infolist() if not info.is_dir()]
        arrays = [info for info in files if info.filename.endswith(_SUFFIX)]
        self._members = {info.filename.removesuffix(_SUFFIX): info for info in arrays}
        self.others = tuple(x.filename for x in files if not x.filename.endswith(_SUFFIX))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read one array; raises `NotFoundError` or `FormatError`, which names file and array."""
        with self._open(name) as (stream, where):
            return read_npy(stream, size=self._members[name].file_size, where=where)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an array, or `default` where there is none of this name."""
        return self[name] if name in self._members else default

    def header(self, name: str) -> NpyHeader:
        """Return shape and item type of an array without reading its values."""
        with self._open(name) as (stream, where):
            return read_header(stream, where=where)

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], str]]:
        if name not in self._members:
            there = ", ".join(self._members) or "none"
            raise NotFoundError(f"{self._path} has no array {name!r}; arrays: {there}")
        where = f"{self._path}, array {name!r}"
        with damage_named(where), self._archive.open(self._members[name]) as stream:
            yield stream, where


def _check_size(header: NpyHeader, size: int, where: str) -> None:
    if header.dtype.hasobject:
        raise FormatError(
            f"{where} has an array of Python objects, which is a pickle; expected plain items",
            hint="read_npy(…, objects=True) reads those of arrays, numbers and plain containers",
        )
    if header.size + header.nbytes > size:
        raise FormatError(
            f"{where} is damaged: its array {list(header.shape)} of {header.dtype} takes "
            f"{header.nbytes} bytes; at most {size - header.size} follow its header"
        )


def _fill(stream: IO[bytes], view: memoryview, where: str) -> None:
    """Read into `view` what is left of the stream, which must be as long."""
    done = 0
    with damage_named(where):
        while block := stream.read(min(_BLOCK, len(view) - done + 1)):
            if done + len(block) > len(view):
                raise ValueError("bytes follow its array")
            view[done : done + len(block)] = block
            done += len(block)
        if done < len(view):
            raise ValueError(f"its array ends after {done} of {len(view)} bytes")
