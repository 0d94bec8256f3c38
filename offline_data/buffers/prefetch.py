"""Batches made ahead by threads: drawn in order here, made there, handed out in order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


class Draw(NamedTuple):
    """Output of a sampler for one batch: rows int64 `[B]`, leaves by key, and if an epoch ends."""

    rows: Tensor
    info: dict[Any, Tensor]
    last: bool


Make: TypeAlias = "Callable[[Draw], Any]"
"""Makes the batch of a draw; called by several threads at once."""


class Prefetcher:
    """Draws batches in the thread that asks, and makes them ahead in others.

    Threads start on first use, and again in a forked process; they end with the prefetcher, which
    holds neither the buffer nor its sampler.

    Args:
        depth: Number of batches, and of threads. 0: no threads; a batch is made when it is taken.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._queue: deque[tuple[Draw, Future[Any] | None]] = deque()
        self._leaving: set[Future[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        """Return how many batches were drawn and not handed out."""
        return len(self._queue)

    def take(self, draw: Callable[[], Draw], make: Make) -> tuple[Draw, Future[Any] | None]:
        """Return the next draw, and its batch under way, or None if the caller is to make it."""
        if not self._depth:
            return self._queue.popleft() if self._queue else (draw(), None)
        self._recover(make)
        while len(self._queue) <= self._depth:
            self._submit(draw(), make)
        following, future = self._queue.popleft()
        if future is not None:  # another thread may write before this one has the batch
            self._leaving.add(future)
            future.add_done_callback(self._leaving.discard)
        return following, future

    def drawn(self) -> list[Draw]:
        """Return the draws whose batches were not handed out, in their order."""
        return [draw for draw, _ in self._queue]

    def restore(self, draws: Iterable[Draw], make: Make) -> None:
        """Forget what is under way; these are the next draws."""
        self.settle()
        self._queue.clear()
        for draw in draws:
            self._submit(draw, make)

    def settle(self) -> None:
        """Wait until no thread is making a batch."""
        if self._process == os.getpid():
            waiting = [future for _, future in self._queue if future is not None]
            wait([*waiting, *self._leaving])

    def remake(
        self, stale: Callable[[Draw], bool], make: Make, again: Callable[[Draw], Draw | None]
    ) -> None:
        """Replace stale draws by what `again` draws instead; None: there is nothing to draw."""
        waiting, self._queue = self._queue, deque()
        for draw, future in waiting:
            if not stale(draw):
                self._queue.append((draw, future))
            elif (instead := again(draw)) is not None:
                self._submit(instead, make)

    def __getstate__(self) -> dict[str, Any]:
        """Take draws along, and leave threads behind."""
        queue = deque((draw, None) for draw, _ in self._queue)
        return {**vars(self), "_queue": queue, "_leaving": set(), "_threads": None, "_process": -1}

    def _submit(self, draw: Draw, make: Make) -> None:
        if not self._depth:
            self._queue.append((draw, None))
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._depth, thread_name_prefix="offline-data")
        self._queue.append((draw, self._threads.submit(make, draw)))

    def _recover(self, make: Make) -> None:
        """Begin anew in a process that was forked, or that this was pickled to."""
        if self._process != os.getpid():
            self._process, self._threads, self._leaving = os.getpid(), None, set()
            waiting, self._queue = self._queue, deque()
            for draw, _ in waiting:
                self._submit(draw, make)
