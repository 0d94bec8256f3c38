"""Counts the bytes of all files of a run for one `Progress` task, from many threads."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offline_data.progress import Task

_PAUSE = 0.05
"""Seconds between two words to the task: blocks come far more often than anyone can read."""


class Meter:
    """The bytes of a run: how many there are, how many have come.

    The task is told at once when a file is whole or starts over, else a few times a second.

    Args:
        task: Where to tell them; only ever called by one thread at a time.
        sizes: Size of each file, None where nobody says yet.
        clock: Seconds from some moment on.
    """

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
        self._untold = 0
        self._told = float("-inf")
        self._lock = Lock()

    def at(self, index: int, seen: int) -> None:
        """Say that `seen` bytes of a file are here; fewer than before where it starts over."""
        with self._lock:
            more = seen - self._seen[index]
            self._seen[index] = seen
            self._untold += more
            if more < 0 or seen == self._sizes[index] or self._clock() - self._told >= _PAUSE:
                self._tell()

    def sized(self, index: int, size: int) -> None:
        """Say how many bytes a file has."""
        with self._lock:
            if self._sizes[index] != size:
                self._sizes[index] = size
                if None not in self._sizes:
                    self._task.resize(sum(known or 0 for known in self._sizes))
            if self._seen[index] == size:
                self._tell()

    def _tell(self) -> None:
        self._told = self._clock()
        if self._untold:
            self._task.advance(self._untold)
            self._untold = 0


def total_of(sizes: Sequence[int | None]) -> int | None:
    """Sum of sizes, None while one is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
