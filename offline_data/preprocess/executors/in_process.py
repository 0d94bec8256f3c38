"""The simplest executor: tasks in order, in this process."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from offline_data.preprocess.executors.base import R, T
    from offline_data.progress import Progress


class InProcess:
    """Runs tasks here; see `Executor`.

    Args:
        threads: Threads that torch computes with meanwhile; None: as many as before.

    Example:
        >>> from offline_data.progress import SILENT
        >>> list(InProcess().run(abs, [-3, 4], SILENT))
        [(0, 3), (1, 4)]
    """

    name = "in process"
    shards = False

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def run(
        self,
        job: Callable[[T], R],
        tasks: Sequence[T],
        progress: Progress,  # noqa: ARG002 - no process of its own can die
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task, in order."""
        with _threads(self._threads):
            for number, task in enumerate(tasks):
                yield number, job(task)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Have torch compute with so many threads, where it is imported: sums may depend on it."""
    torch = sys.modules.get("torch")
    if count is None or torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
