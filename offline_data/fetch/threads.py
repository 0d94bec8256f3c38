"""Runs a few calls at a time in threads that a failure or Ctrl-C ends promptly."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

T = TypeVar("T")
_GRACE = 1.0
"""Seconds that threads get to notice the end; one that waits for a host is left to its limits."""


def in_threads(call: Callable[[int], T], count: int, threads: int, stop: Event) -> list[T]:
    """Return `[call(0), …, call(count - 1)]`, several calls at a time.

    The first error ends it: `stop` is set, what has not begun does not begin, and the error is
    raised after the running calls ended or had a second to do so. Threads are daemons: they never
    keep a process from ending.

    Args:
        call: Must end soon after `stop` is set.
        count: How many calls.
        threads: How many at a time.
        stop: Set when the calls must end.

    Example:
        >>> from threading import Event
        >>> in_threads(lambda index: index * index, 4, 2, Event())
        [0, 1, 4, 9]
    """
    to_do: SimpleQueue[int] = SimpleQueue()
    for index in range(count):
        to_do.put(index)
    done: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()
    workers = [
        Thread(target=_work, args=(call, to_do, done, stop), daemon=True)
        for _ in range(min(threads, count))
    ]
    for worker in workers:
        worker.start()
    try:
        return _collect(done, count)
    finally:
        stop.set()
        end = monotonic() + _GRACE
        for worker in workers:
            worker.join(max(end - monotonic(), 0.0))


def _work(
    call: Callable[[int], T],
    to_do: SimpleQueue[int],
    done: SimpleQueue[tuple[int, T | BaseException]],
    stop: Event,
) -> None:
    while not stop.is_set():
        try:
            index = to_do.get_nowait()
        except Empty:
            return
        try:
            done.put((index, call(index)))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            done.put((index, error))


def _collect(done: SimpleQueue[tuple[int, T | BaseException]], count: int) -> list[T]:
    results: dict[int, T] = {}
    while len(results) < count:
        try:
            index, outcome = done.get(timeout=0.1)
        except Empty:
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        results[index] = outcome
    return [results[index] for index in range(count)]
