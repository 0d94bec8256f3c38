"""zlib, gzip and CRC-32 by the fastest of libdeflate, isal and Python's own that are installed."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any


@cache
def fast_zlib() -> Any:
    """Return isal's zlib if it is installed, else Python's own."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def inflate(raw: bytes, nbytes: int) -> bytes | None:
    """Inflate a zlib stream and ignore what follows, as HDF5; None: damaged or over `nbytes`."""
    fastest = _libdeflate()
    # It allocates `nbytes` at once, and takes 0 for "unknown".
    if fastest is not None and 0 < nbytes <= _LARGEST_RATIO * len(raw):
        with suppress(fastest.DeflateError):
            data: bytes = fastest.zlib_decompress(raw, nbytes)
            return data
        return None
    stream = fast_zlib().decompressobj()
    try:
        data = stream.decompress(raw, nbytes + 1)  # never inflates a bomb
    except fast_zlib().error:
        return None
    return data if stream.eof and len(data) <= nbytes else None


_LARGEST_RATIO = 1032  # bytes that one byte of a deflate stream can stand for, at most


@cache
def _libdeflate() -> Any:
    try:
        import deflate
    except ImportError:
        return None
    return deflate


def crc32(data: bytes | memoryview, value: int = 0) -> int:
    """Return the CRC-32 of contiguous bytes that continue those of CRC-32 `value`."""
    found: int = (_libdeflate() or fast_zlib()).crc32(data, value)
    return found


def open_gzip(path: Path, mode: str) -> IO[bytes]:
    """Open a gzip file for reading; damage is what `gzip` raises, or `fast_zlib().error`."""
    try:
        from isal import igzip
    except ImportError:
        igzip = gzip
    opened: IO[bytes] = igzip.open(path, mode)
    return opened
