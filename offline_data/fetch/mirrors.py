"""Mirrors: other places for a published URL, and the order in which places are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def with_mirrors(
    urls: Iterable[str],
    mirrors: Sequence[tuple[str, str]],
    plainly: Callable[[str], str] = str,
) -> tuple[str, ...]:
    """List where to look for a file: before each URL its rewritings, in the order of `mirrors`.

    Args:
        urls: Published URLs, best first.
        mirrors: Prefixes and what to put in their place.
        plainly: Gives the `http(s)://` form of a URL of another kind, which mirrors may name too.

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
    """Name the place that a URL leads to, for people and for counting connections.

    Example:
        >>> host_of("http://a.org:80/x"), host_of("hf://datasets/u/n@c/x"), host_of("file:///x")
        ('a.org:80', 'hf', 'this machine')
    """
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        return parts.netloc.rpartition("@")[2]
    return "this machine" if parts.scheme == "file" else parts.scheme
