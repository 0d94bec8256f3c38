"""The executor of a pool that the caller made: of `concurrent.futures` or `multiprocessing`."""

from __future__ import annotations

import math
import os
from collections import deque
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from offline_data.errors import UsageError
from offline_data.preprocess.errors import WorkerDiedError
from offline_data.processes.calls import answer_in_pool
from offline_data.processes.child import how_ended
from offline_data.processes.wire import dumps, loads, pack_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.pool import Pool
    from multiprocessing.process import BaseProcess

    from offline_data.preprocess.executors.base import R, T
    from offline_data.progress import Progress

_LOOK = 0.02
"""Seconds between two looks at the processes of a pool: none should come and go unseen."""

_HINT = (
    "if memory was short, make a smaller pool; --resume goes on with what is finished, and "
    "workers of this package's own are replaced when they die"
)


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

    def __init__(self, pool: Executor | Pool) -> None:
        self._pool = pool
        _door_of(pool)

    def run(
        self,
        job: Callable[[T], R],
        tasks: Sequence[T],
        progress: Progress,  # noqa: ARG002 - what a pool does about a death is its own
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task as it finishes.

        Raises:
            UsageError: The pool is closed, or `job` refers to something of this process only.
            WorkerDiedError: A process of the pool died; what others still do is not waited for.
            Exception: What `job` raised; `__cause__` has its traceback there as text.
        """
        calls = _Calls(_door_of(self._pool), pack_function(job), tasks)
        try:
            for _ in tasks:
                yield calls.next_answer()
        finally:
            calls.settle()


class _Calls:
    """The calls of one run: some wait here, some are under way in the pool."""

    def __init__(self, door: _Door, function: bytes, tasks: Sequence[Any]) -> None:
        self._door = door
        self._function = function
        self._left = deque(enumerate(tasks))
        self._under_way: dict[Future[bytes], int] = {}
        self._finished: SimpleQueue[Future[bytes]] = SimpleQueue()

    def next_answer(self) -> tuple[int, Any]:
        while self._left and len(self._under_way) < self._door.room:
            self._submit(*self._left.popleft())
        future = self._next_finished()
        number = self._under_way.pop(future)
        try:
            packed = future.result()
        except BrokenExecutor as error:
            raise WorkerDiedError(f"The pool is broken: {error}", hint=_HINT) from error
        except CancelledError as error:
            raise UsageError("The pool was closed before it had done all tasks") from error
        return number, loads(packed).result()

    def settle(self) -> None:
        """Take back what has not begun, and wait for the rest, if it can still end."""
        running = {future for future in self._under_way if not future.cancel()}
        while running:
            running = wait(running, timeout=_LOOK).not_done
            try:
                self._door.check()
            except WorkerDiedError:
                return

    def _submit(self, number: int, task: object) -> None:
        try:
            future = self._door.submit(self._function, dumps(task))
        except BrokenExecutor as error:
            raise WorkerDiedError(f"The pool is broken: {error}", hint=_HINT) from error
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"The pool takes no task: {error}") from error
        self._under_way[future] = number
        future.add_done_callback(self._finished.put)

    def _next_finished(self) -> Future[bytes]:
        self._door.watch()
        while True:
            try:
                return self._finished.get(timeout=_LOOK)
            except Empty:
                self._door.check()


class _Door(Protocol):
    """Where calls go into a pool."""

    room: float
    """Calls that should be in it at a time."""

    def submit(self, function: bytes, request: bytes) -> Future[bytes]:
        """Have it call `answer_in_pool`."""

    def watch(self) -> None:
        """Take notice of the processes that it has now."""

    def check(self) -> None:
        """Raise `WorkerDiedError` where a call in it may never end."""


class _ExecutorDoor:
    """Of `concurrent.futures`: it takes calls back, and notices itself when a process died."""

    room = math.inf

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, function: bytes, request: bytes) -> Future[bytes]:
        return self._executor.submit(answer_in_pool, function, request)

    def watch(self) -> None:
        """Leave it to the executor."""

    def check(self) -> None:
        """Leave it to the executor."""


class _PoolDoor:
    """Of `multiprocessing`: it keeps what it was given, and waits for ever when a process died."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: set[BaseProcess] = set()
        self._lost: str | None = None
        self.watch()
        self.room = 2.0 * (len(self._known) or os.cpu_count() or 1)

    def submit(self, function: bytes, request: bytes) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_running_or_notify_cancel()  # nobody may cancel it
        self._pool.apply_async(
            answer_in_pool,
            (function, request),
            callback=future.set_result,
            error_callback=future.set_exception,
        )
        return future

    def watch(self) -> None:
        here = self._processes()
        # Only those that the pool has let go of: its own thread waits for the others.
        ended = [process.exitcode for process in self._known - here]
        self._known = here
        for status in filter(None, ended):
            self._lost = f"A process of the pool {how_ended(status)}"
        if getattr(self._pool, "_state", "") == "TERMINATE":
            self._lost = "The pool was terminated"

    def check(self) -> None:
        self.watch()
        if self._lost is not None:
            raise WorkerDiedError(self._lost, hint=_HINT)

    def _processes(self) -> set[BaseProcess]:
        return set(getattr(self._pool, "_pool", ()))  # nothing public tells of a death


def _door_of(pool: Executor | Pool) -> _Door:
    from multiprocessing.pool import Pool

    if isinstance(pool, Executor):
        return _ExecutorDoor(pool)
    if isinstance(pool, Pool):
        return _PoolDoor(pool)
    raise UsageError(
        f"pool is {pool!r}; expected a concurrent.futures.Executor or a multiprocessing.pool.Pool"
    )
