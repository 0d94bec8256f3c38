"""`.npy` and `.npz` files, with sizes checked before memory is allocated.

Also compressed `.npy` files, read as a stream, some rows at a time.
"""

from __future__ import annotations

import ast
import math
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, NotFoundError
from offline_data.raw.archive import Member, name_damage, open_members, open_zip
from offline_data.raw.restricted_pickle import check_text, load, plain_dtype

_BLOCK = 1 << 20
_LONGEST_HEADER = 10_000  # bytes of a header, which is parsed as a Python literal; numpy's limit
_SUFFIX = ".npy"


@dataclass(frozen=True)
class NpyHeader:
    """Header of a `.npy` file; `size` is the bytes before the values, `order` that of the axes."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    """Of one item; object where the values are a pickle."""
    size: int


def read_npy(stream: IO[bytes], *, size: int, where: str, objects: bool = False) -> NDArray[Any]:
    """Read the array of a `.npy` file, in its own memory, of the file's byte order and axis order.

    `size` is the maximum number of bytes: a larger array is rejected before memory is allocated.
    With `objects`, arrays of objects are read as `restricted_pickle.loads` does; a dict saved with
    `numpy.save` is `.item()` of an array without dimensions.

    Raises:
        FormatError: It is not a `.npy` file, is truncated, has trailing bytes, or has objects that
            are not allowed.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.save(file, np.array([[1001, 1002], [1003, 1004]], dtype="<i4"))
        >>> read_npy(io.BytesIO(file.getvalue()), size=1000, where="action.npy").tolist()
        [[1001, 1002], [1003, 1004]]
    """
    header = read_header(stream, where=where)
    left = size - header.size
    if header.dtype.hasobject:
        if not objects:
            raise FormatError(
                f"{where} has an array of Python objects, which is a pickle; expected plain items",
                hint="read_npy(…, objects=True) reads those of arrays, numbers and plain containers",
            )
        value = load(stream, size=left, where=where)
        if type(value) is not np.ndarray or value.dtype != object or value.shape != header.shape:
            raise FormatError(f"{where}: its pickle does not hold the array of its header")
        return value
    nbytes = math.prod(header.shape) * header.dtype.itemsize
    if nbytes > left:
        raise FormatError(
            f"{where} is damaged: its array {list(header.shape)} of {header.dtype} takes "
            f"{nbytes} bytes; at most {left} follow its header"
        )
    raw, done = np.empty(nbytes, np.uint8), 0
    with name_damage(where):
        while block := stream.read(min(_BLOCK, nbytes - done + 1)):
            if done + len(block) > nbytes:
                raise ValueError("bytes follow its array")
            raw.data[done : done + len(block)] = block
            done += len(block)
        if done < nbytes:
            raise ValueError(f"its array ends after {done} of {nbytes} bytes")
        array: NDArray[Any] = np.ndarray(header.shape, header.dtype, raw, order=header.order)
        check_text(array)
    return array


def read_header(stream: IO[bytes], *, where: str) -> NpyHeader:
    """Read the header, up to the first value; raises `FormatError`, also for unsafe dtypes."""
    with name_damage(where):
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
        try:
            fields = ast.literal_eval(text.replace("L,", ",").replace("L)", ")"))  # of Python 2
        except (ValueError, SyntaxError):  # which show the address of an object
            fields = None
        if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
            raise ValueError("its header is not that of an array")
        shape = fields["shape"]
        lengths = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not lengths or len(shape) > 32 or math.prod(shape) >= 1 << 62:
            raise ValueError(f"its shape is {shape!r:.80}")
        order: Literal["C", "F"] = "F" if fields["fortran_order"] else "C"
        return NpyHeader(shape, order, plain_dtype(fields["descr"]), 8 + width + length)


@contextmanager
def open_rows(path: Path, *, budget: int) -> Iterator[NpyRows]:
    """Open a `.npy` file that is compressed by gzip, xz or bzip2, to read its rows in order.

    `budget` is the maximum number of bytes when decompressed, with the header.

    Raises:
        FormatError: It is not such a file, or its values are objects, or not in C order.
        NotFoundError, AccessError: There is no such file, or it may not be read.

    Example:
        >>> import gzip, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "action.gz")
        ...     with gzip.open(path, "wb") as file:
        ...         np.save(file, np.array([1001, 1002, 1003]))
        ...     with open_rows(path, budget=1000) as rows:
        ...         rows.skip(1)
        ...         rows.read(2)
        array([1002, 1003])
    """
    members = cast("Generator[Member, None, None]", open_members(path, budget=budget))
    with closing(members):
        yield NpyRows(path, next(members).stream, budget)


class NpyRows:
    """Rows of an open `.npy` stream, each read once, in order (of a 0-d array one row): `left` are to come."""

    def __init__(
        self, path: Path, stream: IO[bytes], budget: int, header: NpyHeader | None = None
    ) -> None:
        self._where, self._stream = str(path), stream
        self.header = header or read_header(stream, where=self._where)
        shape, dtype = self.header.shape, self.header.dtype
        if dtype.hasobject or (self.header.order == "F" and len(shape) > 1):
            raise FormatError(f"{path} has objects, or columns one after the other; expected rows")
        if math.prod(shape) * dtype.itemsize > budget:
            raise FormatError(
                f"{path} is damaged: it declares an array {list(shape)} of {dtype}; expected at "
                f"most {budget:,} bytes"
            )
        self.left = shape[0] if shape else 1

    def read(self, count: int) -> NDArray[Any]:
        """Read rows `[count, …]`; raises `FormatError` if there are fewer, or damaged ones."""
        rows = np.empty((count, *self.header.shape[1:]), self.header.dtype)
        self.read_into(rows)
        return rows

    def read_into(self, rows: NDArray[Any]) -> None:
        """Fill a contiguous array with the next rows; raises as `read` does."""
        if len(rows) > self.left:
            raise FormatError(f"{self._where} has {self.header.shape[:1]} rows; more are expected")
        self.left -= len(rows)
        view, done = memoryview(rows.reshape(-1).view(np.uint8).data), 0
        with name_damage(self._where):
            while done < len(view):
                count = self._stream.readinto(view[done:])  # type: ignore[attr-defined]
                if not count:
                    raise FormatError(f"{self._where} is damaged: it ends inside its array")
                done += count

    def skip(self, count: int) -> None:
        """Skip rows, some megabytes at a time."""
        size = max(1, math.prod(self.header.shape[1:]) * self.header.dtype.itemsize)
        scratch = self.read(min(count, max(1, _BLOCK // size)))
        count -= len(scratch)
        while count:
            some = scratch[:count]
            self.read_into(some)
            count -= len(some)

    def finish(self) -> None:
        """Read to the end, checking the checksum; raises `FormatError` for trailing bytes."""
        self.skip(self.left)
        with name_damage(self._where):
            rest = self._stream.read(1)
        if rest:
            raise FormatError(f"{self._where} is damaged: bytes follow its array")


@contextmanager
def open_npz(path: Path, *, budget: int, content: IO[bytes] | None = None) -> Iterator[NpzArrays]:
    """Open a `.npz` file, whatever its name, whose arrays together have at most `budget` bytes.

    The block gets a mapping of names to arrays, each read when requested; `header(name)` reads dtype and
    shape alone. With `content`, these are the file's bytes, and `path` is only what messages call it.

    Raises:
        NotFoundError, AccessError: There is no such file; it may not be read.
        IntegrityError: It is not a zip archive, is damaged, has more bytes, or names that are not paths
            below a folder; also where an array is read, which may not have Python objects.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "episode.npz")
        ...     np.savez_compressed(path, reward=np.array([1001, 1002], np.float32))
        ...     with open_npz(path, budget=1000) as arrays:
        ...         print(list(arrays), arrays.header("reward").shape, arrays["reward"])
        ['reward'] (2,) [1001. 1002.]
    """
    with open_zip(path, budget=budget, content=content) as (archive, files):
        yield NpzArrays(path, archive, files)


class NpzArrays(Mapping[str, "NDArray[Any]"]):
    """The arrays of an open `.npz` file by name, in the order of its directory.

    Every access reads the array anew; one thread at a time. `others` names members that are not arrays.
    """

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, files: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self.path, self._archive = path, archive
        self._members = {
            n.removesuffix(_SUFFIX): f for n, f in files.items() if n.endswith(_SUFFIX)
        }
        self.others = tuple(name for name in files if not name.endswith(_SUFFIX))

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

    @contextmanager
    def rows(self, name: str) -> Iterator[NpyRows]:
        """Open an array to read its rows in order, also along with other arrays of the file.

        After the last row, the end of the block raises `FormatError` for trailing bytes.
        """
        with ExitStack() as stack:
            with name_damage(where := f"{self.path}, array {name!r}"):
                stream = stack.enter_context(self._archive.open(self._members[name]))
            rows = NpyRows(Path(where), stream, self._members[name].file_size)
            yield rows
            if not rows.left:
                rows.finish()

    def header(self, name: str) -> NpyHeader:
        """Return shape and item type of an array without reading its values."""
        with self._open(name) as (stream, where):
            return read_header(stream, where=where)

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], str]]:
        if name not in self._members:
            there = ", ".join(self._members) or "none"
            raise NotFoundError(f"{self.path} has no array {name!r}; arrays: {there}")
        where = f"{self.path}, array {name!r}"
        with name_damage(where), self._archive.open(self._members[name]) as stream:
            yield stream, where


def create_array(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> IO[bytes]:
    """Open a new array of a `.npz` file, to which the bytes of its values are written in C order.

    Example:
        >>> import io
        >>> file, values = io.BytesIO(), np.array([1001, 1002], "<i4")
        >>> with zipfile.ZipFile(file, "w") as archive:
        ...     with create_array(archive, "action", values.shape, values.dtype) as array:
        ...         _ = array.write(values.data)
        >>> np.load(io.BytesIO(file.getvalue()))["action"]
        array([1001, 1002], dtype=int32)
    """
    write: Callable[..., None] = npy_format.write_array_header_2_0
    file = archive.open(f"{name}{_SUFFIX}", "w", force_zip64=True)
    about = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    write(file, about)
    return file
