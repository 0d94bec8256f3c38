"""Trying again: exponential backoff with jitter, `Retry-After`, and an end to it."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from offline_data.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data.fetch.limits import FetchLimits

T = TypeVar("T")
_STEPS = 1000

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that the next try may not meet."""


class TransientError(NetworkError):
    """A failure that may pass: no answer, a cut connection, a stalled one, 429, 5xx.

    Args:
        message: What happened.
        retry_after: Seconds that the host asks to wait.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def persist(
    attempt: Callable[[], T],
    limits: FetchLimits,
    sleep: Callable[[float], None],
    reached: Callable[[], int] = lambda: 0,
) -> T:
    """Call `attempt` until it succeeds or too many tries in a row brought nothing new.

    Args:
        attempt: Raises `TransientError` where another try may help; other errors end it at once.
        limits: Tries and waits.
        sleep: Waits so many seconds; may raise.
        reached: Bytes here so far. A try counts as fruitful if they are at least `limits.fruitful`
            more than after the last fruitful one: a host that sends a byte at a time is no use.

    Raises:
        NetworkError: The last failure, with the number of tries.
    """
    failures, best = 0, reached()
    while True:
        try:
            return attempt()
        except TransientError as error:
            now = reached()
            if now - best >= limits.fruitful:
                failures, best = 0, now
            else:
                failures += 1
            if failures >= limits.tries:
                raise _given_up(error, failures) from error
            sleep(wait_before(failures, error, limits))


def _given_up(error: TransientError, failures: int) -> NetworkError:
    tries = "1 attempt" if failures == 1 else f"{failures} attempts in a row"
    return NetworkError(
        f"{error.message} (gave up after {tries} without progress)",
        hint="run the same command again: it goes on where it stopped; "
        "OFFLINE_DATA_MIRRORS names other hosts",
    )


def wait_before(failures: int, error: TransientError, limits: FetchLimits) -> float:
    """Return the seconds to wait after so many failures in a row.

    The host's own wish counts if it has one; else the wait doubles each time, and half of it is
    random so that many clients do not come back at once.

    Raises:
        NetworkError: The host asks for a longer wait than is honoured.
    """
    if error.retry_after is not None:
        if error.retry_after > limits.longest_retry_after:
            raise NetworkError(
                f"{error.message}: it asks to come back in {error.retry_after:.0f} s",
                hint="run the same command again then: it goes on where it stopped",
            ) from error
        return error.retry_after
    full = min(limits.first_wait * 2.0 ** max(failures - 1, 0), limits.longest_wait)
    return full / 2 + full / 2 * secrets.randbelow(_STEPS) / _STEPS


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Read a `Retry-After` header, seconds or a date; None where there is none that makes sense.

    Example:
        >>> parse_retry_after("7", datetime(2024, 1, 1, tzinfo=timezone.utc))
        7.0
        >>> now = datetime(2024, 1, 1, tzinfo=timezone.utc)
        >>> parse_retry_after("Mon, 01 Jan 2024 00:00:30 GMT", now)
        30.0
    """
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
