"""Pages of a batch, asked for before they are gathered, as long as they come from a disk."""

from __future__ import annotations

import mmap
import resource
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch

from offline_data.buffers.gather import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.buffers.gather.mmap import Map
    from offline_data.buffers.gather.plan import GatherPlan
    from offline_data.store.reader import DatasetReader

PATIENCE = 16
"""Batches without a read from a disk after which pages are not asked for any more."""

PROBE_EVERY = 32
"""Of how many batches one is looked at, from then on."""

MAX_BATCH_BYTES = 256 << 20
"""Bytes up to which a batch asks for its pages; a larger one is left to the kernel's readahead."""

PROBE_MICROSECONDS = 20_000
"""Microseconds to find out whether files are in memory when they are opened."""

_PAGE = mmap.PAGESIZE
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

Made = TypeVar("Made")


class ByteRanges(NamedTuple):
    """Bytes of a file, ascending: whole pages, but for the end of the file, none of them twice."""

    map: Map
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Readahead:
    """Asks for all pages of a batch at once, so that the disk has many requests to work on.

    Without it each page is waited for before the next one is asked for, and the kernel reads about
    128 KiB around each, of which a random row uses little. With it the kernel reads what was asked
    for and nothing else; pages that are in memory cost about half a microsecond each. So it is
    done while batches cause reads (`asking`): from the first one on unless the files are found in
    memory, and until `PATIENCE` batches in a row have caused none; then again as soon as one does.
    """

    def __init__(self, plan: GatherPlan, maps: Sequence[Map], reader: DatasetReader) -> None:
        pairs = zip(plan.gathers, maps, strict=True)
        self._sources = [(gather, map) for gather, map in pairs if map.memory is not None]
        self.asking = not _settled([map for _, map in self._sources])
        self._reader = reader
        self._quiet = 0 if self.asking else PATIENCE
        self.probes = cycle([*[False] * (PROBE_EVERY - 1), True])
        self._random: bool | None = None
        self._expected: Tensor | None = None

    def due(self) -> bool:
        """Return True if the next batch is to be made by `around`; it may always be."""
        return self.asking or next(self.probes)

    def prefetch_rows(self, rows: Tensor) -> None:
        """Ask for the pages of rows that are gathered later; no reads for them mean nothing."""
        before = _reads()
        self.ask(rows)
        self._expected = rows
        if _reads() > before:
            self.saw(1)

    def saw(self, reads: int) -> None:
        """Take note of how often a disk was read for a batch."""
        self._quiet = 0 if reads else self._quiet + 1
        self.asking = self._quiet < PATIENCE
        if not self.asking:
            self._advise(random=False)

    def ask(self, rows: Tensor) -> None:
        """Have the pages of rows, int64 `[B]`, read, without waiting for them."""
        expected, self._expected = self._expected, None
        if not len(rows) or (expected is not None and torch.equal(expected, rows)):
            return
        ranges = self.ranges(rows)
        large = sum(int(each.lengths.sum()) for each in ranges) > MAX_BATCH_BYTES
        self._advise(random=not large)
        for each in () if large else ranges:
            _will_need(each)

    def ranges(self, rows: Tensor) -> list[ByteRanges]:
        """Return the bytes of each file that the rows, int64 `[B]`, lie in."""
        numbers = rows.to("cpu", torch.int64).numpy()
        roots = numbers
        if any(gather.at != "step" for gather, _ in self._sources):
            roots = numbers + np.searchsorted(self._reader.starts, numbers, side="right") - 1
        of_file: dict[int, tuple[Map, list[NDArray[np.int64]]]] = {}
        for gather, map in self._sources:
            where = numbers if gather.at == "step" else roots + (gather.at == "next")
            begin = np.clip(where, 0, gather.rows - 1) * gather.stride
            behind = begin + gather.width * map.words.itemsize
            pages = np.stack([begin // _PAGE, -(-behind // _PAGE)])
            of_file.setdefault(id(map), (map, []))[1].append(pages)
        return [_merged(map, np.concatenate(pages, 1)) for map, pages in of_file.values()]

    def _advise(self, *, random: bool) -> None:
        """Turn the kernel's own read-ahead off for random access, or on again."""
        if self._random != random:
            self._random = random
            advice = mmap.MADV_RANDOM if random else mmap.MADV_NORMAL
            for _, map in self._sources:
                if map.memory is not None:
                    map.memory.madvise(advice)


def around(
    readaheads: Sequence[Readahead], rows: Sequence[Tensor], gather: Callable[[], Made]
) -> Made:
    """Make a batch of rows, int64 `[n]` of each storage, after asking for their pages if that pays."""
    before = _reads()
    for readahead, own in zip(readaheads, rows, strict=True):
        if readahead.asking:
            readahead.ask(own)
    made = gather()
    seen = _reads() - before
    for readahead in readaheads:
        readahead.saw(seen)
    return made


def _merged(map: Map, pages: NDArray[np.int64]) -> ByteRanges:
    """Merge pages, from the first to before the last, `[2, n]`, that overlap or adjoin."""
    first, behind = pages[:, np.argsort(pages[0])]
    behind = np.maximum.accumulate(behind)
    apart = first[1:] > behind[:-1]
    starts = first[np.concatenate([[True], apart])] * _PAGE
    ends = behind[np.concatenate([apart, [True]])] * _PAGE
    return ByteRanges(map, starts, np.minimum(ends, map.nbytes) - starts)


def _will_need(ranges: ByteRanges) -> None:
    map, starts, lengths = ranges
    if native.compiled is not None:  # holds no other thread up
        pairs = np.stack([starts + map.words.data_ptr(), lengths], 1)
        native.compiled.ask(pairs.ctypes.data, len(pairs))
    elif map.memory is not None:
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            map.memory.madvise(mmap.MADV_WILLNEED, start, length)


def _settled(maps: Sequence[Map]) -> bool:
    """Return True if files are in memory, found out in little time: then touch them, too."""
    if native.compiled is None:
        return False
    starts = [map.words.data_ptr() for map in maps]
    pairs = np.array([starts, [map.nbytes for map in maps]], np.int64).T.copy()
    return bool(native.compiled.settle(pairs.ctypes.data, len(pairs), PROBE_MICROSECONDS))


def _reads() -> int:
    """Count how often this thread has waited for a disk, or had it read."""
    if native.compiled is not None:
        return int(native.compiled.reads())
    usage = resource.getrusage(_THREAD)
    return usage.ru_majflt + usage.ru_inblock
