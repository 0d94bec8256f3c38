"""The protocol of executors: who runs the tasks of a job, where, and what is promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

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
    """What the manifest and the screen call it: `in process`, `2 processes`, `ray`."""
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
            job: What to do with a task.
            tasks: All of them.
            progress: Told (`note`) when a process died and its task is run again.

        Raises:
            OfflineDataError: What `job` raised, as it was raised there.
            WorkerDiedError: A process died twice with the same task.
        """
