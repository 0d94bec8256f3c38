from __future__ import annotations

from typing import Any

from offline_data.fetch.meter import Meter, total_of


def test_a_file_that_starts_over_is_counted_back(tally: Any) -> None:
    meter = Meter(tally, [10, None])
    for seen in (4, 9, 0, 3, 10):
        meter.at(0, seen)
        if seen == 0:
            assert tally.seen == 0
    assert (tally.seen, tally.total) == (10, None)


def test_bytes_are_told_now_and_then_and_all_of_them_in_the_end(tally: Any) -> None:
    now = 100.0
    told = []
    meter = Meter(tally, [1_000, None], lambda: now)
    for seen in range(100, 1_000, 100):
        meter.at(0, seen)
        told.append(tally.seen)
        now += 0.02
    assert told == [100, 100, 100, 400, 400, 400, 700, 700, 700]
    meter.at(1, 50)
    assert tally.seen == 950
    meter.at(0, 1_000)
    meter.at(1, 60)
    assert tally.seen == 1_050
    meter.sized(1, 60)
    assert tally.seen == 1_060


def test_the_total_is_told_when_the_last_size_is_known(tally: Any) -> None:
    assert total_of([10, None, 3]) is None
    assert total_of([10, 3]) == 13
    meter = Meter(tally, [10, None, None])
    meter.sized(1, 5)
    assert tally.total is None
    meter.sized(2, 6)
    assert tally.total == 21
