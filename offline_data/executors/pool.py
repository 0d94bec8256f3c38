"""The executor of a pool given by the caller, of `concurrent.futures` or `multiprocessing`."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from concurrent import futures
from multiprocessing.pool import Pool, ThreadPool
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError, WorkerDiedError
from offline_data.processes.child import how_ended
from offline_data.processes.protocol import (
    answer_in_pool,
    dumps,
    loads,
    pack_function,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from offline_data.executors.base import R, T
    from offline_data.progress import Progress

_CHECK_SECONDS = 0.05
"""Seconds between checks of a pool's processes; one that starts and dies in between is missed."""

_POOL_HINT = (
    "if memory was short, make a smaller pool; finished tasks are kept, and "
    "workers of this package's own are replaced when they die"
)


class GivenPool:
    """Runs tasks in a pool of the caller, which stays open; see `Executor`.

    Calls that are running when the iterator is closed cannot be stopped: it waits for them. In a
    pool of threads one task runs at a time.

    Args:
        pool: A `concurrent.futures.Executor`, or a `multiprocessing.pool.Pool`.

    Raises:
        UsageError: `pool` is something else.

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
        """Yield the number and the answer of each task as it finishes; see `Executor.run`.

        Also raises `UsageError` if the pool is closed or `job` only works in this process.
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
                    request = dumps(task)
                    try:
                        future = pool.submit(answer_in_pool, function, request)
                    except (RuntimeError, ValueError) as error:
                        if isinstance(error, futures.BrokenExecutor):
                            raise
                        raise UsageError(f"The pool takes no task: {error}") from error
                    under_way[future] = number
                    future.add_done_callback(finished.put)
                future = _next(finished, watched)
                number = under_way.pop(future)
                yield number, result_of(loads(future.result()))
        except futures.BrokenExecutor as error:
            raise WorkerDiedError(f"The pool is broken: {error}", hint=_POOL_HINT) from error
        except futures.CancelledError as error:
            raise UsageError("The pool was closed before it had done all tasks") from error
        finally:
            running = {future for future in under_way if not future.cancel()}
            while running and not (watched and watched.lost()):
                running = futures.wait(running, timeout=_CHECK_SECONDS).not_done


class _WatchedPool(futures.Executor):
    """A `multiprocessing` pool as an executor that notices dead workers, which such pools do not.

    Calls in it cannot be cancelled, so few should be queued. The workers of all such pools in this
    process are watched: there is no public way to tell which belong to this one.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers = self._alive()
        self._reason: str | None = None
        self.room = 2 * (len(self._workers) or os.cpu_count() or 1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Submit a call to the pool."""
        future: futures.Future[Any] = futures.Future()
        future.set_running_or_notify_cancel()  # cannot be cancelled
        self._pool.apply_async(
            fn, args, kwargs, callback=future.set_result, error_callback=future.set_exception
        )
        return future

    def lost(self) -> str | None:
        """Return why a call may never finish, or None."""
        alive = self._alive()
        for process in self._workers - alive:
            if process.exitcode:
                self._reason = f"A process of the pool {how_ended(process.exitcode)}"
        self._workers = alive
        try:
            self._pool.map_async(abs, [], chunksize=1)  # raises if the pool is closed
        except ValueError:
            self._reason = "The pool was terminated or closed"
        return self._reason

    def _alive(self) -> set[BaseProcess]:
        if isinstance(self._pool, ThreadPool):
            return set()
        return {one for one in multiprocessing.active_children() if "PoolWorker" in one.name}


def _next(
    finished: SimpleQueue[futures.Future[bytes]], watched: _WatchedPool | None
) -> futures.Future[bytes]:
    """Wait for a call to finish; raises `WorkerDiedError` if it may never do so."""
    while True:
        lost = watched.lost() if watched else None
        try:
            return finished.get(timeout=_CHECK_SECONDS if watched else None)
        except Empty:
            if lost is not None:
                raise WorkerDiedError(lost, hint=_POOL_HINT) from None
