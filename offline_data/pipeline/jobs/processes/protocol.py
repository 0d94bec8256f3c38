"""Values and calls between this program and its worker processes, without copying large arrays.

Functions and classes of a script or notebook are pickled by value with cloudpickle, since the other
process cannot import them. A call is answered with its value, or with its error and traceback.
Only bytes from processes of this program, or from the pool or cluster that the caller named, are
unpickled here; never those of a file.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from types import CodeType
from typing import IO, Any, ClassVar, TypeAlias, TypeVar

from offline_data.base.errors import OfflineDataError, UsageError

P = TypeVar("P")

Packed: TypeAlias = "list[Any]"  # a pickle, then its out-of-band buffers (large arrays)

_POOL_LOCK = Lock()  # held by a call in a pool of threads: functions need not be thread-safe


class RemoteError(OfflineDataError):
    """A function in another process raised an error that cannot be pickled."""

    code = "remote"


class RemoteTraceback(Exception):  # noqa: N818 - no error of its own, but where one came from
    """Cause of an error from another process; its text is the traceback there."""

    def __init__(self, text: str) -> None:
        super().__init__(f"in another process:\n\n{text}")


def pack(value: object) -> Packed:
    """Pickle a value without copying its arrays, which must not change until it is sent."""
    buffers: list[pickle.PickleBuffer] = []
    if "cloudpickle" in sys.modules:
        from cloudpickle import dumps as pickled
    else:  # nothing of a script has been pickled by `pack_function`: it is not imported for less
        from pickle import dumps as pickled
    body = pickled(value, protocol=5, buffer_callback=buffers.append)
    return [body, *(buffer.raw() for buffer in buffers)]


def unpack(packed: Packed) -> Any:
    """Unpickle a value; its arrays share memory with the buffers and are writable."""
    return pickle.loads(packed[0], buffers=packed[1:])  # noqa: S301 - see the module


def write(stream: IO[bytes], packed: Packed) -> None:
    """Write the number of buffers, their sizes and the buffers, and flush."""
    sizes = [len(buffer) for buffer in packed]
    stream.write(struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes))
    for buffer in packed:
        stream.write(buffer)
    stream.flush()


def read(stream: IO[bytes]) -> Packed:
    """Read one value; raises `EOFError` if the other side has ended."""
    (count,) = struct.unpack("<Q", _exactly(stream, 8))
    return [_exactly(stream, n) for n in struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))]


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        done += got
    return data


def dumps(value: object) -> bytes:
    """Pickle a value and its arrays to one bytes object.

    Example:
        >>> double = loads(dumps(lambda x: 2 * x))
        >>> double(21)
        42
    """
    stream = io.BytesIO()
    _pickler_class()(stream, protocol=5).dump(value)
    return stream.getvalue()


@lru_cache(maxsize=1)
def _pickler_class() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, but keep the file names of code, for tracebacks."""
    import cloudpickle  # 3.1.3 replaces the names: a traceback would have no source lines

    reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]

    def reduce(code: CodeType) -> tuple[object, ...]:
        return _restore_code, (*reduce_code(code), code.co_filename)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: reduce}, cloudpickle.Pickler.dispatch_table
        )

    return Pickler


def _restore_code(create: type[CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return create(*arguments).replace(co_filename=file)


def loads(data: bytes) -> Any:
    """Unpickle a result of `dumps`."""
    return pickle.loads(data)  # noqa: S301 - see the module


def pack_function(function: Callable[..., Any]) -> bytes:
    """Pickle a function, by value if not importable; `UsageError` if bound to this process."""
    try:
        return dumps(function)
    except Exception as error:  # anything that pickling its objects may raise
        raise UsageError(
            f"The function cannot be sent to another process: {error}",
            hint="make that object inside the function, or run it in this process",
        ) from error


def pack_importable(function: Callable[..., Any]) -> bytes:
    """Pickle a function that the other process can import, without importing cloudpickle."""
    return pickle.dumps(function, protocol=5)


def answer(function: bytes, request: Packed) -> Packed:
    """Call a function of `pack_function` with one argument; see `result_of` for the answer."""
    return _pack_answer(lambda: load_function(function)(unpack(request)), pack)


def answer_in_pool(function: bytes, request: bytes) -> bytes:
    """Do the same in a pool, one call at a time even in threads; both arguments are of `dumps`.

    Example:
        >>> result_of(loads(answer_in_pool(dumps(abs), dumps(-3))))
        3
    """
    with _POOL_LOCK:
        return _pack_answer(lambda: load_function(function)(loads(request)), dumps)


def result_of(answer: tuple[Any, Exception | None, str]) -> Any:
    """Return the value of a call, or raise its error; its cause is a `RemoteTraceback`."""
    value, error, trace = answer
    if error is not None:
        raise error from RemoteTraceback(trace)
    return value


@lru_cache(maxsize=2)
def load_function(function: bytes) -> Callable[[Any], Any]:
    """Unpickle a function of `pack_function` once for all calls."""
    made: Callable[[Any], Any] = loads(function)
    return made


def _pack_answer(call: Callable[[], Any], how: Callable[[Any], P]) -> P:
    """Make a call that may raise anything, and pack its outcome for `result_of`."""
    try:
        return how((call(), None, ""))
    except BaseException as error:  # noqa: BLE001 - the other process decides what to do with it
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, Exception) and _travels(error):
            return how((None, error, trace))
        summary = "".join(traceback.format_exception_only(error)).strip()
        failure = RemoteError(f"A function in another process raised {summary}")
        return how((None, failure, trace))


def _travels(error: Exception) -> bool:
    """Return True if an error can be unpickled; many with a constructor of their own cannot."""
    try:
        return type(loads(dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 - whatever pickling it, or its constructor, raises
        return False
