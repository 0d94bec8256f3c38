"""The executor of one machine: child processes that take task after task."""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.preprocess.errors import WorkerDiedError
from offline_data.processes import Child, ChildDiedError
from offline_data.processes.wire import pack_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from offline_data.preprocess.executors.base import R, T
    from offline_data.progress import Progress


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
        UsageError: A number that cannot be meant.

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
        self._workers = _positive(workers, "workers")
        self._threads = _positive(worker_threads, "worker_threads")
        self._limit = max_tasks_per_child
        if max_tasks_per_child is not None:
            _positive(max_tasks_per_child, "max_tasks_per_child")

    def run(
        self, job: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task as it finishes.

        Raises:
            UsageError: `job` refers to something that exists in this process only.
            WorkerDiedError: Two processes died with the same task.
            Exception: What `job` raised; `__cause__` has its traceback there as text.
        """
        function = pack_function(job)
        seats = [
            _Seat(function, self._threads, self._limit)
            for _ in range(min(self._workers, len(tasks)))
        ]
        yield from _Crew(seats, tasks).work(progress)


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise UsageError(f"{name} is {value}; expected at least 1")
    return value


class _Seat:
    """Where child processes work, one after another; used by one thread, but for `stop`."""

    def __init__(self, function: bytes, threads: int, limit: int | None) -> None:
        self._function = function
        self._threads = threads
        self._limit = limit
        self._child: Child | None = None
        self._served = 0
        self._stopped = False
        self._lock = Lock()

    def ask(self, task: object) -> Any:
        """Have a child run the task; raises `ChildDiedError` and whatever the job raised."""
        child = self._child or self._hire()
        answer = child.ask(task)
        self._served += 1
        if self._served == self._limit:
            self.dismiss()
        return answer

    def dismiss(self) -> None:
        """End the child, if there is one; the next task gets a new one."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def stop(self) -> None:
        """End the child while it works, and every later one at once."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def _hire(self) -> Child:
        child = Child(self._function, threads=self._threads).start()
        with self._lock:
            self._child, self._served = child, 0
            if self._stopped:
                child.kill()
        return child


class _Crew:
    """Threads that each hand tasks to the child of one seat, and pass on what comes of it."""

    def __init__(self, seats: list[_Seat], tasks: Sequence[Any]) -> None:
        self._seats = seats
        self._tasks = tasks
        self._left = deque(range(len(tasks)))
        self._stopped = False
        self._news: SimpleQueue[tuple[int, Any] | str | BaseException] = SimpleQueue()

    def work(self, progress: Progress) -> Iterator[tuple[int, Any]]:
        """Yield the answers; at the end, however it comes, no child and no thread is left."""
        # Daemons: a program that never closes this iterator can end all the same.
        threads = [Thread(target=self._serve, args=(seat,), daemon=True) for seat in self._seats]
        try:
            for thread in threads:
                thread.start()
            for _ in self._tasks:
                yield self._next_answer(progress)
        finally:
            self._stopped = True
            for seat in self._seats:
                seat.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _next_answer(self, progress: Progress) -> tuple[int, Any]:
        while isinstance(news := self._news.get(), str):
            progress.note(news)
        if isinstance(news, BaseException):
            raise news
        return news

    def _serve(self, seat: _Seat) -> None:
        try:
            while (number := self._take()) is not None:
                self._news.put((number, self._run(seat, number)))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._news.put(error)
        finally:
            seat.dismiss()

    def _take(self) -> int | None:
        try:
            return None if self._stopped else self._left.popleft()
        except IndexError:
            return None

    def _run(self, seat: _Seat, number: int) -> Any:
        """Run a task, and once more where the child died."""
        what = f"while it ran task {number + 1} of {len(self._tasks)}"
        try:
            return seat.ask(self._tasks[number])
        except ChildDiedError as death:
            if self._stopped:
                raise
            self._news.put(f"{_lower(death)} {what}; running it again")
        seat.dismiss()
        try:
            return seat.ask(self._tasks[number])
        except ChildDiedError as death:
            raise WorkerDiedError(
                f"{death} {what}, as the one before it",
                hint="if memory was short, try again with fewer workers; "
                "--resume goes on with what is finished",
            ) from None


def _lower(error: ChildDiedError) -> str:
    return error.message[:1].lower() + error.message[1:]
