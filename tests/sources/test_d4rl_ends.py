"""Where episodes end, by each rule, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.errors import FormatError
from offline_data.sources.d4rl.ends import RULES, Cut, EndRule, cut_rows, truncated_rows

flags = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def bools(values: list[bool]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array(values, dtype=bool)


def lengths_by_loop(ends: list[bool]) -> list[int]:
    lengths, length = [], 0
    for end in ends:
        length += 1
        if end:
            lengths.append(length)
            length = 0
    return [*lengths, length] if length else lengths


def cut(rule: EndRule, rows: list[tuple[bool, bool]], *, timeouts: bool = True) -> Cut:
    marked = bools([timeout for _, timeout in rows]) if timeouts else None
    return cut_rows(rule, bools([terminal for terminal, _ in rows]), marked, "toy.hdf5")


@given(flags)
def test_either_flag_ends_an_episode(rows: list[tuple[bool, bool]]) -> None:
    found = cut(EndRule(horizon=3), rows)
    assert found.lengths.tolist() == lengths_by_loop([t or o for t, o in rows])
    assert found.notes[0] == RULES["terminals|timeouts"]


@given(flags, st.integers(1, 9))
def test_without_timeouts_rows_are_counted_from_the_last_end(
    rows: list[tuple[bool, bool]], horizon: int
) -> None:
    ends, step = [], 0
    for terminal, _ in rows:
        step += 1
        ends.append(terminal or step == horizon)
        step = 0 if ends[-1] else step
    found = cut(EndRule(horizon=horizon), rows, timeouts=False)
    assert found.lengths.tolist() == lengths_by_loop(ends)
    assert f"limit of {horizon} steps" in found.notes[0]
    assert ("terminals and" in found.notes[0]) == any(t for t, _ in rows)


@given(flags)
def test_timeouts_alone_end_antmaze_episodes(rows: list[tuple[bool, bool]]) -> None:
    rows = [*rows, (True, True)]
    found = cut(EndRule("timeouts", 700), rows)
    assert found.lengths.tolist() == lengths_by_loop([o for _, o in rows])


@pytest.mark.parametrize("timeouts", [True, False])
def test_antmaze_without_a_timeout_falls_back_to_the_limit(timeouts: bool) -> None:
    found = cut(EndRule("timeouts", 4), [(True, False)] * 10, timeouts=timeouts)
    assert found.lengths.tolist() == [4, 4, 2]
    assert "terminals and" not in found.notes[0]


@given(flags)
def test_terminals_alone_end_kitchen_episodes(rows: list[tuple[bool, bool]]) -> None:
    rows = [(True, False), *rows]
    found = cut(EndRule("terminals", 2), rows, timeouts=False)
    assert found.lengths.tolist() == lengths_by_loop([t for t, _ in rows])


def test_without_a_limit_terminals_are_enough_and_noted() -> None:
    found = cut(EndRule(), [(False, False), (True, False)], timeouts=False)
    assert found.lengths.tolist() == [2]
    assert found.notes == ("Episodes end where terminals are set. The file has no timeouts.",)


def test_nothing_marked_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"toy\.hdf5 marks no end"):
        cut(EndRule(), [(False, True)] * 3, timeouts=False)


def test_a_tail_without_a_flag_is_noted() -> None:
    assert (
        "of 2 rows, marked truncated"
        in cut(EndRule(), [(True, False)] + [(False, False)] * 2).notes[1]
    )
    assert len(cut(EndRule(), [(False, False), (True, False)]).notes) == 1


@given(flags)
def test_every_episode_ends_with_a_flag_and_the_files_own_stay(
    rows: list[tuple[bool, bool]],
) -> None:
    found = cut(EndRule(), rows)
    last_rows = np.cumsum(found.lengths) - 1
    terminals, timeouts = (bools([row[i] for row in rows]) for i in (0, 1))
    truncated = truncated_rows(terminals, timeouts, last_rows)
    assert not np.shares_memory(truncated, timeouts)
    assert (terminals | truncated)[last_rows].all()
    changed = np.flatnonzero(truncated != timeouts)
    assert set(changed) <= {len(rows) - 1}
    assert not terminals[changed].any()
