"""Values over a pipe between this program and processes it started; large arrays are not copied.

Functions and classes of a script or a notebook travel whole: cloudpickle sends what the other side
cannot import. Nothing here is ever given bytes of a file, or of a machine that is not a node of the
cluster, or of the pool, that the caller has named.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = struct.Struct("<QQ")


@dataclass(frozen=True)
class Packed:
    """A value on its way."""

    body: bytes | bytearray
    """Its pickle, without what `buffers` holds."""
    buffers: tuple[bytearray | memoryview, ...] = ()
    """Bytes of its large arrays, in the order in which the pickle refers to them."""


def pack(value: object) -> Packed:
    """Pickle a value; its arrays stay where they are, so that they must not change until sent."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    body = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return Packed(body, tuple(buffer.raw() for buffer in buffers))


def unpack(packed: Packed) -> Any:
    """Make the value again; its arrays lie in the buffers and can be written to.

    Example:
        >>> unpack(pack({"a": 1}))
        {'a': 1}
    """
    return pickle.loads(packed.body, buffers=packed.buffers)  # noqa: S301 - see the module


def write(stream: IO[bytes], packed: Packed) -> None:
    """Write sizes first, then the pickle, then the arrays it refers to, and flush."""
    sizes = [len(buffer) for buffer in packed.buffers]
    stream.write(_HEADER.pack(len(packed.body), len(sizes)))
    stream.write(struct.pack(f"<{len(sizes)}Q", *sizes))
    stream.write(packed.body)
    for buffer in packed.buffers:
        stream.write(buffer)
    stream.flush()


def read(stream: IO[bytes]) -> Packed:
    """Read one value.

    Raises:
        EOFError: The other side has ended.
    """
    body_size, count = _HEADER.unpack(_exactly(stream, _HEADER.size))
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    body = _exactly(stream, body_size)
    return Packed(body, tuple(_exactly(stream, size) for size in sizes))


def dumps(value: object) -> bytes:
    """Pickle a value with its arrays into one piece.

    Example:
        >>> double = loads(dumps(lambda x: 2 * x))
        >>> double(21)
        42
    """
    import cloudpickle

    packed: bytes = cloudpickle.dumps(value, protocol=5)
    return packed


def loads(data: bytes) -> Any:
    """Make a value again that `dumps` pickled."""
    return pickle.loads(data)  # noqa: S301 - see the module


def pack_function(function: Callable[..., Any]) -> bytes:
    """Pickle a function with everything it refers to that another process cannot import.

    Raises:
        UsageError: It refers to something that only exists in this process.

    Example:
        >>> loads(pack_function(max))(3, 4)
        4
    """
    try:
        return dumps(function)
    except Exception as error:  # whatever pickling one of its objects raises
        raise UsageError(
            f"The function cannot be sent to another process: {error}",
            hint="make that object inside the function, or run it in this process",
        ) from error


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        done += got
    return data
