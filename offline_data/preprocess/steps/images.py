"""Columns of images: which axes of a row are which, and new columns made in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from offline_data.episodes.fields import Key, join_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

Format: TypeAlias = Literal["hwc", "chw", "hw"]
"""Order of the last axes of a row: height, width, channels. Axes before them are a stack."""

FORMATS: tuple[Format, ...] = get_args(Format)
SIDES: Mapping[Format, tuple[int, int]] = {"hwc": (-3, -2), "chw": (-2, -1), "hw": (-2, -1)}
"""Axes of height and width."""
CHANNELS: Mapping[Format, int] = {"hwc": -1, "chw": -3}
"""Axis of the channels, where there is one."""

LEAST_SIDE = 8
"""A side is at least as long; a shorter axis is one of channels or of stacked frames."""
BLOCK_BYTES = 4 << 20
"""What is under way at a time besides the columns; more would leave the processor's cache."""


@dataclass(frozen=True)
class Images:
    """A column of images, and how its rows are read."""

    key: Key
    """The leaf."""
    values: NDArray[Any]
    """`[n, …]`; the last axes of a row are in `format`."""
    format: Format
    """Order of the last axes."""

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return int(self.values.shape[SIDES[self.format][0]])

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return int(self.values.shape[SIDES[self.format][1]])

    @property
    def channels(self) -> int:
        """Values of a pixel."""
        axis = CHANNELS.get(self.format)
        return 1 if axis is None else int(self.values.shape[axis])

    def __str__(self) -> str:
        return said(self.key, self.values)


def said(key: Key, values: NDArray[Any]) -> str:
    """Write a column with the dtype and shape of a row, for a message.

    Example:
        >>> said(("observation", "pixels"), np.zeros((5, 8, 8), np.uint8))
        "'observation/pixels' (uint8 [8, 8])"
    """
    return f"{join_key(key)!r} ({values.dtype} {list(values.shape[1:])})"


def readings(shape: tuple[int, ...]) -> tuple[Format, ...]:
    """Return the formats that a row of this shape may have; none: it is no image.

    Sides have 8 pixels or more. With a shorter axis behind them a row is `hwc`; with 1 or 3 before
    them `chw`, with another short axis before them `chw` or stacked `hw`. Where the axis before
    the last two is as long as a side, all three are possible.

    Example:
        >>> readings((84, 84, 3)), readings((4, 84, 84)), readings((7,))
        (('hwc',), ('chw', 'hw'), ())
    """
    if 0 in shape:
        return ()
    last = shape[-3:]
    sides = tuple(size >= LEAST_SIDE for size in last)
    if sides == (True, True):
        return ("hw",)
    if sides == (True, True, False):
        return ("hwc",)
    if sides == (False, True, True):
        return ("chw",) if last[0] in {1, 3} else ("chw", "hw")
    return FORMATS if sides == (True, True, True) else ()


def looks_like_images(values: NDArray[Any]) -> bool:
    """Return whether a column is taken for images without being named.

    Bytes in any format there may be; floats, which often have long axes, only with an axis of 1, 3
    or 4 channels.

    Example:
        >>> looks_like_images(np.zeros((5, 16, 16), np.uint8)), looks_like_images(np.zeros((5, 16)))
        (True, False)
    """
    shape = values.shape[1:]
    found = readings(shape)
    if values.dtype.kind != "f":
        return bool(found) and values.dtype == np.uint8
    axes = {CHANNELS[form] for form in found if form in CHANNELS}
    return len(axes) == 1 and shape[axes.pop()] in {1, 3, 4}


def by_block(
    values: NDArray[Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    row_bytes: int,
    fill: Callable[[NDArray[Any], NDArray[Any]], None],
) -> NDArray[Any]:
    """Make a new column of rows from those of `values`, a few at a time.

    Args:
        values: `[n, …]`.
        shape: Of a row of the result.
        dtype: Of the result.
        row_bytes: What `fill` takes for a row besides the two columns; a block takes 4 MiB, or
            what a single row takes.
        fill: Given a block of rows and that of the result, it fills the second.

    Example:
        >>> by_block(np.arange(3), (), np.dtype(int), 8, lambda x, out: np.copyto(out, -x)).tolist()
        [0, -1, -2]
    """
    result = np.empty((len(values), *shape), dtype)
    rows = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, len(values), rows):
        fill(values[start : start + rows], result[start : start + rows])
    return result
