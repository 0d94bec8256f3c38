"""Batches made ahead by threads: drawn in order here, made there, handed out in order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Draw(NamedTuple):
    """What a sampler said for one batch."""

    rows: Tensor
    """int64 `[B]`."""
    info: dict[Any, Tensor]
    """Leaves of the batch that the sampler knows, by key."""
    last: bool
    """Whether the batch ends an epoch."""


class Prefetcher:
    """Keeps `depth` batches under way.

    Drawing happens in the thread that asks, so rows and their order are those of a buffer that
    does not prefetch. Threads are started on first use, and again in a forked process.

    Args:
        draw: Draws the rows of the next batch.
        make: Makes the batch of a draw; called by several threads at once.
        depth: Number of batches, and of threads.
    """

    def __init__(self, draw: Callable[[], Draw], make: Callable[[Draw], Any], depth: int) -> None:
        self._draw = draw
        self._make = make
        self._depth = depth
        self._queue: deque[tuple[Draw, Future[Any]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def take(self) -> tuple[Draw, Any]:
        """Return the next batch and its draw; raises what drawing or making it raised."""
        threads = self._running()
        while len(self._queue) <= self._depth:
            draw = self._draw()
            self._queue.append((draw, threads.submit(self._make, draw)))
        draw, future = self._queue.popleft()
        return draw, future.result()

    def close(self) -> None:
        """Drop what is under way and end the threads."""
        self._queue.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._threads = None

    def _running(self) -> ThreadPoolExecutor:
        if self._process != os.getpid():  # threads do not survive a fork
            self._process = os.getpid()
            self._remake()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._depth, thread_name_prefix="offline-data")
        return self._threads

    def _remake(self) -> None:
        self._threads = ThreadPoolExecutor(self._depth, thread_name_prefix="offline-data")
        draws = [draw for draw, _ in self._queue]
        self._queue.clear()
        self._queue.extend((draw, self._threads.submit(self._make, draw)) for draw in draws)
