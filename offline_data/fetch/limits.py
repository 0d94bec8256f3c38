"""`FetchLimits`: how long to wait, how often to try, how much to do at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one run; the defaults are for real hosts, tests pass shorter ones.

    `huggingface_hub` keeps its own limits for what goes through it.
    """

    connect: float = 10.0
    """Seconds to wait for a connection."""
    read: float = 30.0
    """Seconds without a byte after which a connection counts as stalled."""
    tries: int = 5
    """Tries in a row that may bring next to nothing before a host is given up."""
    fruitful: int = 1024
    """New bytes from which on a try counts as one that brought something."""
    first_wait: float = 0.5
    """Seconds before the second try; doubles with every try that brings nothing."""
    longest_wait: float = 30.0
    """Seconds that the doubling stops at."""
    longest_retry_after: float = 120.0
    """Seconds of a server's `Retry-After` that are honoured; a longer one gives the host up."""
    redirects: int = 10
    """Redirects that one request may follow."""
    unsized: int = 64 << 30
    """Bytes of an answer that does not say how many will come, where the source does not either;
    and never more than half of what is free on the disk."""
    files_at_once: int = 8
    """Files that are fetched at the same time."""
    per_host: int = 4
    """Files that are fetched from one host at the same time."""
