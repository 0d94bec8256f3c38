from __future__ import annotations

from datetime import datetime, timezone

import pytest

from offline_data.errors import NetworkError
from offline_data.fetch.limits import FetchLimits
from offline_data.fetch.retry import TransientError, parse_retry_after, persist, wait_before

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)


def test_it_gives_up_after_so_many_tries_without_a_new_byte() -> None:
    # bytes before and after each try: less than before, and as many as before, is no progress
    reached = iter([0, 10, 10, 4, 10, 9])
    tries = []

    def attempt() -> None:
        tries.append(1)
        raise TransientError("host was cut")

    with pytest.raises(NetworkError, match="4 attempts in a row") as caught:
        persist(attempt, FetchLimits(tries=4, fruitful=5), lambda _: None, lambda: next(reached))
    assert len(tries) == 5
    assert type(caught.value) is NetworkError


def test_a_new_byte_renews_patience() -> None:
    reached = iter([0, 10, 10, 10, 10, 20, 20, 20, 20, 20])
    tries = []

    def attempt() -> None:
        tries.append(1)
        raise TransientError("host was cut")

    with pytest.raises(NetworkError):
        persist(attempt, FetchLimits(tries=4, fruitful=5), lambda _: None, lambda: next(reached))
    assert len(tries) == 9


def test_other_errors_end_it_at_once() -> None:
    def attempt() -> None:
        raise NetworkError("no")

    def sleep(seconds: float) -> None:
        pytest.fail("it waited")

    with pytest.raises(NetworkError, match="no"):
        persist(attempt, FetchLimits(), sleep)


def test_waits_double_up_to_a_limit_and_differ() -> None:
    limits = FetchLimits(first_wait=1.0, longest_wait=4.0)
    error = TransientError("x")
    for failures, full in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (50, 4.0)]:
        waits = {wait_before(failures, error, limits) for _ in range(40)}
        assert full / 2 <= min(waits) < max(waits) <= full


def test_a_long_retry_after_gives_the_host_up() -> None:
    limits = FetchLimits(longest_retry_after=60.0)
    assert wait_before(1, TransientError("x", retry_after=60.0), limits) == 60.0
    with pytest.raises(NetworkError, match="61 s"):
        wait_before(1, TransientError("x", retry_after=61.0), limits)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("soon", None),
        ("-3", None),
        ("12", 12.0),
        ("Mon, 01 Jan 2024 00:01:00 GMT", 60.0),
        ("Sun, 31 Dec 2023 23:00:00 GMT", 0.0),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds
