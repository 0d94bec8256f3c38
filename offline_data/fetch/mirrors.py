"""The places of a file: published URLs and their mirrors, and the hosts behind them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Semaphore
from urllib.parse import unquote_to_bytes, urlsplit

from offline_data.base.errors import UsageError


def with_mirrors(
    urls: Iterable[str],
    mirrors: Sequence[tuple[str, str]],
    plainly: Callable[[str], str] = str,
) -> tuple[str, ...]:
    """List the places of a file: before each URL its mirrors, in the order of `mirrors`.

    `urls` are best first; `mirrors` are prefixes and their replacements. `plainly` returns the
    `http(s)://` form of a URL of another kind, which mirrors may name too.

    Example:
        >>> with_mirrors(["http://a/x"], [("http://a", "file:///mnt/a"), ("http://b", "http://c")])
        ('file:///mnt/a/x', 'http://a/x')
    """
    places: dict[str, None] = {}
    for url in urls:
        for prefix, replacement in mirrors:
            for form in (url, plainly(url)):
                if form.startswith(prefix):
                    places[replacement + form.removeprefix(prefix)] = None
        places[url] = None
    return tuple(places)


def scheme_of(url: str) -> str:
    """`http`, `https`, `hf`, `file` or whatever stands before `://`."""
    return urlsplit(url).scheme


def host_of(url: str) -> str:
    """Name the host of a URL, for messages and for counting connections.

    Example:
        >>> host_of("http://a.org:80/x"), host_of("hf://datasets/u/n@c/x"), host_of("file:///x")
        ('a.org:80', 'hf', 'this machine')
    """
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        return parts.netloc.rpartition("@")[2]
    return "this machine" if parts.scheme == "file" else parts.scheme


def path_of_url(url: str) -> Path:
    """Return the path of a `file://` URL; raises `UsageError` if it names another machine."""
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"{url!r} is not a file of this machine; expected file:///PATH")
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))


class Hosts:
    """The hosts of one run, shared by threads: few connections to each, those that failed last."""

    def __init__(self, per_host: int) -> None:
        self._slots: dict[str, Semaphore] = defaultdict(lambda: Semaphore(per_host))
        self._down: set[str] = set()
        self._lock = Lock()

    def order(self, urls: Sequence[str]) -> list[str]:
        """Return the URLs in their order, but those of hosts that failed last."""
        with self._lock:
            return sorted(urls, key=lambda url: host_of(url) in self._down)

    def mark_failed(self, url: str) -> bool:
        """Mark the host of `url` as failed; return True the first time."""
        with self._lock:
            known = host_of(url) in self._down
            self._down.add(host_of(url))
        return not known

    @contextmanager
    def slot(self, url: str, check: Callable[[], None]) -> Iterator[None]:
        """Hold one of the few connections to the host of `url`; `check` may raise while waiting."""
        with self._lock:
            slots = self._slots[host_of(url)]
        while not slots.acquire(timeout=0.1):
            check()
        try:
            yield
        finally:
            slots.release()
