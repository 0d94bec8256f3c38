"""Iterating ahead in a background thread."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from offline_data.base.errors import UsageError

T = TypeVar("T")


class Ahead(Generic[T]):
    """Iterates over another iterator in a daemon thread, at most `count` values ahead.

    An exception of the iterator is raised at its position, and by every later `next`. Only the
    thread uses the iterator; `close` stops it, and closes a generator. Not thread-safe.

    Example:
        >>> from contextlib import closing
        >>> with closing(Ahead(iter([1001, 1002]))) as values:
        ...     list(values)
        [1001, 1002]
    """

    def __init__(
        self, values: Iterator[T], count: int = 1, name: str = "offline-data-ahead"
    ) -> None:
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._made: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._ended: BaseException | None = None
        self._stop = Event()
        given = (values, self._stop, self._asked, self._made)
        self._thread = Thread(target=_make, args=given, name=name, daemon=True)
        self._thread.start()
        for _ in range(count):
            self._asked.put(None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._ended is not None:
            raise self._ended
        value, self._ended = self._made.get()
        if self._ended is not None:
            self._thread.join()
            raise self._ended
        self._asked.put(None)
        result: T = value
        return result

    def close(self) -> None:
        """Wait for the current value and close the iterator."""
        self._ended = self._ended or UsageError("The stream was closed")
        self._stop.set()
        self._asked.put(None)
        self._thread.join()


def _make(
    values: Iterator[T], stop: Event, requests: SimpleQueue[None], results: SimpleQueue[Any]
) -> None:
    try:
        requests.get()
        while not stop.is_set():
            results.put((next(values), None))
            requests.get()
    except BaseException as error:  # noqa: BLE001 -- raised again in the consumer's thread
        results.put((None, error))
    finally:
        if hasattr(values, "close"):
            values.close()
