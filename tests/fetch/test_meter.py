from __future__ import annotations

from typing import Any

from offline_data.fetch.meter import Meter, total_of


def test_a_file_that_starts_over_is_counted_back(tally: Any) -> None:
    meter = Meter(tally, [10, None])
    for seen in (4, 9, 0, 3):
        meter.at(0, seen)
    meter.at(1, 5)
    assert (tally.seen, tally.total) == (8, None)


def test_the_total_is_told_when_the_last_size_is_known(tally: Any) -> None:
    assert total_of([10, None, 3]) is None
    assert total_of([10, 3]) == 13
    meter = Meter(tally, [10, None, None])
    meter.sized(1, 5)
    assert tally.total is None
    meter.sized(2, 6)
    assert tally.total == 21
