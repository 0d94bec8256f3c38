"""Cutting flat arrays, against plain loops over rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.episodes.cut import lengths_of, runs_within, with_final_rows, with_horizon

some_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def ends_of(lengths: list[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([step == n - 1 for n in lengths for step in range(n)])


@settings(max_examples=40, deadline=None)
@given(some_lengths, st.booleans())
def test_lengths_come_back_from_ends(lengths: list[int], ended: bool) -> None:
    """Also where the last episode has no end."""
    ends = ends_of(lengths)
    ends[-1] = ended
    assert lengths_of(ends).tolist() == lengths
    assert lengths_of(ends).dtype == np.int64


def test_no_rows_are_no_episodes() -> None:
    nothing = np.zeros(0, dtype=bool)
    assert lengths_of(nothing).tolist() == []
    assert with_horizon(nothing, 3).tolist() == []
    assert runs_within(np.zeros(0, dtype=np.int64), 3) == []
    assert with_final_rows(np.zeros((0, 2)), np.zeros(0, dtype=np.int64)).shape == (0, 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 10))
def test_the_horizon_is_counted_from_the_last_end(known: list[bool], horizon: int) -> None:
    expected, step = [], 0
    for end in known:
        step += 1
        expected.append(end or step == horizon)
        step = 0 if expected[-1] else step
    assert with_horizon(np.array(known), horizon).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(some_lengths, st.booleans())
def test_each_episode_gets_one_row_more(lengths: list[int], known: bool) -> None:
    column, expected, final = [], [], []
    for episode, length in enumerate(lengths):
        codes = [1000 * episode + step + 1 for step in range(length)]
        column += codes
        final.append(1000 * episode + length + 1)
        expected += [*codes, final[-1] if known else codes[-1]]
    rows = np.array(column)[:, None] * np.ones(2, np.float32)
    after = np.array(final)[:, None] * np.ones(2, np.float32)
    out = with_final_rows(rows, np.array(lengths), after if known else None)
    assert out.dtype == rows.dtype
    assert out.tolist() == [[code, code] for code in expected]
    assert not np.shares_memory(out, rows)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 120))
def test_runs_are_as_long_as_the_budget_allows(sizes: list[int], budget: int) -> None:
    runs = runs_within(np.array(sizes), budget)
    assert [first for first, _ in runs] == [0, *(stop for _, stop in runs[:-1])]
    assert runs[-1][1] == len(sizes)
    for first, stop in runs:
        assert stop > first
        assert sum(sizes[first:stop]) <= budget or stop == first + 1
        assert stop == len(sizes) or sum(sizes[first : stop + 1]) > budget
