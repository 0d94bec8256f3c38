from __future__ import annotations

from typing import Any

from offline_data.fetch.progress import LARGE, ByteProgress, total_of


def test_a_file_that_starts_over_is_counted_back(tally: Any) -> None:
    progress = ByteProgress(tally, [10, None])
    for seen in (4, 9, 0, 3, 10):
        progress.at(0, seen)
        if seen == 0:
            assert tally.seen == 0
    assert (tally.seen, tally.total) == (10, None)


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
    progress.sized(1, 60)
    assert tally.seen == 1_060


def test_the_total_is_told_when_the_last_size_is_known(tally: Any) -> None:
    assert total_of([10, None, 3]) is None
    assert total_of([10, 3]) == 13
    progress = ByteProgress(tally, [10, None, None])
    progress.sized(1, 5)
    assert tally.total is None
    progress.sized(2, 6)
    assert tally.total == 21


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
            progress.sized(2, 9)
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
