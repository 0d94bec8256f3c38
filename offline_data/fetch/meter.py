"""Counts the bytes of all files of a run for one `Progress` task, from many threads."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.progress import Task


class Meter:
    """The bytes of a run: how many there are, how many have come.

    Args:
        task: Where to tell them; only ever called by one thread at a time.
        sizes: Size of each file, None where nobody says yet.
    """

    def __init__(self, task: Task, sizes: Sequence[int | None]) -> None:
        self._task = task
        self._sizes = list(sizes)
        self._seen = [0] * len(self._sizes)
        self._lock = Lock()

    def at(self, index: int, seen: int) -> None:
        """Say that `seen` bytes of a file are here; fewer than before where it starts over."""
        with self._lock:
            if seen != self._seen[index]:
                self._task.advance(seen - self._seen[index])
                self._seen[index] = seen

    def sized(self, index: int, size: int) -> None:
        """Say how many bytes a file has."""
        with self._lock:
            if self._sizes[index] != size:
                self._sizes[index] = size
                if None not in self._sizes:
                    self._task.resize(sum(known or 0 for known in self._sizes))


def total_of(sizes: Sequence[int | None]) -> int | None:
    """Sum of sizes, None while one is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
