"""CRC-32C, the checksum that Google Cloud Storage publishes, at array speed.

A CRC is linear over GF(2): its state after the little-endian words `w0 … wn` is the xor of all
words, each advanced past the zero bytes from its own position to the end. So a row of `_LANES`
words is processed at once: the accumulated row is advanced past one row of zeros, and the next row
is xored to it. At the end the words of the last row are combined. The polynomial is that of
RFC 3720 (iSCSI).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REVERSED = 0x82F63B78
_LANES = 4096
_ROW = 4 * _LANES
"""Bytes that are taken at once."""


class Crc32c:
    """A running CRC-32C, used like the objects of `hashlib`.

    Example:
        >>> crc = Crc32c()
        >>> crc.update(b"123456789")
        >>> crc.hexdigest()
        'e3069283'
    """

    def __init__(self) -> None:
        self._row: NDArray[np.uint32] | None = None
        self._waiting = b""

    def update(self, block: bytes) -> None:
        """Add the next bytes; an incomplete row is buffered."""
        data = self._waiting + block
        whole = len(data) // _ROW * _ROW
        self._waiting = data[whole:]
        if not whole:
            return
        rows = np.frombuffer(data, "<u4", whole // 4).reshape(-1, _LANES)
        row, (low, high) = self._row, _row_tables()
        if row is None:  # the first of all begins with all bits set
            row, rows = rows[0].copy(), rows[1:]
            row[0] ^= np.uint32(0xFFFFFFFF)
        for words in rows:
            halves = row.view("<u2")
            row = low[halves[0::2]]
            row ^= high[halves[1::2]]
            row ^= words
        self._row = row

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far, 8 hex digits."""
        state, row, table = 0xFFFFFFFF, self._row, _byte_table()
        if row is not None:
            while len(row) > 1:  # its halves are added until one word is left
                half = len(row) // 2
                row = _apply(_zeros(4 * half), row[:half]) ^ row[half:]
            state = int(_apply(_zeros(4), row)[0])
        for byte in self._waiting:
            state = int(table[(state ^ byte) & 0xFF]) ^ (state >> 8)
        return f"{state ^ 0xFFFFFFFF:08x}"


@lru_cache(maxsize=1)
def _byte_table() -> NDArray[np.uint32]:
    """Return the effect of each low byte when it is shifted out."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ ((table & np.uint32(1)) * np.uint32(_REVERSED))
    return table


@lru_cache(maxsize=1)
def _row_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the effect of a row of zeros on the low and the high 16 bits of a word."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    return _apply(_zeros(_ROW), halves), _apply(_zeros(_ROW), halves << np.uint32(16))


def _apply(matrix: NDArray[np.uint32], states: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Multiply 32-bit vectors by a GF(2) matrix, given as the images of the 32 unit vectors."""
    moved: NDArray[np.uint32] = np.zeros_like(states)
    for bit in range(32):
        moved ^= ((states >> np.uint32(bit)) & np.uint32(1)) * matrix[bit]
    return moved


@lru_cache(maxsize=64)
def _zeros(count: int) -> NDArray[np.uint32]:
    """Matrix of `count` zero bytes passing through."""
    units: NDArray[np.uint32] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if count == 0:
        return units
    half = _zeros(count // 2)
    moved = _apply(half, half)
    if count % 2:
        moved = _byte_table()[moved & np.uint32(0xFF)] ^ (moved >> np.uint32(8))
    return moved
