"""The protocol of executors, which run the tasks of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from offline_data.base.errors import UsageError
from offline_data.base.progress import Progress

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs the tasks of one job.

    A job is a function of one task that may run repeatedly: if a process dies, its task starts
    again. Job, tasks and answers are small; data go through files. A job may close over functions
    of a notebook: executors pickle it with cloudpickle.
    """

    name: str
    """Name for messages: `in process`, `2 processes`, `ray`."""
    shards: bool
    """Whether tasks may run on several machines that share a filesystem; then each task must write
    files of its own."""

    def run(
        self, job: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> Iterator[tuple[int, R]]:
        """Yield `(number of the task in tasks, answer)` as tasks finish, in any order.

        Closing the iterator, or an error from it, stops all running tasks and waits for their end.

        Args:
            job: Called on each task.
            tasks: All tasks.
            progress: Gets a note when a process died and its task runs again.

        Raises:
            OfflineDataError: Raised by `job`.
            WorkerDiedError: A process died twice with the same task.
        """


def at_least(least: int, value: int, name: str) -> int:
    """Return a number; raises `UsageError` if it is too small."""
    if value < least:
        raise UsageError(f"{name} is {value}; expected at least {least}")
    return value
