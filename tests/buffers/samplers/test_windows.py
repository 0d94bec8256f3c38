from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.buffers.samplers.windows import episodes_of, windows
from offline_data.errors import UsageError
from tests.buffers.samplers.conftest import Episodes

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def starts_in(lengths: list[int], length: int, *, strict: bool) -> dict[int, list[int]]:
    """Write down the starts of each episode, by the number of its first row."""
    found, first = {}, 0
    for rows in lengths:
        if rows >= length:
            found[first] = list(range(first, first + rows - length + 1))
        elif not strict:
            found[first] = [first]
        first += rows
    return found


@given(LENGTHS, st.integers(1, 9), st.booleans())
def test_every_start_has_its_exact_share(lengths: list[int], length: int, strict: bool) -> None:
    expected = starts_in(lengths, length, strict=strict)
    if not expected:
        with pytest.raises(UsageError, match=f"No episode has {length} transitions"):
            windows(Episodes(lengths).runs(), length, strict=strict)
        return
    where = windows(Episodes(lengths).runs(), length, strict=strict)
    every = sorted(start for starts in expected.values() for start in starts)
    assert np.flatnonzero(where.mask(sum(lengths))).tolist() == every

    grid = (np.arange(len(every)) + 0.5) / len(every)
    drawn, _ = where.draw("starts", grid, np.zeros_like(grid))
    assert drawn.tolist() == every

    steps = 2520  # a multiple of every number of starts
    which = (np.arange(len(expected)) + 0.5) / len(expected)
    inside = (np.arange(steps) + 0.5) / steps
    drawn, _ = where.draw("episodes", np.repeat(which, steps), np.tile(inside, len(which)))
    share = {start: steps // len(starts) for starts in expected.values() for start in starts}
    assert Counter(drawn.tolist()) == share


@given(LENGTHS, st.integers(1, 9))
def test_slices_are_as_long_as_their_episode_has_room(lengths: list[int], length: int) -> None:
    where = windows(Episodes(lengths).runs(), length, strict=False)
    starts = np.flatnonzero(where.mask(sum(lengths)))
    firsts = np.cumsum([0, *lengths[:-1]])
    for start, found in zip(starts, where.lengths_from(starts), strict=True):
        episode = np.searchsorted(firsts, start, side="right") - 1
        assert found == min(length, lengths[episode])
        assert start + found <= firsts[episode] + lengths[episode]


def test_fractions_next_to_one_stay_inside() -> None:
    where = windows(Episodes([7, 3, 5]).runs(), 3, strict=True)
    almost = np.array([1 - 2.0**-53])
    assert where.draw("episodes", almost, almost)[0].tolist() == [12]
    assert where.draw("starts", almost, almost)[0].tolist() == [12]


def test_valid_only_cuts_off_the_unknown_end() -> None:
    storage = Episodes([3, 1, 4], left_out=[2, 3])
    assert episodes_of(storage, storage.runs(), valid_only=False) is storage.runs()
    cut = episodes_of(storage, storage.runs(), valid_only=True)
    assert (cut.starts.tolist(), cut.lengths.tolist()) == ([0, 4], [2, 4])


def test_no_episode_at_all_says_so() -> None:
    with pytest.raises(UsageError, match="There is no episode"):
        windows(Episodes([]).runs(), 3, strict=False)
