"""Executors run the tasks of a job: here, in local processes, in a given pool (Ray: `jobs.ray`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import closing, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from offline_data.base.errors import UsageError, WorkerDiedError
from offline_data.base.plurals import plural
from offline_data.base.progress import Progress
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from offline_data.pipeline.jobs.processes.protocol import (
    answer_in_pool,
    dumps,
    loads,
    pack_function,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator

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
        Notes say that a process died and its task runs again. Raises errors of `job`, and
        `WorkerDiedError` if a process died twice with the same task.
        """


def at_least(least: int, value: int, name: str) -> int:
    """Return a number; raises `UsageError` if it is too small."""
    if value < least:
        raise UsageError(f"{name} is {value}; expected at least {least}")
    return value


@contextmanager
def run_tasks(
    executor: Executor,
    function: Callable[[T], R],
    tasks: Sequence[T],
    progress: Progress,
    shown: tuple[str, str],
    sizes: Sequence[int] | None = None,
) -> Iterator[Iterator[tuple[T, R]]]:
    """Run tasks; yields an iterator of each finished task and its answer.

    Leaving the block ends the tasks that still run. Progress is `shown` with a label and a unit,
    in the `sizes` of the tasks; None: 1 each.
    """
    answers = cast("Generator[Any, None, None]", executor.run(function, tasks, progress))
    label, unit = shown
    sizes = [1] * len(tasks) if sizes is None else sizes
    with progress.task(label, sum(sizes), unit) as bar, closing(answers):

        def finished() -> Iterator[tuple[T, R]]:
            for number, answer in answers:
                bar.advance(sizes[number])
                yield tasks[number], answer

        yield finished()


@contextmanager
def says_what_is_kept(keep: Callable[[], tuple[str, bool]], progress: Progress) -> Iterator[None]:
    """After a failure, say what is kept: in the error of an interrupt, else in a note.

    `keep` is called then; it returns the words, and whether they are worth a note.
    """
    try:
        yield
    except BaseException as error:
        kept, is_news = keep()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {kept}") from None
        if is_news:
            progress.note(kept)
        raise


BYTES_A_SECOND = 250e6  # rows that a core takes or reads, compares, hashes and writes


@dataclass(frozen=True)
class Cost:
    """Seconds that all tasks are estimated to take."""

    calls: float  # of calling functions, one after the other
    processor: float  # of it, of a core: a function that waits takes fewer
    rows: float  # of a core, to read, compare, hash and write rows
    start: float  # until worker processes have started, at the same time


def choose_workers(workers: int, cores: int, cost: Cost) -> int:
    """Return `workers` if they are likely to end earlier than this process alone, else 1.

    A process calls a function while three threads of it write, compare and hash, so each uses up
    to four cores, as long as there are as many.

    Example:
        >>> slow = Cost(calls=60.0, processor=60.0, rows=2.0, start=3.0)
        >>> choose_workers(4, 4, slow), choose_workers(4, 1, slow)
        (4, 1)
    """
    total = cost.processor + cost.rows
    alone = max(cost.calls, total / min(cores, 4))
    together = cost.start + max(cost.calls / workers, total / min(4 * workers, cores))
    return workers if together < alone else 1


class InProcess:
    """Runs tasks in this process, in order, with `threads` torch threads (None: as before).

    A job with a method `in_order(tasks)`, an iterator of answers, may overlap a task with the next.

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
        in_order = getattr(job, "in_order", lambda tasks: (job(task) for task in tasks))
        with torch_threads(self._threads), closing(in_order(tasks)) as answers:
            yield from enumerate(answers)


class LocalProcesses:
    """Runs tasks in child processes of this one; see `Executor`.

    Children are new programs, never forks, and a script needs no `if __name__ == "__main__"` guard.
    A child that dies is replaced, once for each task. Raises `UsageError` for a number below 1; in
    `run`, for a job that refers to what only this process has.

    Args:
        workers: Maximum number of processes; at most one per task is started.
        worker_threads: Threads of torch and numpy in each.
        max_tasks_per_child: Replace a process after this many tasks, for functions that leak
            memory; None: never.

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
def torch_threads(count: int | None) -> Iterator[None]:
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


class GivenPool:
    """Runs tasks in a caller's `concurrent.futures.Executor`, which stays open; see `Executor`.

    Calls that are running when the iterator is closed cannot be stopped: it waits for them. In a
    pool of threads one task runs at a time. Raises `UsageError` for another pool (a
    `multiprocessing.Pool` would wait for ever for a task whose process died); in `run`, if it is
    closed, or the job only works in this process.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from offline_data.base.progress import SILENT
        >>> with ThreadPoolExecutor(1) as pool:
        ...     list(GivenPool(pool).run(lambda x: 2 * x, [3], SILENT))
        [(0, 6)]
    """

    name = "given pool"
    shards = False

    def __init__(self, pool: futures.Executor) -> None:
        if not isinstance(pool, futures.Executor):
            raise UsageError(
                f"pool is {pool!r}; expected a concurrent.futures.Executor",
                hint="a ProcessPoolExecutor does what a multiprocessing.Pool does, and says when "
                "a process died",
            )
        self._pool = pool

    def run(
        self,
        job: Callable[[T], R],
        tasks: Sequence[T],
        progress: Progress,  # noqa: ARG002 - what a pool does about a death is its own
    ) -> Iterator[tuple[int, R]]:
        function = pack_function(job)
        numbers: dict[futures.Future[bytes], int] = {}
        try:
            for number, task in enumerate(tasks):
                try:
                    future = self._pool.submit(answer_in_pool, function, dumps(task))
                except futures.BrokenExecutor:
                    raise
                except RuntimeError as error:
                    raise UsageError(f"The pool does not accept tasks: {error}") from error
                numbers[future] = number
            for future in futures.as_completed(numbers):
                yield numbers[future], result_of(loads(future.result()))
        except futures.BrokenExecutor as error:
            raise WorkerDiedError(
                f"The pool is broken: {error}",
                hint="if memory was short, make a smaller pool; finished tasks are kept, and "
                "workers of this package's own are replaced when they die",
            ) from error
        except futures.CancelledError as error:
            raise UsageError("The pool was closed before it had done all tasks") from error
        finally:
            futures.wait([future for future in numbers if not future.cancel()])
