"""Hosts of one run: few connections to each, and those that failed come last."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from threading import Lock, Semaphore
from typing import TYPE_CHECKING

from offline_data.fetch.mirrors import host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Hosts:
    """What one run knows about hosts; shared by its threads.

    Args:
        per_host: Files that are fetched from one host at a time.
    """

    def __init__(self, per_host: int) -> None:
        self._slots: dict[str, Semaphore] = defaultdict(lambda: Semaphore(per_host))
        self._down: set[str] = set()
        self._lock = Lock()

    def order(self, urls: Sequence[str]) -> list[str]:
        """Return the URLs in their order, but those of hosts that failed last."""
        with self._lock:
            return sorted(urls, key=lambda url: host_of(url) in self._down)

    def failed(self, url: str) -> bool:
        """Remember that the host of `url` does not serve; tell whether that is news."""
        with self._lock:
            known = host_of(url) in self._down
            self._down.add(host_of(url))
        return not known

    @contextmanager
    def slot(self, url: str, check: Callable[[], None]) -> Iterator[None]:
        """Hold one of the few places at the host of `url`; `check` may raise while waiting."""
        with self._lock:
            slots = self._slots[host_of(url)]
        while not slots.acquire(timeout=0.1):
            check()
        try:
            yield
        finally:
            slots.release()
