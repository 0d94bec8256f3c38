"""Reports the bytes of all files of a run, from many threads: in all, and of large files singly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from offline_data.base.progress import Progress, Task

_PAUSE = 0.05  # seconds between two reports: blocks come far more often than anyone can read

LARGE = 16 << 20  # minimum size in bytes of files that get their own progress bar


class ByteProgress:
    """Reports the bytes of a run: whole files and restarts at once, others some times a second."""

    def __init__(
        self,
        task: Task,
        sizes: Sequence[int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._sizes = list(sizes)
        self._seen = [0] * len(self._sizes)
        self._clock = clock
        self._unreported = 0
        self._reported_at = float("-inf")
        self._followed: dict[int, tuple[Task, int]] = {}
        self._lock = Lock()

    @contextmanager
    def following(self, index: int, label: str, progress: Progress) -> Iterator[None]:
        """Report one file to a task of its own too, if it is large and not the only one."""
        size = self._sizes[index]
        if len(self._sizes) == 1 or (size is not None and size < LARGE):
            yield
            return
        with progress.task(label, size, "B") as task:
            with self._lock:
                self._followed[index] = (task, 0)
            try:
                yield
            finally:
                with self._lock:
                    del self._followed[index]

    def at(self, index: int, seen: int) -> None:
        """Report that `seen` bytes of a file are here; fewer than before if it starts over."""
        with self._lock:
            more = seen - self._seen[index]
            self._seen[index] = seen
            self._unreported += more
            due = self._clock() - self._reported_at >= _PAUSE
            if more < 0 or due or seen == self._sizes[index]:
                self._report()

    def add_resumed(self, index: int, seen: int) -> None:
        """Report that `seen` bytes of a file were here before: they count, but not as speed."""
        with self._lock:
            more = seen - self._seen[index]
            self._seen[index] = seen
            self._task.skip(more)
            if index in self._followed:
                task, reported = self._followed[index]
                task.skip(more)
                self._followed[index] = (task, reported + more)

    def set_size(self, index: int, size: int) -> None:
        """Set the size of a file in bytes."""
        with self._lock:
            if self._sizes[index] != size:
                self._sizes[index] = size
                if index in self._followed:
                    self._followed[index][0].resize(size)
                total = total_of(self._sizes)
                if total is not None:
                    self._task.resize(total)
            if self._seen[index] == size:
                self._report()

    def _report(self) -> None:
        self._reported_at = self._clock()
        if self._unreported:
            self._task.advance(self._unreported)
            self._unreported = 0
        for index, (task, reported) in self._followed.items():
            if self._seen[index] != reported:
                task.advance(self._seen[index] - reported)
                self._followed[index] = (task, self._seen[index])


def total_of(sizes: Sequence[int | None]) -> int | None:
    """Return the sum of sizes, None while one is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
