"""Rows of a gzip-compressed HDF5 dataset: raw chunks read, and inflated in threads.

HDF5 inflates one chunk after the other, holding its lock. Its chunks are zlib streams, so they
are read as they lie and inflated side by side, each into its place. What is not plainly
gzip-compressed is left to h5py.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from offline_data.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

THREADS = 2
"""Threads that inflate: more gain little, as reading chunks takes HDF5's one lock."""

_SMALL = 1 << 18
"""Bytes below which starting threads costs more than it saves."""

_TASK = 16
"""Chunks a thread takes at once: handing out one by one costs a third of the time."""


def read_rows(dataset: Any, start: int, stop: int) -> NDArray[Any]:
    """Read `dataset[start:stop]`, the same values and dtype as h5py gives.

    Besides the result, memory is bounded by one chunk a thread, compressed and inflated.

    Args:
        dataset: An open `h5py.Dataset` of at least one dimension.
        start: First row, at least 0.
        stop: One past the last row, at most `len(dataset)`.

    Raises:
        FormatError: A damaged chunk; the message names file, dataset and rows.
        OSError: What h5py raises where a dataset that is not plain gzip is damaged.
    """
    if stop <= start or not _is_plain_gzip(dataset):
        return np.asarray(dataset[start:stop])
    out = np.empty((stop - start, *dataset.shape[1:]), dataset.dtype)
    tiles = _Tiles(dataset, dataset.chunks, start, out, _zlib())
    offsets = list(tiles.offsets())
    if out.nbytes < _SMALL:
        tiles.fill_all(offsets)
        return out
    size = max(1, min(_TASK, len(offsets) // (4 * THREADS)))
    with ThreadPoolExecutor(THREADS) as pool:
        tasks = [offsets[first : first + size] for first in range(0, len(offsets), size)]
        try:
            deque(pool.map(tiles.fill_all, tasks), maxlen=0)
        finally:
            pool.shutdown(cancel_futures=True)
    return out


def _is_plain_gzip(dataset: Any) -> bool:
    """Tell whether chunks are zlib streams of numbers that lie in them as in memory."""
    from h5py import h5t, h5z

    if dataset.chunks is None or dataset.dtype.kind not in "biuf":
        return False
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    same_type: bool = h5t.py_create(dataset.dtype) == dataset.id.get_type()
    return filters == [h5z.FILTER_DEFLATE] and same_type


@dataclass(frozen=True)
class _Zlib:
    """A zlib-compatible library."""

    decompressor: Callable[..., Any]
    error: type[Exception]

    def inflate(self, raw: bytes, nbytes: int) -> bytes | None:
        """Return the `nbytes` that `raw` is a whole stream of, or None where it is not.

        A stream that claims more is not followed further than one byte.
        """
        stream = self.decompressor()
        try:
            data: bytes = stream.decompress(raw, nbytes + 1)
        except self.error:
            return None
        return data if stream.eof and len(data) == nbytes else None


def _zlib() -> _Zlib:
    """Return isal, which is twice as fast, where it is installed, else Python's own."""
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return _Zlib(zlib.decompressobj, zlib.error)
    return _Zlib(isal_zlib.decompressobj, cast("type[Exception]", isal_zlib.error))


def gzip_decompressor() -> tuple[Any, type[Exception]]:
    """Return a new decompressor of one gzip member, and what it raises where that is damaged."""
    zlib = _zlib()
    return zlib.decompressor(wbits=31), zlib.error


@dataclass(frozen=True)
class _Tiles:
    """The chunks under some rows of a dataset, and the array they are inflated into."""

    dataset: Any
    shape: tuple[int, ...]
    """Shape of every chunk; those at the edges of the dataset are padded to it."""
    start: int
    """Row of the dataset that is row 0 of `out`."""
    out: NDArray[Any]
    zlib: _Zlib

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Yield the first element of every chunk that holds some of the rows."""
        height, *widths = self.shape
        rows = range(self.start // height * height, self.start + len(self.out), height)
        rest = map(range, itertools.repeat(0), self.out.shape[1:], widths)
        return itertools.product(rows, *rest)

    def fill_all(self, offsets: Iterable[tuple[int, ...]]) -> None:
        """Put each of these chunks into its place of `out`."""
        for offset in offsets:
            self.fill(offset)

    def fill(self, offset: tuple[int, ...]) -> None:
        """Put the chunk that begins at `offset` into its place of `out`."""
        first = max(offset[0], self.start)
        stop = min(offset[0] + self.shape[0], self.start + len(self.out))
        rest = tuple(map(_along, offset[1:], self.shape[1:]))
        place = (slice(first - self.start, stop - self.start), *rest)
        target = self.out[place]
        chunk = self._inflated(offset)
        if chunk is None:
            target[...] = self._left_to_h5py((slice(first, stop), *rest))
            return
        inner = (slice(first - offset[0], stop - offset[0]), *map(slice, target.shape[1:]))
        # numpy copies a strided column [n] four times as fast as the same column as [n, 1]
        np.squeeze(target)[...] = np.squeeze(chunk[inner])

    def _inflated(self, offset: tuple[int, ...]) -> NDArray[Any] | None:
        """Return a whole chunk, or None where h5py must decide: unwritten, odd or damaged."""
        nbytes = math.prod(self.shape) * self.out.itemsize
        try:
            skipped, raw = self.dataset.id.read_direct_chunk(offset)
        except (OSError, RuntimeError):
            return None
        data = raw if skipped else self.zlib.inflate(raw, nbytes)
        if data is None or len(data) != nbytes:
            return None
        return np.frombuffer(data, self.out.dtype).reshape(self.shape)

    def _left_to_h5py(self, place: tuple[slice, ...]) -> NDArray[Any]:
        try:
            return np.asarray(self.dataset[place])
        except (OSError, RuntimeError) as error:
            raise FormatError(
                f"{self.dataset.file.filename} is damaged: {self.dataset.name!r} cannot be read "
                f"at rows {place[0].start} to {place[0].stop - 1}: {error}",
                hint="fetch or copy the file again",
            ) from error


def _along(begin: int, size: int) -> slice:
    return slice(begin, begin + size)
