"""CRC-32C, the checksum that Google Cloud Storage publishes, at array speed.

A CRC is linear over GF(2), so a block is cut into equal lanes whose checksums are advanced side by
side, one byte of each lane a step, and then joined: the checksum of `a + b` is that of `a`,
moved past `len(b)` zero bytes, xor that of `b`. The polynomial is that of RFC 3720 (iSCSI).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REVERSED = 0x82F63B78
_LANES = 4096
_WORK = 1 << 20
_SMALL = 64 << 10
"""Blocks below this many bytes take one plain loop."""


class Crc32c:
    """A running CRC-32C, used like the objects of `hashlib`.

    Example:
        >>> crc = Crc32c()
        >>> crc.update(b"123456789")
        >>> crc.hexdigest()
        'e3069283'
    """

    def __init__(self) -> None:
        self._state = 0xFFFFFFFF
        self._waiting = bytearray()

    def update(self, block: bytes) -> None:
        """Take the next bytes; they are worked off a mebibyte at a time."""
        self._waiting += block
        while len(self._waiting) >= _WORK:
            self._state = _advance(self._state, bytes(self._waiting[:_WORK]))
            del self._waiting[:_WORK]

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far, 8 hex digits."""
        return f"{_advance(self._state, bytes(self._waiting)) ^ 0xFFFFFFFF:08x}"


def _advance(state: int, block: bytes) -> int:
    lane = len(block) // _LANES if len(block) >= _SMALL else 0
    body = np.frombuffer(block, np.uint8, lane * _LANES).reshape(_LANES, lane)
    if lane:
        state = _move(state, lane * _LANES) ^ _join(_lanes(body), lane)
    table = _byte_table()
    for byte in block[lane * _LANES :]:
        state = int(table[(state ^ byte) & 0xFF]) ^ (state >> 8)
    return state


@lru_cache(maxsize=1)
def _byte_table() -> NDArray[np.uint32]:
    """Where each low byte leads when it is shifted out."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ ((table & np.uint32(1)) * np.uint32(_REVERSED))
    return table


def _lanes(body: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Checksums of all rows, begun at zero; `body` is uint8 `[lanes, bytes]`."""
    table = _byte_table()
    states = np.zeros(len(body), np.uint32)
    for column in np.ascontiguousarray(body.T):
        states = table[(states ^ column) & np.uint32(0xFF)] ^ (states >> np.uint32(8))
    return states


def _join(states: NDArray[np.uint32], length: int) -> int:
    """Join neighbours until one checksum is left; `len(states)` is a power of two."""
    while len(states) > 1:
        states = _apply(_zeros(length), states[0::2]) ^ states[1::2]
        length *= 2
    return int(states[0])


def _move(state: int, count: int) -> int:
    return int(_apply(_zeros(count), np.array([state], np.uint32))[0])


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
