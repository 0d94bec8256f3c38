"""Bytes of decoded images in memory at once, in everything that decodes: decode, use, drop."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from offline_data.base.errors import FormatError
from offline_data.base.files import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

HELD = 256 << 20  # bytes of decoded images held at once, besides those that a caller requested


def at_once(nbytes: int, copies: int = 1) -> int:
    """Return how many images of `nbytes` each may be held at once, with some copies of each.

    Example:
        >>> at_once(480 * 640 * 3), at_once(4320 * 7680 * 3), at_once(4320 * 7680 * 3, copies=8)
        (291, 2, 1)
    """
    return max(1, HELD // max(1, nbytes * copies))


def fits(nbytes: int) -> bool:
    """Return True if decoded images of that many bytes may be held as one array."""
    return nbytes <= HELD


def check_pixels(shape: Sequence[int], itemsize: int, where: str) -> None:
    """Raise `FormatError` for an image that takes more than `HELD` bytes.

    Example:
        >>> check_pixels((480, 640, 3), 1, "film.mp4")
        >>> try:
        ...     check_pixels((20_000, 20_000, 3), 1, "film.mp4")
        ... except FormatError as error:
        ...     print(error.message)
        film.mp4 has images of [20000, 20000, 3], 1.1 GiB decoded; expected at most 256.0 MiB
    """
    nbytes = prod(shape) * itemsize
    if not fits(nbytes):
        raise FormatError(
            f"{where} has images of {list(shape)}, {human_bytes(nbytes)} decoded; expected at most "
            f"{human_bytes(HELD)}",
            hint="write them smaller: one image has to fit into that memory",
        )
