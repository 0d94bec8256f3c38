"""Features of encoded images: concatenated JPEG or PNG bytes, and the offsets of rows.

```
row of the table          0          1          2
<leaf>.bytes              ff d8 … d9 ff d8 … d9 …
<leaf>.offsets            0          9000       17500  26000      rows + 1
```
"""

from __future__ import annotations

import operator
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.config import usable_cores
from offline_data.base.errors import FormatError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.raw.images import decode_into, encode_image, header_shapes, image_head, is_jpeg
from offline_data.raw.pixels import at_once, check_pixels, fits
from offline_data.store.layout import fits_encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from offline_data.store.layout import LeafSpec

    Kind: TypeAlias = tuple[str, str, tuple[int, ...]]
    """Encoding, and the dtype and shape of one decoded row."""

_HEADERS, _DECODED = 1 << 16, 32
"""Rows whose headers are checked at once, and rows that are decoded at once where few are needed."""

VERIFY = "`offline-data check --files ID` names every damaged file of a dataset"
"""Hint for rows that lie where none can."""

_pools: dict[int, ThreadPoolExecutor] = {}
"""Thread pool by process id: a forked process has none of its parent's threads."""


@pickled_by_name
class EncodedColumn:
    """A column of encoded images `[n, *shape]`: `numpy.asarray` decodes it, in threads.

    Indexing with an int returns a decoded row; with a slice, integers or a mask a column of those
    rows, still encoded and not copied. A pickled column contains only the bytes of its own rows.

    Args:
        data: uint8 bytes of all images.
        offsets: int64; row `i` is the bytes from `offsets[i]` to before `offsets[i + 1]`.
        kind: Encoding (`jpeg` or `png`), and the dtype and shape of one decoded row.
        where: Name for messages.
        rows: Rows of `offsets` that belong to the column; None: all.

    Raises:
        FormatError: The encoding does not support such a shape or dtype.

    Example:
        >>> from offline_data.raw.images import encode_image
        >>> frames = [encode_image(np.full((8, 9, 3), n, np.uint8), "png") for n in (5, 7)]
        >>> column = EncodedColumn.of(frames, ("png", "uint8", (8, 9, 3)))
        >>> column.shape, np.asarray(column)[1, 0, 0].tolist()
        ((2, 8, 9, 3), [7, 7, 7])
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        kind: Kind,
        where: str = "a column",
        rows: NDArray[np.int64] | range | None = None,
    ) -> None:
        if not fits_encoding(*kind):
            raise FormatError(
                f"Rows of {where} are {kind[1]} {list(kind[2])}, which cannot be {kind[0]} images",
                hint="jpeg: uint8 [H, W], [H, W, 1] or [H, W, 3]; png: also uint8 [H, W, 4], "
                "and uint16 [H, W] or [H, W, 1]",
            )
        self._data, self._offsets = data, offsets
        self._describe(kind, where, range(len(offsets) - 1) if rows is None else rows)

    def _describe(self, kind: Kind, where: str, rows: NDArray[np.int64] | range) -> None:
        self._kind, self._where, self._rows = kind, where, rows
        self.encoding, self.dtype = kind[0], np.dtype(kind[1])
        self.shape = (len(self._rows), *kind[2])
        self.ndim, self.size = len(self.shape), prod(self.shape)
        check_pixels(kind[2], self.dtype.itemsize, where)

    @classmethod
    def of(cls, images: Sequence[bytes], kind: Kind, where: str = "a column") -> Any:
        """Return a column of the bytes of image files."""
        offsets = np.cumsum([0, *map(len, images)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(images), np.uint8), offsets, kind, where)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedColumn.of, (self.images(), self._kind, self._where)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) and np.ndim(index) == 0:
            row = range(len(self))[operator.index(index)]
            return np.asarray(self[row : row + 1])[0]
        rows = self._rows[index] if isinstance(index, slice) else self._numbers[index]
        return self.having_rows(rows)

    def having_rows(self, rows: NDArray[np.int64] | range) -> EncodedColumn:
        """Return the column of other rows, by their numbers in the file."""
        return EncodedColumn(self._data, self._offsets, self._kind, self._where, rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("encoded images are decoded into new memory")
        out = np.empty(self.shape, self.dtype)
        self.decode(list(out))
        return out if dtype is None else out.astype(dtype, copy=False)

    def joined_with(self, others: Sequence[EncodedColumn]) -> EncodedColumn:
        """Return a column of these rows followed by those of others of the same kind."""
        columns = [self, *others]
        data: list[memoryview] = []
        sizes = [np.zeros(1, np.int64)]
        for column in columns:
            begins, ends = column.bounds()
            whole = column._data.data
            data += [whole[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
            sizes.append(ends - begins)
        offsets = np.concatenate(sizes).cumsum()
        joined = np.frombuffer(b"".join(data), np.uint8)  # three times as fast as concatenate
        return EncodedColumn(joined, offsets, self._kind, self._where)

    def in_memory(self) -> EncodedColumn:
        """Return the same column with bytes and offsets in memory, not in files."""
        data, offsets = np.array(self._data), np.array(self._offsets)
        return EncodedColumn(data, offsets, self._kind, self._where, self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the images, encoded."""
        return int(np.subtract(*self.bounds()[::-1]).sum())

    def images(self) -> list[bytes]:
        """Return the encoded images; raises `FormatError`."""
        data, begins, ends = self._stored()
        return [data[a:b].tobytes() for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]

    def runs(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all rows, contiguous ones together."""
        data, begins, ends = self._stored()
        apart = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        for first, stop in pairwise([0, *apart.tolist(), len(begins)]):
            if first < stop:
                yield data[begins[first] : ends[stop - 1]]

    def _stored(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        return self._data, *self.bounds()

    def same_rows(self, other: EncodedColumn) -> NDArray[np.bool_]:
        """Return for each row whether its bytes are those of the other column's, `[n]`."""
        pairs = zip(self.images(), other.images(), strict=True)
        return np.array([one == another for one, another in pairs], bool)

    def decode(self, places: Sequence[NDArray[Any]], threads: int | None = None) -> None:
        """Decode each row into its array; a repeated row is decoded only once.

        `places` are `n` C-contiguous arrays of the shape and dtype of a row; for `threads` see
        `in_threads`. Raises `FormatError` for an image that is damaged, or not of the declared
        shape before its pixels take memory, and `MissingDependencyError` without Pillow.
        """
        begins, ends = self.bounds()
        numbers, first, of = np.unique(self._numbers, return_index=True, return_inverse=True)
        order, stops = np.argsort(of, kind="stable"), np.cumsum(np.bincount(of, minlength=1))

        def decode_group(number: int) -> None:
            row = int(first[number])
            same = order[stops[number - 1] if number else 0 : stops[number]]
            data = self._data[begins[row] : ends[row]].tobytes()
            decode_into(data, self.encoding, places[same[0]], self._name_row(row))
            for other in same[1:]:
                np.copyto(places[other], places[same[0]])

        in_threads(decode_group, len(numbers), self._threads(threads))

    def _threads(self, threads: int | None) -> int | None:
        """Return how many threads may decode: each holds copies of an image."""
        most = at_once(self._row_bytes, copies=3)
        return most if threads is None else min(threads, most)

    @property
    def _row_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all rows decoded, `[k, *shape]`, a few at a time; see `readers.pixels`."""
        rows = min(_DECODED, at_once(self._row_bytes))
        for begin in range(0, len(self), rows):
            yield np.asarray(self[begin : begin + rows])

    def check_decoding(self, step: int) -> None:
        """Decode every `step`-th row, to check them; raises `FormatError`."""
        for _ in self[::step].blocks():
            pass

    def check_headers(self) -> None:
        """Raise `FormatError` unless every row has the header of an image of its shape."""
        height, width, channels = (*self.shape[1:], 1)[:3]
        expected = [height, width, channels, 8 * self.dtype.itemsize]
        for begin in range(0, len(self), _HEADERS):
            part = self[begin : begin + _HEADERS]
            begins, ends = part.bounds()
            found = header_shapes(self._data, begins, ends, self.encoding)
            wrong = (found != expected).any(axis=1)
            if wrong.any():
                row = int(wrong.argmax())
                header = "{} x {} pixels, {} channels of {} bits".format(*found[row].tolist())
                raise FormatError(
                    f"{part._name_row(row)} is not a {self.encoding} image of {self.dtype} "
                    f"{list(self.shape[1:])}: "
                    + (f"its header says {header}" if found[row].any() else "it has no such header")
                )

    def problem(self) -> str | None:
        """Return what is wrong with a whole feature of a dataset, or None; decodes nothing."""
        ends = self._offsets[[0, -1]].tolist()
        if ends != [0, len(self._data)]:
            return f"has {plural(len(self._data), 'byte')}, and its offsets run from {ends[0]} to {ends[1]}"
        try:
            self.check_headers()
        except FormatError as error:
            return f"has a row that cannot be decoded: {error.message}"
        return None

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the checked begin and end offset of each row; raises `FormatError`."""
        begins, ends = self._offsets[self._numbers], self._offsets[self._numbers + 1]
        wrong = (begins < 0) | (ends <= begins) | (ends > len(self._data))
        if wrong.any():
            row = int(wrong.argmax())
            raise FormatError(
                f"{self._name_row(row)} is said to be bytes {begins[row]} to {ends[row]} of "
                f"{len(self._data)}",
                hint=VERIFY,
            )
        return begins, ends

    @property
    def _numbers(self) -> NDArray[np.int64]:
        rows = self._rows
        return np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows

    def _name_row(self, row: int) -> str:
        return f"{self._where}, row {self._rows[row]},"


class PixelColumn:
    """The pixels of an encoded column, decoded where they are used: `numpy.asarray` of some rows."""

    def __init__(self, column: EncodedColumn) -> None:
        self._column = column
        self.dtype, self.shape = column.dtype, column.shape
        self.ndim, self.size = column.ndim, column.size
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: Any) -> Any:
        found = self._column[index]
        return PixelColumn(found) if isinstance(found, EncodedColumn) else found

    def joined_with(self, others: Sequence[Any]) -> Any:
        """Return these rows followed by those of others: decoded, if some of them are."""
        if not all(isinstance(other, PixelColumn) for other in others):
            return np.concatenate([np.asarray(each) for each in (self, *others)])
        return PixelColumn(self._column.joined_with([other._column for other in others]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._column.__array__(dtype, copy)

    def blocks(self) -> Iterator[NDArray[Any]]:
        return self._column.blocks()


def pixels_of(column: Any) -> Any:
    """Return the pixels of an encoded column: an array, or a `PixelColumn` if that were too large."""
    lazy = PixelColumn(column)
    return np.asarray(column) if fits(lazy.nbytes) else lazy


def blocks_of(values: Any) -> Iterator[NDArray[Any]]:
    """Yield the rows of an array, an encoded column or its pixels, decoded a few at a time."""
    if isinstance(values, (EncodedColumn, PixelColumn)):
        yield from values.blocks()
    elif len(values):
        yield values


def image_kind(data: bytes) -> Kind | None:
    """Return encoding, dtype and shape of the image in a file; None: none that a column can hold."""
    end, (height, width, channels, bits) = image_head(data)
    encoding = "jpeg" if is_jpeg(data) else "png"
    kind = (encoding, "uint16" if bits == 16 else "uint8", (height, width, channels))
    return kind if end and fits_encoding(*kind) else None


def as_encoded(values: object) -> EncodedColumn | None:
    """Return a column if it is encoded, else None."""
    return values if isinstance(values, EncodedColumn) else None


def in_threads(work: Callable[[int], None], count: int, threads: int | None = None) -> None:
    """Call `work` with each number below `count`, in `threads` threads including this one.

    None: one thread per processor. Raises the error of the lowest number that failed; no further
    calls start then.
    """
    processors = usable_cores()
    wanted = min(threads or processors, processors, count)
    numbers, failed = iter(range(count)), dict[int, Exception]()
    called = [work]

    def worker() -> None:
        for number in numbers:  # each number goes to one thread, thanks to the lock
            if failed:
                return
            try:
                called[0](number)
            except Exception as error:  # noqa: BLE001 - raised below
                failed[number] = error

    pool = _pools.get(os.getpid())
    if pool is None and wanted > 1:
        new = ThreadPoolExecutor(processors, thread_name_prefix="offline-data-images")
        pool = _pools.setdefault(os.getpid(), new)
    others = [pool.submit(worker) for _ in range(wanted - 1)] if pool else []
    worker()
    for other in others:
        if not other.cancel():
            other.result()
    called.clear()  # a cancelled call stays in the pool's queue until a thread is free
    if failed:
        raise failed[min(failed)]


def encode_rows(
    rows: NDArray[Any] | Sequence[NDArray[Any]], encoding: str, **options: Any
) -> list[bytes]:
    """Encode images, in threads; `options` are those of `encode_image`."""
    files = [b""] * len(rows)

    def encode(number: int) -> None:
        files[number] = encode_image(rows[number], encoding, **options)

    in_threads(encode, len(rows))
    return files


class EncodedWriter:
    """Appends rows to the two files of an encoded feature, by `append(file, bytes or array)`."""

    def __init__(self, leaf: LeafSpec, append: Callable[[str, Any], None]) -> None:
        self.leaf, self._append, self._end = leaf, append, 0
        append(leaf.file, b"")
        append(leaf.offsets, np.zeros(1, "<i8"))

    def append(self, rows: Any) -> None:
        """Append the rows of an `EncodedColumn`; raises `FormatError`."""
        rows.check_headers()
        for run in rows.runs():
            self._append(self.leaf.file, run)
        ends = self._end + np.cumsum(np.subtract(*rows.bounds()[::-1]))
        self._append(self.leaf.offsets, ends.astype("<i8"))
        self._end = int(ends[-1]) if len(ends) else self._end
