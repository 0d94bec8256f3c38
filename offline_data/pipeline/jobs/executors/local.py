"""Executors of one machine: this process, or child processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from offline_data.base.errors import WorkerDiedError
from offline_data.base.plurals import plural
from offline_data.base.progress import Progress
from offline_data.pipeline.jobs.executors.base import R, T, at_least
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from offline_data.pipeline.jobs.processes.protocol import pack_function


def choose_workers(seconds: float, workers: int, start_cost: float) -> int:
    """Return `workers` if they save more time than they take to start, else 1 (this process).

    `seconds` is the estimated time of all tasks in one process; workers start in parallel.

    Example:
        >>> choose_workers(60.0, 4, start_cost=3.0), choose_workers(3.5, 4, start_cost=3.0)
        (4, 1)
    """
    return workers if seconds * (1 - 1 / workers) > start_cost else 1


class InProcess:
    """Runs tasks in this process, in order; see `Executor`.

    Args:
        threads: Torch threads meanwhile; None: unchanged.

    Example:
        >>> from offline_data.base.progress import SILENT
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
        with _torch_threads(self._threads):
            for number, task in enumerate(tasks):
                yield number, job(task)


class LocalProcesses:
    """Runs tasks in child processes of this one; see `Executor`.

    Children are new programs, never forks, and a script needs no `if __name__ == "__main__"` guard.
    A child that dies is replaced, once for each task.

    Args:
        workers: Maximum number of processes; at most one per task is started.
        worker_threads: Threads of torch and numpy in each.
        max_tasks_per_child: Replace a process after this many tasks, for functions that leak
            memory; None: never.

    Raises:
        UsageError: A number below 1.

    Example:
        >>> from offline_data.base.progress import SILENT
        >>> sorted(LocalProcesses(2).run(lambda x: x * x, [3, 4], SILENT))
        [(0, 9), (1, 16)]
    """

    shards = False

    def __init__(
        self, workers: int, *, worker_threads: int = 1, max_tasks_per_child: int | None = None
    ) -> None:
        self.name = plural(workers, "process", "processes")
        self._workers = at_least(1, workers, "workers")
        self._threads = at_least(1, worker_threads, "worker_threads")
        self._limit = max_tasks_per_child
        if max_tasks_per_child is not None:
            at_least(1, max_tasks_per_child, "max_tasks_per_child")

    def run(
        self, job: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task as it finishes; see `Executor.run`.

        Also raises `UsageError` if `job` refers to something that only exists in this process.
        """
        run = _ChildRun(pack_function(job), tasks, self._threads, self._limit)
        yield from run.answers(min(self._workers, len(tasks)), progress)


class _ChildRun:
    """Tasks of one run, served by threads with a child process each."""

    def __init__(
        self, function: bytes, tasks: Sequence[Any], threads: int, limit: int | None
    ) -> None:
        self._function = function
        self._tasks = tasks
        self._threads = threads
        self._limit = limit
        self._left = iter(range(len(tasks)))  # threads take from it; its `next` is atomic
        self._children: set[Child] = set()
        self._lock = Lock()
        self._stopped = False
        self._news: SimpleQueue[tuple[int, Any] | str | BaseException] = SimpleQueue()

    def answers(self, workers: int, progress: Progress) -> Iterator[tuple[int, Any]]:
        """Yield the answers; no child and no thread is left afterwards, even after an error."""
        # Daemons: a program that never closes this iterator can still exit.
        threads = [Thread(target=self._serve, daemon=True) for _ in range(workers)]
        try:
            for thread in threads:
                thread.start()
            for _ in self._tasks:
                while isinstance(news := self._news.get(), str):
                    progress.note(news)
                if isinstance(news, BaseException):
                    raise news
                yield news
        finally:
            with self._lock:
                self._stopped = True
                for child in self._children:
                    child.kill()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _serve(self) -> None:
        """Run tasks in one child after another until none is left; each task at most twice."""
        child: Child | None = None
        served = 0
        try:
            for number in iter(lambda: None if self._stopped else next(self._left, None), None):
                what = f"while it ran task {number + 1} of {len(self._tasks)}"
                for is_last in (False, True):
                    if child is None:
                        child, served = self._start(), 0
                    try:
                        answer = child.ask(self._tasks[number])
                        break
                    except ChildDiedError as death:
                        self._end(child)
                        child = None
                        if self._stopped:
                            raise
                        if is_last:
                            raise WorkerDiedError(
                                f"{death} {what}, like the previous worker",
                                hint="if memory was short, try again with fewer workers; "
                                "finished tasks are kept",
                                task=number,
                            ) from None
                        died = f"{death.message[:1].lower()}{death.message[1:]}"
                        self._news.put(f"{died} {what}; running it again")
                served += 1
                if served == self._limit:
                    self._end(child)
                    child = None
                self._news.put((number, answer))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._news.put(error)
        finally:
            self._end(child)

    def _start(self) -> Child:
        child = Child(self._function, threads=self._threads).start()
        with self._lock:
            self._children.add(child)
            if self._stopped:
                child.kill()
        return child

    def _end(self, child: Child | None) -> None:
        if child is not None:
            with self._lock:
                self._children.remove(child)
            child.close()


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Set the number of torch threads, if torch is imported: sums may depend on it."""
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
