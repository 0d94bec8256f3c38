"""Numbers as another type: rounded to a floating-point one, exact in every other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_BLOCK = 1 << 20
"""Bytes of the input that are looked at together: they stay in the processor's cache."""


def narrowed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return numbers as another type, or None where one of them cannot be that.

    Rounded to the nearest number of a floating-point or complex type, where a finite value must
    stay finite and an imaginary part cannot go; integers and bool hold the very same value.

    Args:
        values: `[n, …]` numbers or bools.
        dtype: What they are to be.

    Returns:
        `[n, …]`; `values` themselves where they are of the type already.

    Example:
        >>> narrowed(np.array([0.1]), np.dtype("float32")).item()
        0.10000000149011612
        >>> narrowed(np.array([0.5]), np.dtype("int64")) is None
        True
    """
    if values.dtype == dtype:
        return values
    safe = np.can_cast(values.dtype, dtype, "safe")
    cast = np.empty(values.shape, dtype)
    for rows in _blocks(values):
        put(values[rows], cast[rows])
        if not safe and lost(values[rows], cast[rows]).any():
            return None
    return cast


def first_lost(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[int, Any]:
    """Return row and value of the first number that `narrowed` cannot make a `dtype`."""
    for rows in _blocks(values):
        cast = np.empty(values[rows].shape, dtype)
        put(values[rows], cast)
        wrong = lost(values[rows], cast)
        if wrong.any():
            where = tuple(int(axis[0]) for axis in np.nonzero(wrong))
            return rows.start + where[0], values[rows][where].item()
    raise ValueError(f"Every value can be {dtype}")


def put(values: NDArray[Any], into: NDArray[Any]) -> None:
    """Write numbers into an array of another type, whatever becomes of them."""
    source = values.real if values.dtype.kind == "c" and into.dtype.kind != "c" else values
    with np.errstate(all="ignore"):
        np.copyto(into, source, casting="unsafe")


def lost(values: NDArray[Any], cast: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are not what they were: infinite that were not, or another integer."""
    if values.dtype.kind == "c" and cast.dtype.kind != "c":
        unreal = values.imag != 0
        return np.asarray(unreal | lost(values.real, cast))
    with np.errstate(all="ignore"):
        if cast.dtype.kind in "fc":
            return np.asarray(np.isfinite(values) & ~np.isfinite(cast))
        wrong = cast.astype(values.dtype) != values
        if values.dtype.kind in "iu" and cast.dtype.kind in "iu":
            # Integers of one size come back from the other sign as they were.
            return np.asarray(wrong | ((cast < 0) != (values < 0)))
        if values.dtype.kind == "f" and cast.dtype.kind in "iu":
            # What comes back may be rounded to what it was: -2**63 to a float16 -inf, and, where
            # the processor saturates, 2**63 - 1 to 2**63.
            beyond = values.astype(np.float64) >= 2.0 ** _bits(cast.dtype)
            return np.asarray(wrong | beyond | ~np.isfinite(values))
        return np.asarray(wrong)


def _bits(dtype: np.dtype[Any]) -> int:
    return 8 * dtype.itemsize - (dtype.kind == "i")


def _blocks(values: NDArray[Any]) -> Iterator[slice]:
    size = max(1, values.dtype.itemsize * int(np.prod(values.shape[1:])))
    count = max(1, _BLOCK // size)
    for first in range(0, len(values), count):
        yield slice(first, first + count)
