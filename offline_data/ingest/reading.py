"""Parts of a raw dataset become batches, in order, in this process or in several.

Workers are plain child processes that answer over pipes, not `multiprocessing`: a training
script without an `if __name__ == "__main__"` guard can load a dataset at its top level.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, cast

from typing_extensions import Self

from offline_data.errors import OfflineDataError
from offline_data.ingest.wire import receive, send
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

_CHILD = (
    "import sys; sys.path[:] = sys.argv[1:]; from offline_data.ingest.worker import main; main()"
)
"""Adapters are found in the child where they were found here."""


def read_parts(raw: RawDataset, parts: Sequence[Part], workers: int) -> Iterator[EpisodeBatch]:
    """Yield the batch of every part, in order.

    A little is read here first; where its time says that it pays, worker processes read the rest
    in smaller parts, each every `workers`-th one, at most two parts ahead.

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
    if not raw.threaded and left * (1 - 1 / workers) > _WORTH_WORKERS:
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
    raw: RawDataset, parts: Sequence[Part], workers: int
) -> Iterator[EpisodeBatch]:
    with ExitStack() as stack:
        pipes = [stack.enter_context(_Worker(raw, parts[i::workers])) for i in range(workers)]
        for number in range(len(parts)):
            yield pipes[number % workers].next_batch()


class _Worker:
    """One child process that reads its parts in order."""

    def __init__(self, raw: RawDataset, parts: Sequence[Part]) -> None:
        self._job = pickle.dumps((raw, list(parts)))

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", _CHILD, *sys.path]
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answers = cast("IO[bytes]", self._process.stdout)
        stdin = cast("IO[bytes]", self._process.stdin)
        send(stdin, self._job)
        stdin.flush()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def next_batch(self) -> EpisodeBatch:
        try:
            answer: Any = receive(self._answers)
        except EOFError:
            code = self._process.wait()
            raise OfflineDataError(
                f"A process that read the raw files ended with status {code}",
                hint="if memory was short, try again with OFFLINE_DATA_WORKERS=1",
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        return cast("EpisodeBatch", answer)
