"""Readahead: requests the pages of a batch from the disk before they are gathered."""

from __future__ import annotations

import mmap
import resource
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch

from offline_data.rows.gather import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.rows.gather.mmap import Map
    from offline_data.rows.gather.plan import GatherPlan
    from offline_data.store.reader import DatasetReader

PATIENCE = 16  # number of consecutive batches without a disk read after which readahead stops

PROBE_EVERY = 32  # interval, in batches, at which disk reads are checked while readahead is off

MAX_BATCH_BYTES = 256 << 20
"""Maximum size of a batch for readahead; larger ones are left to the kernel's readahead."""

PROBE_MICROSECONDS = 20_000
"""Time limit for checking whether files are in memory when they are opened."""

_PAGE = mmap.PAGESIZE
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

Result = TypeVar("Result")


class ByteRanges(NamedTuple):
    """Byte ranges of a file, ascending and disjoint, of whole pages except at its end."""

    map: Map
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Readahead:
    """Requests all pages of a batch at once, so that the disk can serve them in parallel.

    Otherwise each page is awaited before the next is requested, and the kernel reads about 128 KiB
    around each, most of which a random row does not need. With readahead the kernel reads only the
    requested pages; a page in memory costs about half a microsecond. It is active (`asking`) as
    long as batches cause reads: from the start, unless the files are in memory, until `PATIENCE`
    consecutive batches have caused none; and again as soon as one does.
    """

    def __init__(self, plan: GatherPlan, maps: Sequence[Map], reader: DatasetReader) -> None:
        pairs = zip(plan.gathers, maps, strict=True)
        self._sources = [(gather, map) for gather, map in pairs if map.memory is not None]
        self.asking = not _are_in_memory([map for _, map in self._sources])
        self._reader = reader
        self._quiet = 0 if self.asking else PATIENCE
        self.probes = cycle([*[False] * (PROBE_EVERY - 1), True])
        self._random: bool | None = None
        self._expected: Tensor | None = None

    def due(self) -> bool:
        """Return True if the next batch should be made by `around`, which is always allowed."""
        return self.asking or next(self.probes)

    def prefetch_rows(self, rows: Tensor) -> None:
        """Request the pages of rows to be gathered later; no reads here prove nothing."""
        before = _reads()
        self.ask(rows)
        self._expected = rows
        if _reads() > before:
            self.saw(1)

    def saw(self, reads: int) -> None:
        """Record how many disk reads a batch caused."""
        self._quiet = 0 if reads else self._quiet + 1
        self.asking = self._quiet < PATIENCE
        if not self.asking:
            self._advise(random=False)

    def ask(self, rows: Tensor) -> None:
        """Request the pages of rows, int64 `[B]`, without waiting for them."""
        expected, self._expected = self._expected, None
        if not len(rows) or (expected is not None and torch.equal(expected, rows)):
            return
        ranges = self.ranges(rows)
        large = sum(int(each.lengths.sum()) for each in ranges) > MAX_BATCH_BYTES
        self._advise(random=not large)
        for each in () if large else ranges:
            _will_need(each)

    def ranges(self, rows: Tensor) -> list[ByteRanges]:
        """Return the byte ranges of each file that contain the rows, int64 `[B]`."""
        numbers = rows.to("cpu", torch.int64).numpy()
        roots = numbers
        if any(gather.at != "step" for gather, _ in self._sources):
            roots = numbers + self._reader.episode_of(numbers)
        of_file: dict[int, tuple[Map, list[NDArray[np.int64]]]] = {}
        for gather, map in self._sources:
            positions = numbers if gather.at == "step" else roots + (gather.at == "next")
            begin = np.clip(positions, 0, gather.rows - 1) * gather.stride
            behind = begin + gather.width * map.words.itemsize
            pages = np.stack([begin // _PAGE, -(-behind // _PAGE)])
            of_file.setdefault(id(map), (map, []))[1].append(pages)
        return [_merge_ranges(map, np.concatenate(pages, 1)) for map, pages in of_file.values()]

    def _advise(self, *, random: bool) -> None:
        if self._random != random:
            self._random = random
            advice = mmap.MADV_RANDOM if random else mmap.MADV_NORMAL
            for _, map in self._sources:
                if map.memory is not None:
                    map.memory.madvise(advice)


def around(
    readaheads: Sequence[Readahead], rows: Sequence[Tensor], gather: Callable[[], Result]
) -> Result:
    """Return `gather()`, after requesting the pages of `rows` (int64 `[n]` per storage) if useful."""
    before = _reads()
    for readahead, own in zip(readaheads, rows, strict=True):
        if readahead.asking:
            readahead.ask(own)
    result = gather()
    seen = _reads() - before
    for readahead in readaheads:
        readahead.saw(seen)
    return result


def _merge_ranges(map: Map, pages: NDArray[np.int64]) -> ByteRanges:
    """Merge overlapping or adjacent page ranges `[2, n]`, first inclusive and end exclusive."""
    first, behind = pages[:, np.argsort(pages[0])]
    behind = np.maximum.accumulate(behind)
    apart = first[1:] > behind[:-1]
    starts = first[np.concatenate([[True], apart])] * _PAGE
    ends = behind[np.concatenate([apart, [True]])] * _PAGE
    return ByteRanges(map, starts, np.minimum(ends, map.nbytes) - starts)


def _will_need(ranges: ByteRanges) -> None:
    map, starts, lengths = ranges
    if native.compiled is not None:  # does not block other threads
        pairs = np.stack([starts + map.words.data_ptr(), lengths], 1)
        native.compiled.ask(pairs.ctypes.data, len(pairs))
    elif map.memory is not None:
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            map.memory.madvise(mmap.MADV_WILLNEED, start, length)


def _are_in_memory(maps: Sequence[Map]) -> bool:
    """Return True if the files are found in memory within the time limit; also touches them."""
    if native.compiled is None:
        return False
    starts = [map.words.data_ptr() for map in maps]
    pairs = np.array([starts, [map.nbytes for map in maps]], np.int64).T.copy()
    return bool(native.compiled.settle(pairs.ctypes.data, len(pairs), PROBE_MICROSECONDS))


def _reads() -> int:
    """Return how often this thread has waited for the disk or caused reads."""
    if native.compiled is not None:
        return int(native.compiled.reads())
    usage = resource.getrusage(_THREAD)
    return usage.ru_majflt + usage.ru_inblock
