"""Whether decoding may begin at a packet of H.264 or HEVC, as its NAL units tell.

Containers mark packets at which players may begin. Encoders with intra refresh mark those at which a new
picture begins to appear, column by column: the picture is whole some frames later, or never where columns
refer to earlier frames.
"""

from __future__ import annotations

from collections.abc import Iterator

_IDR = {"h264": {5}, "hevc": {16, 17, 18, 19, 20}}  # units whose pictures need no earlier one
_SEI = {"h264": 6, "hevc": 39}
_RECOVERY = 6  # type of the message with the number of frames after which the picture is whole
_MOST = 1 << 10  # bytes of a unit that are searched for messages, which come before pictures


def begins(codec: str, data: bytes, header: bytes) -> bool | None:
    r"""Return whether decoding may begin at a packet that the container marks; None: unknown.

    `codec` is FFmpeg's name: of others than `h264` and `hevc`, the mark is right. `header` is the
    configuration record of the stream (`avcC`, `hvcC`).

    Example:
        >>> begins("h264", b"\0\0\0\2\x65\x88", b"\1\x64\0\x1f\xff")
        True
    """
    if codec not in _IDR:
        return True
    place = 4 if codec == "h264" else 21
    if len(header) <= place or header[0] != 1:
        return None
    for unit in _units(data, (header[place] & 3) + 1):
        kind = unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63
        if kind in _IDR[codec]:
            return True
        if kind == _SEI[codec]:
            for message in _messages(unit[1 if codec == "h264" else 2 : _MOST]):
                if _number(message, signed=codec == "hevc") > 0:
                    return False
    return None


def _units(data: bytes, size: int) -> Iterator[bytes]:
    at = 0
    while at + size < len(data):
        length = int.from_bytes(data[at : at + size], "big")
        if length:
            yield data[at + size : at + size + length]
        at += size + length


def _messages(unit: bytes) -> Iterator[bytes]:
    """Yield the payloads of recovery points of a unit of messages."""
    unit = unit.replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(unit):
        kind, at = _sum(unit, at)
        size, at = _sum(unit, at)
        if kind == _RECOVERY:
            yield unit[at : at + size]
        at += size


def _sum(unit: bytes, at: int) -> tuple[int, int]:
    """Return a number that is coded as a sum of bytes, and where it ends."""
    total = 0
    while at < len(unit):
        total, at = total + unit[at], at + 1
        if unit[at - 1] != 255:
            break
    return total, at


def _number(payload: bytes, *, signed: bool) -> int:
    """Return the first number of a payload, an Exp-Golomb code; 0 if it has none."""
    bits = "".join(f"{byte:08b}" for byte in payload)
    zeros = len(bits) - len(bits.lstrip("0"))
    code = bits[zeros : 2 * zeros + 1]
    value = int(code, 2) - 1 if code else 0
    return ((value + 1) // 2 if value % 2 else -(value // 2)) if signed else value
