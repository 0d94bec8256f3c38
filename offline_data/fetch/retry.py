"""`FetchLimits`, and trying again within them: exponential backoff with jitter, `Retry-After`."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from offline_data.base.config import TransferLimits
from offline_data.base.errors import NetworkError, NoNetworkError
from offline_data.base.urls import redact_setting
from offline_data.fetch.mirrors import host_of

T = TypeVar("T")

_NO_NAME = frozenset({socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_NODATA, socket.EAI_FAIL})
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH})

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that the next try may not meet


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one run; `huggingface_hub` keeps its own for what goes through it."""

    connect: float = 10.0  # seconds to wait for a connection
    read: float = 30.0  # seconds without a byte after which a connection counts as stalled
    tries: int = 5  # tries in a row that may bring next to nothing before a host is given up
    fruitful: int = 1024  # new bytes from which on a try counts as one that brought something
    first_wait: float = 0.5  # seconds before the second try; doubles with each that brings nothing
    longest_wait: float = 30.0  # seconds that the doubling stops at
    longest_retry_after: float = 120.0  # seconds of `Retry-After`; a longer one gives the host up
    redirects: int = 10  # number that one request may follow
    unsized: int = 64 << 30
    """Bytes of an answer that does not say how many will come, where the source does not either;
    and never more than half of what is free on the disk."""
    files_at_once: int = 8  # fetched at the same time
    per_host: int = 4  # fetched from one host at the same time
    bytes_per_second: int | None = None  # of all files together; None: unlimited

    def within(self, chosen: TransferLimits) -> FetchLimits:
        """Return the limits with those that a user chose in place of these.

        Example:
            >>> from offline_data.base.config import TransferLimits
            >>> FetchLimits().within(TransferLimits(files_at_once=2)).per_host
            2
        """
        given = {name: value for name, value in vars(chosen).items() if value is not None}
        if timeout := given.pop("timeout", None):
            given |= {"connect": timeout, "read": timeout}
        if jobs := given.get("files_at_once"):
            given["per_host"] = jobs
        return replace(self, **given)


class TransientError(NetworkError):
    """A failure that may pass (no answer, cut, stalled, 429, 5xx), `retry_after` some seconds."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def no_network(error: BaseException, url: str) -> NoNetworkError | None:
    """Return the error for a failure because a name does not resolve or there is no route; else None.

    The host is that of the request, if `error` or a cause of it has one; else that of `url`.
    """
    with suppress(AttributeError, RuntimeError):  # httpx's, of an error without a request
        url = str(error.request.url)  # type: ignore[attr-defined]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) and cause.errno in _NO_NAME:
            return NoNetworkError.of(f"{_peer_of(url)} is not found")
        if isinstance(cause, OSError) and cause.errno in _NO_ROUTE:
            return NoNetworkError.of(f"there is no route to {_peer_of(url)}")
        cause = cause.__cause__ or cause.__context__
    return None


def _peer_of(url: str) -> str:
    """Return the host that a request for `url` connects to: its own, or a proxy of the environment."""
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(parts.hostname or ""):
        return f"the proxy {redact_setting(proxy)}"  # also `user:password@host`, without a scheme
    return host_of(url)


def with_retries(
    attempt: Callable[[], T],
    limits: FetchLimits,
    sleep: Callable[[float], None],
    reached: Callable[[], int] = lambda: 0,
    on_wait: Callable[[str], None] = lambda _: None,
) -> T:
    """Call `attempt` until it succeeds or too many attempts in a row made no progress.

    A host that is not found is asked once more, unless bytes have come from it before. Raises
    `NetworkError`.

    Args:
        attempt: Raises `TransientError` where another try may help, or `NoNetworkError`; other errors
            end it at once.
        limits: Tries and waits.
        sleep: Waits the given number of seconds; may raise.
        on_wait: Called with a message before each wait.
        reached: Bytes here so far. A try counts as fruitful if they are at least `limits.fruitful`
            more than after the last fruitful one: a host that sends a byte at a time does not help.
    """
    failures, first = 0, reached()
    best = first
    while True:
        try:
            return attempt()
        except (TransientError, NoNetworkError) as error:
            now = reached()
            unseen = isinstance(error, NoNetworkError) and now <= first
            if now - best >= limits.fruitful:
                failures, best = 0, now
            else:
                failures += 1
            if failures >= (min(2, limits.tries) if unseen else limits.tries):
                if isinstance(error, NoNetworkError):
                    raise
                attempts = f" (gave up after {failures} attempts in a row without progress)"
                raise NetworkError(
                    f"{error.message}{attempts if failures > 1 else ''}",
                    hint="run the same command again: it resumes where it stopped; "
                    "OFFLINE_DATA_MIRRORS names other hosts",
                ) from error
            wait = wait_before(failures, error, limits)
            nth = f"attempt {failures + 1} of {limits.tries}"
            if not unseen:
                on_wait(f"{error.message}; trying again in {wait:.1f} s ({nth})")
            sleep(wait)


def wait_before(failures: int, error: NetworkError, limits: FetchLimits) -> float:
    """Return the seconds to wait after that many failures in a row; raises `NetworkError`."""
    # The host's own wish counts if it has one; else the wait doubles each time, and half of it is
    # random so that many clients do not come back at once.
    if isinstance(error, TransientError) and error.retry_after is not None:
        if error.retry_after > limits.longest_retry_after:
            raise NetworkError(
                f"{error.message}: it asks to come back in {error.retry_after:.0f} s",
                hint="run the same command again then: it resumes where it stopped",
            ) from error
        return error.retry_after
    full = min(limits.first_wait * 2.0 ** max(failures - 1, 0), limits.longest_wait)
    return full / 2 + full / 2 * secrets.randbelow(1000) / 1000


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Read a `Retry-After` header, seconds or a date; None if it is missing or makes no sense."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    zoned = until if until.tzinfo else until.replace(tzinfo=timezone.utc)
    return max((zoned - now).total_seconds(), 0.0)
