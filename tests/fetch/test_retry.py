"""How long a host is waited for, and what progress is told of bytes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from offline_data.base.errors import NetworkError
from offline_data.fetch.progress import LARGE, ByteProgress
from offline_data.fetch.retry import (
    FetchLimits,
    TransientError,
    parse_retry_after,
    wait_before,
    with_retries,
)

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("bytes_here", "attempts"),
    [  # before the first try and after each: as many as before, or fewer, is no progress
        ([0, 10, 10, 4, 10, 9], 5),
        ([0, 10, 10, 10, 10, 20, 20, 20, 20, 20], 9),
    ],
)
def test_it_gives_up_after_so_many_tries_without_a_new_byte(
    bytes_here: list[int], attempts: int
) -> None:
    reached, tries = iter(bytes_here), list[int]()

    def attempt() -> None:
        tries.append(1)
        raise TransientError("host was cut")

    limits = FetchLimits(tries=4, fruitful=5)
    with pytest.raises(NetworkError, match="4 attempts in a row") as caught:
        with_retries(attempt, limits, lambda _: None, lambda: next(reached))
    assert len(tries) == attempts
    assert type(caught.value) is NetworkError


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


def test_a_file_that_starts_over_is_counted_back(tally: Any) -> None:
    progress = ByteProgress(tally, [10, None])
    for seen in (4, 9, 0, 3, 10):
        progress.at(0, seen)
        if seen == 0:
            assert tally.seen == 0
    assert (tally.seen, tally.total) == (10, None)
    progress.set_size(1, 5)
    assert tally.total == 15


def test_bytes_are_told_now_and_then_and_all_of_them_in_the_end(tally: Any) -> None:
    now = 100.0
    told = []
    progress = ByteProgress(tally, [1_000, None], lambda: now)
    for seen in range(100, 1_000, 100):
        progress.at(0, seen)
        told.append(tally.seen)
        now += 0.02
    assert told == [100, 100, 100, 400, 400, 400, 700, 700, 700]
    progress.at(1, 50)
    assert tally.seen == 950
    progress.at(0, 1_000)
    progress.at(1, 60)
    assert tally.seen == 1_050
    progress.set_size(1, 60)
    assert tally.seen == 1_060


def test_large_files_among_others_are_told_apart_too(tally: Any) -> None:
    with tally.task("all", None, "B"):
        progress = ByteProgress(tally, [LARGE, LARGE - 1, None, 7])
        with (
            progress.following(0, "large", tally),
            progress.following(1, "small", tally),
            progress.following(2, "unknown", tally),
        ):
            progress.at(0, 5)
            progress.at(1, LARGE - 1)
            progress.at(2, 9)
            progress.set_size(2, 9)
            progress.at(0, 3)
            assert list(tally.inside) == ["large", "unknown"]
            assert (tally.inside["large"].seen, tally.inside["large"].total) == (3, LARGE)
            assert (tally.inside["unknown"].seen, tally.inside["unknown"].total) == (9, 9)
        assert tally.seen == 3 + LARGE - 1 + 9
        progress.at(0, LARGE)
        assert tally.inside["large"].seen == 3


def test_a_file_that_comes_alone_is_not_told_twice(tally: Any) -> None:
    with tally.task("all", None, "B"), ByteProgress(tally, [None]).following(0, "only", tally):
        assert tally.inside == {}
