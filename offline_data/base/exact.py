"""Numbers in another dtype: which change, and whether a dtype has every value of another."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_BLOCK = 1 << 18  # numbers that `first_changed` compares at once
_NUMBERS = "biufc"


def holds(wide: DTypeLike, dtype: DTypeLike) -> bool:
    """Return True if `wide` has every value of `dtype`; numpy says so of float64 and int64, too.

    Example:
        >>> holds("float64", "int32"), holds("float64", "int64"), np.can_cast("int64", "float64")
        (True, False, True)
    """
    wide, dtype = np.dtype(wide), np.dtype(dtype)
    if dtype.kind in "iu" and wide.kind in "fc":
        bits = 8 * dtype.itemsize - (dtype.kind == "i")
        return bool(bits <= np.finfo(wide).nmant + 1)
    return bool(np.can_cast(dtype, wide, "safe"))


def changes(values: NDArray[Any], cast: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers `cast`, the same in another dtype, does not give back; NaN is equal to NaN.

    Example:
        >>> whole = np.array([2**53, 2**53 + 1])
        >>> changes(whole, whole.astype(np.float64)).tolist()
        [False, True]
    """
    with np.errstate(all="ignore"):
        back = (cast.real if values.dtype.kind != "c" else cast).astype(values.dtype)
        wrong = np.asarray((back != values) & ~(np.isnan(back) & np.isnan(values)))
    kinds = {values.dtype.kind, cast.dtype.kind}
    if kinds <= set("iu"):  # integers of one size survive a round trip through the other sign
        wrong |= (cast < 0) != (values < 0)
    elif kinds & set("iu") and "b" not in kinds:
        # A round trip may hide the loss: -2**63 by way of a float16 -inf, and, on processors that
        # saturate, 2**63 - 1 by way of 2**63.
        whole, floats = (values, cast) if values.dtype.kind in "iu" else (cast, values)
        bits = 8 * whole.dtype.itemsize - (whole.dtype.kind == "i")
        wide = floats.real.astype(np.float64)
        wrong |= ~np.isfinite(wide) | (wide >= 2.0**bits)
    return wrong


def exact(values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any] | None:
    """Return numbers in another dtype; None if one would change, or they are not numbers.

    Example:
        >>> exact(np.array([1.0, 2.0]), "uint8"), exact(np.array([1.5]), "uint8")
        (array([1, 2], dtype=uint8), None)
    """
    dtype = np.dtype(dtype)
    if values.dtype == dtype:
        return values
    if not {values.dtype.kind, dtype.kind} <= set(_NUMBERS):
        return None
    with np.errstate(all="ignore"):
        real = values.dtype.kind == "c" and dtype.kind != "c"
        cast = (values.real if real else values).astype(dtype)
    return cast if holds(dtype, values.dtype) or not changes(values, cast).any() else None


def first_changed(values: Any, dtype: DTypeLike) -> Any:
    """Return the first of many numbers, `[n, …]` that are sliced, that a cast changes; None: none does.

    Example:
        >>> first_changed(np.array([[1, 2**60 + 1]]), "float64")
        1152921504606846977
    """
    if holds(dtype, values.dtype):
        return None
    rows = max(1, _BLOCK // max(1, prod(values.shape[1:])))
    for begin in range(0, len(values), rows):
        block = np.asarray(values[begin : begin + rows])
        with np.errstate(all="ignore"):
            wrong = changes(block, block.astype(dtype))
        if wrong.any():
            return block[wrong][0].item()
    return None


def rounded_integer(values: Any, array: NDArray[Any]) -> int | None:
    """Return an integer of nested sequences that the array numpy made of them rounds; None: none.

    Example:
        >>> mixed = [2**53 + 1, 0.5]
        >>> rounded_integer(mixed, np.asarray(mixed))
        9007199254740993
    """
    if isinstance(values, np.ndarray) or array.dtype.kind not in "fc":
        return None
    if not (np.abs(array) >= 2.0**53).any():  # numpy makes smaller floats of no 64-bit integers
        return None
    pairs = zip(np.asarray(values, object).flat, array.real.flat, strict=True)
    whole = (pair for pair in pairs if isinstance(pair[0], (int, np.integer)))
    return next((int(given) for given, stored in whole if int(stored) != given), None)
