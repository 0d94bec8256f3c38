"""A second thread that follows the first: calls in order, so many behind at most."""

from __future__ import annotations

from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Behind:
    """Makes calls in a thread of its own, one after the other, while the caller goes on.

    The thread begins with the first call. It is a daemon: it never keeps a process from ending.
    After a call that failed the later ones are left out.

    Args:
        most: Calls that may wait; while as many do, `put` waits too.

    Example:
        >>> seen = []
        >>> behind = Behind(most=2)
        >>> for number in range(5):
        ...     behind.put(lambda number=number: seen.append(number))
        >>> behind.wait()
        >>> seen
        [0, 1, 2, 3, 4]
        >>> behind.close()
    """

    def __init__(self, most: int) -> None:
        self._calls: Queue[Callable[[], None] | None] = Queue(most)
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether every call so far has ended."""
        return self._calls.unfinished_tasks == 0

    def put(self, call: Callable[[], None]) -> None:
        """Have `call` made after those before it."""
        if self._thread is None:
            self._thread = Thread(target=self._work, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def wait(self) -> None:
        """Wait for every call so far; raises what one of them raised."""
        self._calls.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait for every call so far and end the thread; raises nothing."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while call := self._calls.get():
            try:
                if self._error is None:
                    call()
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                self._error = error
            self._calls.task_done()
        self._calls.task_done()
