"""Values over a pipe between this package's own processes; large arrays are not copied."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

_HEADER = struct.Struct("<QQ")


def send(stream: IO[bytes], value: object) -> None:
    """Write one value: sizes first, then its pickle, then the arrays it refers to."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    stream.write(_HEADER.pack(len(body), len(views)))
    stream.write(struct.pack(f"<{len(views)}Q", *(len(view) for view in views)))
    stream.write(body)
    for view in views:
        stream.write(view)


def receive(stream: IO[bytes]) -> Any:
    """Read one value; raises `EOFError` where the other side has ended.

    Only ever given the pipe of a child this process started itself.
    """
    body_size, count = _HEADER.unpack(_exactly(stream, _HEADER.size))
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    body = _exactly(stream, body_size)
    return pickle.loads(body, buffers=[_exactly(stream, size) for size in sizes])  # noqa: S301


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        done += got
    return data
