"""Executors of one machine: this process, child processes, or a pool that the caller made."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from concurrent import futures
from contextlib import contextmanager
from multiprocessing.pool import Pool, ThreadPool
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.preprocess.errors import WorkerDiedError
from offline_data.preprocess.executors.base import at_least
from offline_data.processes import Child, ChildDiedError
from offline_data.processes.calls import answer_in_pool
from offline_data.processes.child import how_ended
from offline_data.processes.wire import dumps, loads, pack_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from offline_data.preprocess.executors.base import R, T
    from offline_data.progress import Progress

_CHECK_SECONDS = 0.05
"""Between two checks of a pool's processes: one that starts and dies in between is not noticed."""

_POOL_HINT = (
    "if memory was short, make a smaller pool; --resume goes on with what is finished, and "
    "workers of this package's own are replaced when they die"
)


def choose_workers(seconds: float, workers: int, start_cost: float) -> int:
    """Return `workers` where they save more than their start costs, else 1: in this process.

    Args:
        seconds: Estimated time of all tasks in one process.
        workers: Processes that may be used.
        start_cost: Seconds until they have started; they start at the same time.

    Example:
        >>> choose_workers(60.0, 4, start_cost=3.0), choose_workers(3.5, 4, start_cost=3.0)
        (4, 1)
    """
    return workers if seconds * (1 - 1 / workers) > start_cost else 1


class InProcess:
    """Runs tasks here, in order; see `Executor`.

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
        with _torch_threads(self._threads):
            for number, task in enumerate(tasks):
                yield number, job(task)


class LocalProcesses:
    """Runs tasks in child processes of this one; see `Executor`.

    Children are plain programs: a script needs no `if __name__ == "__main__"` guard, and nothing is
    forked. One that dies is replaced, once for each task.

    Args:
        workers: Processes; no more are started than there are tasks.
        worker_threads: Threads that torch and numpy compute with in each.
        max_tasks_per_child: Tasks after which a process is replaced by a new one, against memory
            that a function does not give back; None: never.

    Raises:
        UsageError: A number below 1.

    Example:
        >>> from offline_data.progress import SILENT
        >>> sorted(LocalProcesses(2).run(lambda x: x * x, [3, 4], SILENT))
        [(0, 9), (1, 16)]
    """

    shards = False

    def __init__(
        self, workers: int, *, worker_threads: int = 1, max_tasks_per_child: int | None = None
    ) -> None:
        self.name = f"{workers} process{'es' if workers > 1 else ''}"
        self._workers = at_least(1, workers, "workers")
        self._threads = at_least(1, worker_threads, "worker_threads")
        self._limit = max_tasks_per_child
        if max_tasks_per_child is not None:
            at_least(1, max_tasks_per_child, "max_tasks_per_child")

    def run(
        self, job: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task as it finishes.

        Raises:
            UsageError: `job` refers to something that exists in this process only.
            WorkerDiedError: Two processes died with the same task.
            Exception: Raised by `job`; `__cause__` has its traceback there as text.
        """
        run = _ChildRun(pack_function(job), tasks, self._threads, self._limit)
        yield from run.answers(min(self._workers, len(tasks)), progress)


class _ChildRun:
    """Tasks of one run, handed out by threads with a child process each."""

    def __init__(
        self, function: bytes, tasks: Sequence[Any], threads: int, limit: int | None
    ) -> None:
        self._function = function
        self._tasks = tasks
        self._threads = threads
        self._limit = limit
        self._left = deque(range(len(tasks)))
        self._children: set[Child] = set()
        self._lock = Lock()
        self._stopped = False
        self._news: SimpleQueue[tuple[int, Any] | str | BaseException] = SimpleQueue()

    def answers(self, workers: int, progress: Progress) -> Iterator[tuple[int, Any]]:
        """Yield the answers; at the end, however it comes, no child and no thread is left."""
        # Daemons: a program that never closes this iterator can end all the same.
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
        """Have one child after another run tasks until none is left; each task at most twice."""
        child: Child | None = None
        served = 0
        try:
            while (number := self._take()) is not None:
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
                                f"{death} {what}, as the one before it",
                                hint="if memory was short, try again with fewer workers; "
                                "--resume goes on with what is finished",
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

    def _take(self) -> int | None:
        try:
            return None if self._stopped else self._left.popleft()
        except IndexError:
            return None

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


class GivenPool:
    """Runs tasks in a pool that is somebody else's, and stays open; see `Executor`.

    Calls that run when the iterator is closed cannot be ended from here: they are waited for. In a
    pool of threads one task runs at a time.

    Args:
        pool: A `concurrent.futures.Executor`, or a `multiprocessing.pool.Pool`.

    Raises:
        UsageError: Something else.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from offline_data.progress import SILENT
        >>> with ThreadPoolExecutor(1) as pool:
        ...     list(GivenPool(pool).run(lambda x: 2 * x, [3], SILENT))
        [(0, 6)]
    """

    name = "given pool"
    shards = False

    def __init__(self, pool: futures.Executor | Pool) -> None:
        if not isinstance(pool, (futures.Executor, Pool)):
            raise UsageError(
                f"pool is {pool!r}; expected a concurrent.futures.Executor or a "
                "multiprocessing.pool.Pool"
            )
        self._pool = pool

    def run(
        self,
        job: Callable[[T], R],
        tasks: Sequence[T],
        progress: Progress,  # noqa: ARG002 - what a pool does about a death is its own
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task as it finishes.

        Raises:
            UsageError: The pool is closed, or `job` refers to something of this process only.
            WorkerDiedError: A process of the pool died; its other calls are not waited for.
            Exception: Raised by `job`; `__cause__` has its traceback there as text.
        """
        pool = _WatchedPool(self._pool) if isinstance(self._pool, Pool) else self._pool
        watched = pool if isinstance(pool, _WatchedPool) else None
        function, left = pack_function(job), deque(enumerate(tasks))
        under_way: dict[futures.Future[bytes], int] = {}
        finished: SimpleQueue[futures.Future[bytes]] = SimpleQueue()
        try:
            while left or under_way:
                while left and (watched is None or len(under_way) < watched.room):
                    number, task = left.popleft()
                    future = _submit(pool, function, dumps(task))
                    under_way[future] = number
                    future.add_done_callback(finished.put)
                future = _next(finished, watched)
                number = under_way.pop(future)
                try:
                    packed = future.result()
                except futures.BrokenExecutor as error:
                    raise _broken(error) from error
                except futures.CancelledError as error:
                    raise UsageError("The pool was closed before it had done all tasks") from error
                yield number, loads(packed).result()
        finally:
            running = {future for future in under_way if not future.cancel()}
            while running and not (watched and watched.lost()):
                running = futures.wait(running, timeout=_CHECK_SECONDS).not_done


class _WatchedPool(futures.Executor):
    """A `multiprocessing` pool as an executor; by itself it never tells that a worker died.

    Calls in it cannot be cancelled, so that few should wait there. All workers of such pools in
    this process are watched: nothing public tells which of them are this pool's.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers = self._alive()
        self._reason: str | None = None
        self.room = 2 * (len(self._workers) or os.cpu_count() or 1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Have the pool make a call."""
        future: futures.Future[Any] = futures.Future()
        future.set_running_or_notify_cancel()  # nobody may cancel it
        self._pool.apply_async(
            fn, args, kwargs, callback=future.set_result, error_callback=future.set_exception
        )
        return future

    def lost(self) -> str | None:
        """Return why a call may never end, in words; None: it will."""
        alive = self._alive()
        for process in self._workers - alive:
            if process.exitcode:
                self._reason = f"A process of the pool {how_ended(process.exitcode)}"
        self._workers = alive
        try:
            self._pool.map_async(abs, [], chunksize=1)  # of nothing: no worker is needed
        except ValueError:
            self._reason = "The pool was terminated or closed"
        return self._reason

    def _alive(self) -> set[BaseProcess]:
        if isinstance(self._pool, ThreadPool):
            return set()
        return {one for one in multiprocessing.active_children() if "PoolWorker" in one.name}


def _submit(pool: futures.Executor, function: bytes, request: bytes) -> futures.Future[bytes]:
    try:
        return pool.submit(answer_in_pool, function, request)
    except futures.BrokenExecutor as error:
        raise _broken(error) from error
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"The pool takes no task: {error}") from error


def _next(
    finished: SimpleQueue[futures.Future[bytes]], watched: _WatchedPool | None
) -> futures.Future[bytes]:
    """Wait for a call to finish; raises `WorkerDiedError` where it may never."""
    while True:
        lost = watched.lost() if watched else None
        try:
            return finished.get(timeout=_CHECK_SECONDS if watched else None)
        except Empty:
            if lost is not None:
                raise WorkerDiedError(lost, hint=_POOL_HINT) from None


def _broken(error: futures.BrokenExecutor) -> WorkerDiedError:
    return WorkerDiedError(f"The pool is broken: {error}", hint=_POOL_HINT)


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Have torch compute with so many threads, if it is imported: sums may depend on it."""
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
