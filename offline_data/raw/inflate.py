"""Reading compressed chunks of an HDF5 dataset in threads, with checks.

HDF5 inflates one chunk at a time, holding its lock, and does not check the result of a damaged chunk:
if it is too short, values are undefined, or the process crashes. So raw chunks are read, and their
filters are undone here: each must have the length of a chunk and correct checksums.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.raw.fast_zlib import inflate
from offline_data.raw.hdf5 import check_size, check_storage, h5, place_of

THREADS = 2
"""Threads that inflate; more gain little, since reading chunks holds HDF5's global lock."""

_SMALL = 1 << 18
"""Bytes below which starting threads costs more than it saves."""

_TASK = 16
"""Chunks that a thread takes at once; one at a time costs a third more."""

_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF = 1, 2, 3, 32000
_NAMES = {4: "szip", 5: "nbit", 6: "scaleoffset", 32001: "blosc", 32015: "zstd", 32004: "lz4"}


def read_rows(dataset: Any, start: int, stop: int) -> NDArray[Any]:
    """Read `dataset[start:stop]` of an open `h5py.Dataset`, with the values and dtype of h5py.

    Besides the result, memory is bounded by one chunk per thread, compressed and inflated. Chunks
    that were never written are the fill value, or zeros without one.

    Raises:
        FormatError: A damaged chunk (names file, dataset and rows), or a dataset that violates the
            rules of `readers.hdf5`.
        OSError: From h5py, for a damaged dataset without compression.
    """
    check_size(dataset.id)
    check_storage(dataset.id)
    shape = (max(0, stop - start), *dataset.shape[1:])
    if start < stop and has_filters(dataset) and _lies_as_in_memory(dataset):
        out = np.empty(shape, dataset.dtype)
        Chunks(dataset).read_in_threads(start, stop, out)
        return out
    check_chunks(dataset, start, stop)
    _check_index(dataset)
    if dataset.dtype.kind not in "biufc":
        return np.asarray(dataset[start:stop])
    rows = np.zeros(shape, dataset.dtype)
    if rows.size:  # without a fill value, h5py returns undefined values for unwritten chunks
        dataset.read_direct(rows, np.s_[start:stop])
    return rows


def chunks_of(dataset: Any) -> Chunks | None:
    """Return the chunks of an open `h5py.Dataset`, or None if their bytes are not numpy's rows.

    Raises `FormatError` for a dataset that violates the rules of `readers.hdf5`.
    """
    check_size(dataset.id)
    check_storage(dataset.id)
    return Chunks(dataset) if has_filters(dataset) and _lies_as_in_memory(dataset) else None


def check_chunks(dataset: Any, start: int, stop: int) -> None:
    """Undo the filters of the chunks under some rows, so that HDF5 can do so after us."""
    if dataset.is_virtual:
        names = dict.fromkeys(source.dset_name for source in dataset.virtual_sources())
        for source in map(dataset.file.__getitem__, names):
            if source.shape:
                check_chunks(source, 0, len(source))
    elif has_filters(dataset) and start < stop:
        Chunks(dataset).read_in_threads(start, stop, None)


def _check_index(dataset: Any) -> None:
    """Raise if the index of unfiltered chunks is damaged, which HDF5 does not check.

    Each must have the bytes of a whole chunk, also at the edges.
    """
    if dataset.chunks is None or dataset.is_virtual or has_filters(dataset):
        return
    low, nbytes = dataset.id, math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    stored, expected = low.get_storage_size(), low.get_num_chunks() * nbytes
    if stored != expected:
        raise FormatError(
            f"{place_of(low)} is damaged: its chunks have {stored:,} bytes, expected {expected:,}",
            hint="download or copy the file again",
        )


def has_filters(dataset: Any) -> bool:
    """Return True if the chunks of an open `h5py.Dataset` are compressed, or have checksums."""
    return dataset.chunks is not None and dataset.id.get_create_plist().get_nfilters() > 0


def _lies_as_in_memory(dataset: Any) -> bool:
    """Return True if inflated chunks have numpy's memory representation."""
    numbers = dataset.dtype.kind in "biufc"
    return numbers and bool(h5().h5t.py_create(dataset.dtype) == dataset.id.get_type())


class Pipeline:
    """The filters that the chunks of an open low-level dataset went through; all can be undone here."""

    def __init__(self, dataset: Any) -> None:
        plan = dataset.get_create_plist()
        found = [plan.get_filter(number) for number in range(plan.get_nfilters())]
        for code, _, _, name in found:
            if code not in {_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF}:
                label = _NAMES.get(code) or name.decode("ascii", "replace") or "unknown"
                raise FormatError(
                    f"{place_of(dataset)} is compressed by filter {code} ({label}); gzip, lzf, "
                    "shuffle and fletcher32 are read",
                    hint="`h5repack -f GZIP=4` writes it with gzip",
                )
        if sum(code in {_DEFLATE, _LZF} for code, *_ in found) > 1:
            raise FormatError(f"{place_of(dataset)} is compressed twice")
        self.nbytes = math.prod(plan.get_chunk()) * dataset.get_type().get_size()
        self._filters = [(code, values) for code, _, values, _ in found]
        self._known: dict[int, list[tuple[int, tuple[int, ...], int]]] = {}

    def undo(self, raw: bytes, skipped: int) -> bytes | None:
        """Return the `nbytes` of a raw chunk, or None if it is damaged.

        Bit `i` of `skipped` is set if filter `i` was not applied to this chunk.
        """
        skipped &= (1 << len(self._filters)) - 1
        steps = self._known.get(skipped)
        if steps is None:
            steps = self._known[skipped] = self._steps(skipped)
        data: bytes | None = raw
        for code, parameters, expected in steps:
            if data is None:
                return None
            if code == _DEFLATE:
                data = inflate(data, expected)
            elif code == _LZF:
                data = _undo_lzf(data, expected)
            elif code == _SHUFFLE:
                data = _undo_shuffle(data, parameters)
            else:
                data = _undo_fletcher32(data)
        return data if data is not None and len(data) == self.nbytes else None

    def _steps(self, skipped: int) -> list[tuple[int, tuple[int, ...], int]]:
        """Return code, parameters and bytes of the result of each filter to undo, the last first."""
        used = [step for number, step in enumerate(self._filters) if not skipped >> number & 1]
        steps = []
        while used:
            code, parameters = used.pop()
            checksums = sum(code == _FLETCHER32 for code, _ in used)
            steps.append((code, parameters, self.nbytes + 4 * checksums))
        return steps


def _undo_shuffle(data: bytes, parameters: tuple[int, ...]) -> bytes | None:
    """Undo the shuffle filter; remaining bytes are at the end."""
    if not parameters:
        return None
    size = parameters[0]
    count = len(data) // size if size else 0
    if size <= 1 or count <= 1:
        return data
    planes = np.frombuffer(data, np.uint8, count * size).reshape(size, count)
    whole: bytes = planes.T.tobytes()
    return whole + data[count * size :]


def _undo_fletcher32(data: bytes) -> bytes | None:
    """Return the data without the trailing checksum, or None if it does not match."""
    if len(data) < 4:
        return None
    data, stored = data[:-4], data[-4:]
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").astype(np.uint64)
    first = second = 0
    for begin in range(0, len(words), 1 << 20):  # sums of 2^20 words fit 64 bits
        part = words[begin : begin + (1 << 20)]
        weights = np.arange(len(part), 0, -1, dtype=np.uint64)
        second = (second + first * len(part) + int((part * weights).sum())) % 65535
        first = (first + int(part.sum())) % 65535
    found = [int.from_bytes(stored[at : at + 2], "little") % 65535 for at in (2, 0)]
    # Files of HDF5 1.6.2 and older, and of machines of the other byte order, have it swapped.
    swapped = [int.from_bytes(stored[at : at + 2], "big") % 65535 for at in (2, 0)]
    return data if [second, first] in (found, swapped) else None


def _undo_lzf(data: bytes, nbytes: int) -> bytes | None:
    """Decompress an LZF stream to `nbytes`; None if it is damaged."""
    out = bytearray()
    at, end = 0, len(data)
    try:
        while at < end and len(out) <= nbytes:
            control = data[at]
            if control < 32:
                if at + control + 2 > end:
                    return None
                out += data[at + 1 : at + control + 2]
                at += control + 2
                continue
            length = control >> 5
            if length == 7:
                at += 1
                length += data[at]
            distance = ((control & 31) << 8 | data[at + 1]) + 1
            at += 2
            begin = len(out) - distance
            if begin < 0:
                return None
            length += 2
            piece = out[begin : begin + length]
            out += (piece * (length // len(piece) + 1))[:length]
    except IndexError:
        return None
    return bytes(out) if len(out) == nbytes else None


class Chunks:
    """The chunks of an open dataset with filters; its methods may run in several threads at once."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._low = dataset, dataset.id
        self.shape: tuple[int, ...] = dataset.chunks
        """Shape of each, also at the edges, where they are padded."""
        self._rows, *self._widths = dataset.shape
        self._pipeline = Pipeline(dataset.id)
        # HDF5 cannot be asked for chunks where there is none; those of no bytes are damaged
        self._none: bool = self._low.get_storage_size() == 0 and self._low.get_num_chunks() == 0
        # numpy copies a strided column [n] four times as fast as the same column as [n, 1]
        self._inner = tuple(0 if width == 1 else slice(None) for width in self.shape[1:])

    def read(self, start: int, stop: int, out: NDArray[Any] | None) -> None:
        """Put rows `start` to `stop` into `out` (None: only check their chunks), in this thread.

        Raises `FormatError` for a damaged chunk, naming file, dataset and rows.
        """
        if not self._fill(out):
            self._read(self._offsets(start, stop), start, stop, out)

    def read_in_threads(self, start: int, stop: int, out: NDArray[Any] | None) -> None:
        """Do what `read` does in threads of their own, unless there is little to read."""
        if self._fill(out):
            return
        offsets = self._offsets(start, stop)
        if len(offsets) * self._pipeline.nbytes < _SMALL:
            self._read(offsets, start, stop, out)
            return
        size = max(1, min(_TASK, len(offsets) // (4 * THREADS)))
        with ThreadPoolExecutor(THREADS) as pool:
            tasks = [offsets[first : first + size] for first in range(0, len(offsets), size)]
            try:
                deque(pool.map(lambda some: self._read(some, start, stop, out), tasks), maxlen=0)
            finally:
                pool.shutdown(cancel_futures=True)

    def _fill(self, out: NDArray[Any] | None) -> bool:
        if self._none and out is not None:
            out[...] = self._dataset.fillvalue
        return self._none

    def _offsets(self, start: int, stop: int) -> list[tuple[int, ...]]:
        """Return where the chunks under these rows begin, in the order of the rows."""
        height, *widths = self.shape
        rows = range(start // height * height, stop, height)
        return list(itertools.product(rows, *map(range, itertools.repeat(0), self._widths, widths)))

    def _read(
        self, offsets: Iterable[tuple[int, ...]], start: int, stop: int, out: NDArray[Any] | None
    ) -> None:
        """Put the chunks that begin at these elements into their places."""
        height, *widths = self.shape
        for offset in offsets:
            data = self._undone(offset)
            if out is None:
                continue
            top, *left = offset
            first, last = max(top, start), min(top + height, stop)
            across = (b if n == 1 else slice(b, b + n) for b, n in zip(left, widths, strict=True))
            place = (slice(first - start, last - start), *across)
            if data is None:
                out[place] = self._dataset.fillvalue
                continue
            chunk = np.frombuffer(data, out.dtype).reshape(self.shape)
            inner = (slice(first - top, last - top), *self._inner)
            target = out[place]
            target[...] = chunk[inner][tuple(map(slice, target.shape))]  # padded at the edges

    def _undone(self, offset: tuple[int, ...]) -> bytes | None:
        """Return a whole chunk, or None where it was never written."""
        with h5()._objects.phil:  # h5py 3.10 does not lock here, and threads crash HDF5
            try:
                skipped, raw = self._low.read_direct_chunk(offset)
            except (OSError, RuntimeError, MemoryError) as error:
                if self._low.get_chunk_info_by_coord(offset).byte_offset is None:
                    return None
                raise self._damage_error(offset, str(error)) from error
        data = self._pipeline.undo(raw, skipped)
        if data is None:  # unless it was left uncompressed at an edge (`H5Pset_chunk_opts`)
            nbytes = self._pipeline.nbytes
            ends = map(sum, zip(offset, self.shape, strict=True))
            sizes = (self._rows, *self._widths)
            at_edge = any(end > size for end, size in zip(ends, sizes, strict=True))
            if at_edge and len(raw) == nbytes:
                return cast("bytes", raw)
            raise self._damage_error(offset, f"a chunk does not decompress to its {nbytes:,} bytes")
        return data

    def _damage_error(self, offset: tuple[int, ...], why: str) -> FormatError:
        last = min(offset[0] + self.shape[0], self._rows) - 1
        return FormatError(
            f"{self._dataset.file.filename} is damaged: {self._dataset.name!r} cannot be read at "
            f"rows {offset[0]} to {last}: {why}",
            hint="download or copy the file again",
        )
