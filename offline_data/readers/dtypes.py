"""Item types that a file may name: numbers, text, times, raw bytes and records of them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE = re.compile(r"[<>=|]?(?:[biufcSUV][0-9]{1,10}|[mM]8(?:\[[0-9]{0,9}[a-zA-Zμ]{1,7}\])?)")
_OBJECT = re.compile(r"[<>=|]?O[0-9]?")
_DIMENSIONS = 32
_LAST_CHARACTER = 0x10FFFF


def plain_dtype(code: str) -> np.dtype[Any]:
    """Return the numpy dtype of one type string, as `.npy` headers and pickles write it.

    Args:
        code: Kind and size with or without byte order: `<f4`, `b1`, `U12`, `M8[ns]`, `O`.

    Raises:
        ValueError: Another form, which numpy might read as something else than one type, or a size
            or unit that the kind does not have.

    Example:
        >>> plain_dtype(">i2")
        dtype('>i2')
        >>> plain_dtype("f4,(100000,100000)O")
        Traceback (most recent call last):
        ...
        ValueError: 'f4,(100000,100000)O' is no plain item type
    """
    if _OBJECT.fullmatch(code):
        return np.dtype(object)
    if not _CODE.fullmatch(code):
        raise ValueError(f"{code[:80]!r} is no plain item type")
    try:
        return np.dtype(code)
    except TypeError as error:
        raise ValueError(f"{code!r} is no item type of numpy here") from error


def check_shape(shape: object) -> tuple[int, ...]:
    """Return `shape` if it is a tuple of at most 32 lengths, each at least 0.

    Raises:
        ValueError: It is not.
    """
    if type(shape) is not tuple or len(shape) > _DIMENSIONS:
        raise ValueError(f"a shape of {_DIMENSIONS} whole numbers at most is expected")
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in shape):
        raise ValueError("a shape has lengths that are no whole numbers from 0 on")
    return cast("tuple[int, ...]", shape)


def count_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array's values, however many they are.

    Raises:
        ValueError: The item type is itself an array, which numpy would add to the shape.

    Example:
        >>> count_bytes((10**15, 3), np.dtype("f8"))
        24000000000000000
    """
    if dtype.subdtype is not None:
        raise ValueError(f"the item type {dtype} is itself an array")
    return math.prod(shape) * dtype.itemsize


def array_over(
    raw: bytes | bytearray | memoryview | NDArray[np.uint8],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    fortran: bool = False,
) -> NDArray[Any]:
    """Return the array whose values lie in `raw`, which is not copied.

    Args:
        raw: Exactly the bytes of the values; the array can be written to if it can.
        shape: Its shape.
        dtype: Its item type, without objects.
        fortran: Whether the first axis changes fastest.

    Raises:
        ValueError: Too few or too many bytes, or text with numbers that are no characters.
    """
    expected = count_bytes(shape, dtype)
    if len(raw) != expected:
        raise ValueError(f"an array {list(shape)} of {dtype} has {len(raw)} bytes, not {expected}")
    array: NDArray[Any] = np.ndarray(shape, dtype, raw, order="F" if fortran else "C")
    check_text(array)
    return array


def check_text(array: NDArray[Any]) -> None:
    """Raise `ValueError` where a text item holds a number that is no character.

    Such items make numpy fail later, wherever they are first looked at.
    """
    for name in array.dtype.names or ():
        check_text(array[name])
    if array.dtype.kind == "U" and array.dtype.itemsize and array.size:
        codes = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
        if array.ravel(order="K").view(codes).max() > _LAST_CHARACTER:
            raise ValueError("text has a number that is no character")
