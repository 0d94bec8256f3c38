"""Limits that a user chooses: the rate, tries, files at once; and that a retry is told."""

from __future__ import annotations

import pytest

from offline_data.base.config import TransferLimits
from offline_data.base.errors import NetworkError
from offline_data.fetch.download import RateLimit
from offline_data.fetch.retry import FetchLimits, TransientError, with_retries


def test_a_rate_is_kept_over_all_who_share_it() -> None:
    now, waits = [100.0], list[float]()

    def pause(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    rate = RateLimit(1000, clock=lambda: now[0])
    for _ in range(3):
        rate.take(500, pause)
    assert waits == pytest.approx([0.5, 0.5, 0.5])
    now[0] += 60  # what was not used before is not made up for
    rate.take(500, pause)
    assert waits[-1] == pytest.approx(0.5)
    RateLimit(None).take(1 << 40, pause)
    assert len(waits) == 4


def test_chosen_limits_replace_the_defaults() -> None:
    limits = FetchLimits().within(TransferLimits(2, 3.5, 1, 10))
    assert (limits.files_at_once, limits.per_host, limits.tries) == (2, 2, 1)
    assert (limits.connect, limits.read, limits.bytes_per_second) == (3.5, 3.5, 10)
    assert FetchLimits().within(TransferLimits()) == FetchLimits()


def test_every_wait_is_told() -> None:
    told, slept = list[str](), list[float]()

    def attempt() -> None:
        raise TransientError("http://a/x stalled", retry_after=2.0)

    with pytest.raises(NetworkError, match="gave up after 3 attempts"):
        with_retries(attempt, FetchLimits(tries=3), slept.append, on_wait=told.append)
    assert slept == [2.0, 2.0]
    assert told == [f"http://a/x stalled; trying again in 2.0 s (attempt {n} of 3)" for n in (2, 3)]
