"""`.npy` files: one array each, read or mapped, and never more than their bytes can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError
from offline_data.heads import check_magic
from offline_data.readers.dtypes import array_over, count_bytes
from offline_data.readers.npy_header import MAGIC, NpyHeader, npy_errors, read_header

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

_BLOCK = 1 << 20


def read_npy(stream: IO[bytes], *, size: int, where: str, objects: bool = False) -> NDArray[Any]:
    """Read the array of a `.npy` file.

    Args:
        stream: The file from its first byte to its last.
        size: Bytes it has at most; an array that would have more is refused before memory is
            taken for it.
        where: What it is, for messages: the file, and the member of an archive.
        objects: Whether an array of objects is read, as `pickles.loads` does.

    Returns:
        The array, in its own memory, of the byte order and axis order of the file. Of objects it
        is read-only, and what `numpy.save` was given may be in it: a dict is `.item()` of an array
        of no dimensions.

    Raises:
        FormatError: It is no `.npy` file, is cut short, has bytes after its array, or has objects
            that are not asked for or not plain.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.save(file, np.array([[1001, 1002], [1003, 1004]], dtype="<i4"))
        >>> data = file.getvalue()
        >>> read_npy(io.BytesIO(data), size=len(data), where="action.npy")
        array([[1001, 1002],
               [1003, 1004]], dtype=int32)
    """
    header = read_header(stream, where=where)
    with npy_errors(where):
        if header.dtype.hasobject and objects:
            return _read_objects(stream, header, size - header.size, where)
        raw = np.empty(_count(header, size, where), np.uint8)
        _fill(stream, raw.data)
        return array_over(raw, header.shape, header.dtype, fortran=header.fortran)


def open_npy(path: Path) -> np.memmap[Any, Any]:
    """Map the array of a `.npy` file, read-only; no value is read before it is used.

    Text is not looked at: an item that holds no characters fails where it is used.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        FormatError: It is no `.npy` file, has objects, or fewer or more bytes than its array.
    """
    check_magic(path, MAGIC, "a .npy file")
    size = path.stat().st_size
    with npy_errors(str(path)), path.open("rb") as file:
        header = read_header(file, where=str(path))
        expected = header.size + _count(header, size, str(path))
        if expected != size:
            raise ValueError(f"{size - expected} bytes follow its array")
        return np.memmap(
            path,
            header.dtype,
            "r",
            header.size,
            header.shape,
            "F" if header.fortran else "C",
        )


def _count(header: NpyHeader, size: int, where: str) -> int:
    """Return the bytes of the values; raises where they are objects or cannot be there."""
    if header.dtype.hasobject:
        raise FormatError(
            f"{where} has an array of Python objects, which is a pickle; expected plain items",
            hint="read_npy(…, objects=True) reads those of arrays, numbers and plain containers",
        )
    count = count_bytes(header.shape, header.dtype)
    if header.size + count > size:
        raise ValueError(
            f"its array {list(header.shape)} of {header.dtype} takes {count} bytes; "
            f"at most {size - header.size} follow its header"
        )
    return count


def _fill(stream: IO[bytes], view: memoryview) -> None:
    """Read into `view` what is left of the stream, which must be as long."""
    done = 0
    while block := stream.read(min(_BLOCK, len(view) - done + 1)):
        if done + len(block) > len(view):
            raise ValueError("bytes follow its array")
        view[done : done + len(block)] = block
        done += len(block)
    if done < len(view):
        raise ValueError(f"its array ends after {done} of {len(view)} bytes")


def _read_objects(stream: IO[bytes], header: NpyHeader, size: int, where: str) -> NDArray[Any]:
    from offline_data.readers.pickles import load

    value = load(stream, size=size, where=where)
    if type(value) is not np.ndarray or (value.shape, value.dtype) != (header.shape, header.dtype):
        raise ValueError("its pickle does not hold the array of its header")
    return value
