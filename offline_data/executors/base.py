"""The protocol of executors: who runs the tasks of a job, where, and what is promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from offline_data.progress import Progress

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs the tasks of one job.

    A job is a function of one task that may be run again: a task that was half done when its
    process died is run once more from its beginning. Job, tasks and answers are small; data go
    through files. A job may close over functions of a notebook: executors that send it elsewhere
    use cloudpickle.
    """

    name: str
    """Name in the manifest and on the screen: `in process`, `2 processes`, `ray`."""
    shards: bool
    """Whether tasks may run on machines that share only a filesystem: then each writes files of
    its own, and never two of them into one."""

    def run(
        self, job: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> Iterator[tuple[int, R]]:
        """Yield `(number of the task in tasks, answer)` as tasks finish, in any order.

        Closing the iterator, or an error out of it, stops everything that is under way and waits
        for its end.

        Args:
            job: Called with each task.
            tasks: All of them.
            progress: Told (`note`) when a process died and its task is run again.

        Raises:
            OfflineDataError: Raised by `job`, passed on as it is.
            WorkerDiedError: A process died twice with the same task.
        """


def at_least(least: int, value: int, name: str) -> int:
    """Return a number; raises `UsageError` if it is too small."""
    if value < least:
        raise UsageError(f"{name} is {value}; expected at least {least}")
    return value
