"""The simplest executor: tasks in order, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from offline_data.preprocess.executors.base import R, T
    from offline_data.progress import Progress


class InProcess:
    """Runs tasks here; see `Executor`.

    Example:
        >>> from offline_data.progress import SILENT
        >>> list(InProcess().run(abs, [-3, 4], SILENT))
        [(0, 3), (1, 4)]
    """

    name = "in process"
    shards = False

    def run(
        self,
        job: Callable[[T], R],
        tasks: Sequence[T],
        progress: Progress,  # noqa: ARG002 - no process of its own can die
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task, in order."""
        for number, task in enumerate(tasks):
            yield number, job(task)
