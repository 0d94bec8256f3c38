"""Parts of a raw dataset become batches, in order, from one process or several.

Raw files are read in child processes (`ParserProcess`), one or, where that pays, as many as there
are workers; what needs no parsing, a dataset directory of this package, in this process.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from offline_data.ingest.parsing import ParserProcess
from offline_data.sources.base import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from offline_data.episodes import EpisodeBatch
    from offline_data.sources.base import RawDataset

BUDGET = 32 << 20
"""Bytes of one part; a conversion holds a few of them at a time."""

_PARTS_PER_WORKER = 6
"""Parts a worker should get at least, so that none waits long for the last."""

_PROBES = 16
"""The first part is begun with two pieces of a sixteenth, to see how long reading takes."""

_WORTH_WORKERS = 1.0
"""Seconds that worker processes must be expected to save, to pay for their start."""


def read_parts(raw: RawDataset, parts: Sequence[Part], workers: int) -> Iterator[EpisodeBatch]:
    """Yield the batch of every part, in order.

    A little is read first; where its time says that it pays, several processes read the rest in
    smaller parts, each every `workers`-th one, at most two parts ahead.

    Raises:
        FormatError: What the adapter raised, also in a worker.
    """
    parts = _with_probes(parts)
    for part in parts[:1]:  # its time is that of opening and importing, too
        yield raw.read(part)
    left = 0.0
    for part in parts[1:2]:
        begin = time.perf_counter()
        batch = raw.read(part)
        each = (time.perf_counter() - begin) / (part.stop - part.first)
        left = each * (parts[-1].stop - part.stop)
        yield batch
    rest = parts[2:]
    pays = not raw.threaded and left * (1 - 1 / workers) > _WORTH_WORKERS
    if isinstance(raw, ParserProcess) and pays:
        smaller = _pieces(rest, -(-_PARTS_PER_WORKER * workers // len(rest)))
        yield from _read_in_workers(raw, smaller, min(workers, len(smaller)))
    else:
        yield from _read_ahead(raw, rest)


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


def _read_ahead(raw: RawDataset, parts: Sequence[Part]) -> Iterator[EpisodeBatch]:
    """Read each part while the one before it is being packed and written."""
    with ThreadPoolExecutor(1, thread_name_prefix="offline-data-read") as pool:
        pending = deque(pool.submit(raw.read, part) for part in parts[:1])
        for part in parts[1:]:
            batch = pending.popleft().result()
            pending.append(pool.submit(raw.read, part))
            yield batch
        for last in pending:
            yield last.result()


def _read_in_workers(
    raw: ParserProcess, parts: Sequence[Part], workers: int
) -> Iterator[EpisodeBatch]:
    with ExitStack() as stack:
        others = [stack.enter_context(raw.another()) for _ in range(workers - 1)]
        processes = [raw, *others]
        for number, part in enumerate(parts):
            processes[number % workers].send(part)
        for number in range(len(parts)):
            yield processes[number % workers].receive()
