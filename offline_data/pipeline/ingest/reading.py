"""Raw data read as batches of episodes, in their order, in this process or several; errors name the file."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.base.ahead import Ahead
from offline_data.base.config import usable_cores
from offline_data.base.errors import AccessError, FormatError, NotFoundError, OfflineDataError
from offline_data.base.plurals import plural
from offline_data.formats.base import PART_BYTES, Part, RandomAccess, RawDataset, Shard
from offline_data.pipeline.jobs.executors import BYTES_A_SECOND
from offline_data.pipeline.jobs.processes import Child, ChildDiedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.episode import EpisodeBatch, Skipped

_PARTS_PER_WORKER = 6
"""Parts a worker should get at least, so that none waits long for the last."""

_PROBES = 16
"""The first part is begun with two pieces of a sixteenth, to see how long reading takes."""

_WORTH_WORKERS = 1.0
"""Seconds that worker processes must be expected to save, to pay for their start."""
_PIPED_A_SECOND = 500e6
"""Bytes of rows that pass a pipe in a second."""

_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPROF"}
"""Signals of crashes, and that of `limit_resources` to a process that computes too long."""
_NOT_THE_FILE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE}


class NoEpisodesError(NotFoundError):
    """A shard without episodes, or without any that were requested or could be read."""

    skipped: tuple[Skipped, ...] = ()
    """Episodes and features that are not in the dataset."""

    @classmethod
    def among(
        cls, seen: int, skipped: Sequence[Skipped], episodes: tuple[int | None, int | None] | None
    ) -> Self:
        """Return the error for a source of `seen` episodes besides those left out, and a range."""
        said = [
            f"The source has {plural(seen, 'episode')}" if seen else "The source has no episodes"
        ]
        if skipped:
            more = f", and {len(skipped) - 1:,} more" if len(skipped) > 1 else ""
            said.append(f"skipped {skipped[0].where}: {skipped[0].reason}{more}")
        if episodes:
            said.append("none is in the requested range")
        error = cls("; ".join(said))
        error.skipped = tuple(skipped)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Keep what was left out when it crosses a process boundary."""
        return (*super().__reduce__(), {"skipped": self.skipped})


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn exceptions of the block into a `FormatError`, or `AccessError`, that names the path."""
    try:
        yield
    except (OfflineDataError, ImportError):  # a missing package is not the fault of the file
        raise
    except MemoryError as error:
        raise FormatError(
            f"not enough memory to read {path}: it is damaged, or declares more than it holds",
            hint="free memory, or raise its limit (ulimit -v), if the file is to be trusted",
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOT_THE_FILE:
            raise AccessError(f"{path} cannot be read: {error.strerror or error}") from error
        said = " ".join(str(error).split())[:300]
        raise FormatError(
            f"{path} cannot be read: {type(error).__name__}: {said}",
            hint="fetch or copy it again; -v shows where reading it failed",
        ) from error


def crash_error(path: Path, ending: str, helper: str = "") -> OfflineDataError:
    """Return the error for a process that crashed while reading a file with `RawDataset.helper`."""
    if ending.rpartition(" ")[2] in _CRASHES:
        files = f"{path}, or {helper}," if helper else str(path)
        return FormatError(
            f"{files} is damaged: the process that read it {ending}",
            hint="fetch or copy the file again",
        )
    return OfflineDataError(
        f"A process that read the raw files {ending}",
        hint="if memory was short, try again with OFFLINE_DATA_WORKERS=1",
    )


class ParsedDataset(RawDataset):
    """A raw dataset whose errors name the file or folder."""

    def __init__(self, path: Path, raw: RawDataset) -> None:
        self.path, self._raw = path, raw
        self.info, self.helper = raw.info, raw.helper

    def shards(self) -> Sequence[Shard]:
        with blaming(self.path):
            return tuple(self._raw.shards())

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        with blaming(self.path):
            yield from self._raw.read(shard)

    def lacking(self, shard: Shard) -> Sequence[str]:
        with blaming(self.path):
            return tuple(self._raw.lacking(shard))


class ParsedParts(ParsedDataset, RandomAccess):
    """A `ParsedDataset` with parts, which processes can read."""

    _raw: RandomAccess

    def __init__(self, path: Path, raw: RandomAccess) -> None:
        super().__init__(path, raw)
        self.threaded = raw.threaded

    def parts(self, budget: int) -> Sequence[Part]:
        with blaming(self.path):
            return self._raw.parts(budget)

    def read_part(self, part: Part) -> EpisodeBatch:
        with blaming(self.path):
            return self._raw.read_part(part)

    def read_in_processes(self, parts: Sequence[Part], count: int) -> Iterator[EpisodeBatch]:
        """Yield the batch of every part, in order; process `i` reads every `count`-th part."""
        with ExitStack() as stack:
            readers = [stack.enter_context(Child(self.read_part, quiet=True)) for _ in range(count)]
            for number, part in enumerate(parts):
                readers[number % count].send(part)
            for number in range(len(parts)):
                reader = readers[number % count]
                try:
                    yield reader.receive()
                except ChildDiedError:
                    raise crash_error(self.path, reader.ending) from None


def parsed(path: Path, opened: Callable[[Path], RawDataset]) -> ParsedDataset:
    """Open a file or folder; raises `FormatError`, which names it, if it is not of the format."""
    with blaming(path):
        raw = opened(path)
        return ParsedParts(path, raw) if isinstance(raw, RandomAccess) else ParsedDataset(path, raw)


def chosen_parts(
    parts: Sequence[Part], episodes: tuple[int | None, int | None] | None
) -> list[Part]:
    """Cut parts to a half-open range of episodes.

    Raises:
        NotFoundError: The range holds no episode of the source.

    Example:
        >>> chosen_parts([Part(0, 4), Part(4, 9)], (2, 5))
        [Part(first=2, stop=4, transitions=None), Part(first=4, stop=5, transitions=None)]
    """
    count = parts[-1].stop if parts else 0
    first, stop = episodes or (None, None)
    first, stop = first or 0, count if stop is None else stop
    chosen = [
        part
        if first <= part.first and part.stop <= stop
        else Part(max(part.first, first), min(part.stop, stop))
        for part in parts
        if part.first < stop and first < part.stop
    ]
    if not chosen:
        raise NotFoundError(
            f"The source has {plural(count, 'episode')}; none is in the requested range"
        )
    return chosen


def read_shard(
    raw: RawDataset, shard: Shard, episodes: tuple[int | None, int | None] | None
) -> Iterator[EpisodeBatch]:
    """Yield the batches of a shard that is read in order, or of a range of its episodes.

    Raises:
        FormatError: What the adapter raised, or another number of episodes than it has stated.
        NoEpisodesError: There is none, or none in the range.
    """
    first, stop = episodes or (None, None)
    seen, chosen = 0, False
    skipped: list[Skipped] = []
    reading = iter(raw.read(shard))
    with closing(Ahead(reading)) if raw.own_thread else nullcontext(reading) as batches:
        for batch in batches:
            begin, seen = seen, seen + len(batch.lengths)
            skipped += batch.skipped
            end = len(batch.lengths) if stop is None else stop - begin
            wanted = batch.part(max(0, (first or 0) - begin), end)
            if len(wanted.lengths) or wanted.skipped or wanted.warnings:
                chosen = chosen or len(wanted.lengths) > 0
                yield wanted
            if stop is not None and seen >= stop:
                return
    if shard.episodes not in {None, seen} and not skipped:
        raise FormatError(f"it has {plural(seen, 'episode')}, and {shard.episodes} are stated")
    if not chosen:
        raise NoEpisodesError.among(seen, skipped, episodes)


def decode_images(batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Yield the episodes of batches with pixels in place of JPEG and PNG images.

    Pixels take far more memory: a batch is cut to pieces of about `PART_BYTES`, whole episodes each.
    Raises `FormatError` for an image that is damaged.
    """
    import numpy as np

    from offline_data.store.encoded import as_encoded, pixels_of

    for batch in batches:
        row = sum(prod(c.shape[1:]) * c.dtype.itemsize for c in batch.observations.values())
        most = max(1, PART_BYTES // max(1, row))
        begin = 0
        while begin < len(batch.lengths):
            rows = np.cumsum(batch.lengths[begin:])
            stop = begin + max(1, int(np.searchsorted(rows, most, "right")))
            piece = batch.part(begin, stop)
            pixels, steps = (
                {k: c if as_encoded(c) is None else pixels_of(c) for k, c in columns.items()}
                for columns in (piece.observations, piece.steps)
            )
            skipped = () if begin else batch.skipped
            yield replace(piece, steps=steps, observations=pixels, skipped=skipped)
            begin = stop
        if not len(batch.lengths):
            yield batch


def read_pieces(
    raw: RawDataset, shards: Sequence[Shard], skip: int
) -> Iterator[tuple[int, int, EpisodeBatch]]:
    """Yield the episodes of shards in batches, with the numbers of the first episode and row in them.

    The first `skip` episodes are read and left out. Raises what `read_shard` raises, but for shards
    without episodes.
    """
    episode = row = 0
    for shard in shards:
        with suppress(NoEpisodesError):
            for batch in read_shard(raw, shard, None):
                before = min(max(0, skip - episode), len(batch.lengths))
                wanted = batch.part(before, len(batch.lengths))
                if len(wanted.lengths) or batch.skipped:
                    first = row + batch.transitions - wanted.transitions
                    yield episode + before, first, wanted
                episode, row = episode + len(batch.lengths), row + batch.transitions


def read_parts(raw: RandomAccess, parts: Sequence[Part], workers: int) -> Iterator[EpisodeBatch]:
    """Yield the batch of every part, in order.

    A little is read first; where its time says that it pays, several processes read the rest in
    smaller parts, each every `workers`-th one, at most two parts ahead.

    Raises:
        FormatError: What the adapter raised, also in a worker.
    """
    parts = _with_probes(parts)
    for part in parts[:1]:  # its time is that of opening and importing, too
        yield raw.read_part(part)
    pays = False
    for part in parts[1:2]:
        begin = time.perf_counter()
        batch = raw.read_part(part)
        took, share = time.perf_counter() - begin, part.stop - part.first
        scale = (parts[-1].stop - part.stop) / share
        pays = not raw.threaded and _saves_time(took * scale, batch.nbytes * scale, workers)
        yield batch
    rest = parts[2:]
    if isinstance(raw, ParsedParts) and pays:
        smaller = _pieces(rest, -(-_PARTS_PER_WORKER * workers // len(rest)))
        yield from raw.read_in_processes(smaller, min(workers, len(smaller)))
    else:
        with closing(Ahead(map(raw.read_part, rest))) as batches:
            yield from batches


def _saves_time(reading: float, rows: float, workers: int) -> bool:
    """Return True if processes would end earlier: `reading` are seconds in one, `rows` bytes.

    One process reads while a thread of it writes; of several, the rows also pass pipes.
    """
    cores, writing = usable_cores(), rows / BYTES_A_SECOND
    alone = max(reading, writing, (reading + writing) / min(cores, 2))
    work = reading + writing + rows / _PIPED_A_SECOND
    together = _WORTH_WORKERS + max(reading / workers, writing, work / cores)
    return workers > 1 and together < alone


def _with_probes(parts: Sequence[Part]) -> list[Part]:
    """Cut two small pieces off the beginning of the first part."""
    probes = _pieces(parts[:1], _PROBES)[:2]
    begun = probes[-1].stop
    rest = [Part(begun, parts[0].stop)] if begun < parts[0].stop else []
    return [*probes, *rest, *parts[1:]]


def _pieces(parts: Sequence[Part], count: int) -> list[Part]:
    """Cut each part into about `count` consecutive ones of as many episodes.

    Example:
        >>> [(p.first, p.stop) for p in _pieces([Part(0, 5), Part(5, 6)], 2)]
        [(0, 3), (3, 5), (5, 6)]
    """
    return [
        Part(first, min(first + step, part.stop))
        for part in parts
        for step in [-(-(part.stop - part.first) // count)]
        for first in range(part.first, part.stop, step)
    ]
