"""`EpisodeBatch`: its row arithmetic against plain loops, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.base.errors import FormatError
from offline_data.episode import EpisodeBatch, Key

OBSERVATION: Key = ("observation",)


def batch_of(lengths: list[int], /, **changes: Any) -> EpisodeBatch:
    """Episodes whose observation is `1000·episode + t + 1`, and reward that of its row."""
    n, e = sum(lengths), len(lengths)
    codes = [1000 * i + t + 1 for i, length in enumerate(lengths) for t in range(length + 1)]
    reward = [1000.0 * i + t + 1 for i, length in enumerate(lengths) for t in range(length)]
    parts: dict[str, Any] = {
        "lengths": np.array(lengths, dtype=np.int64),
        "steps": {
            ("action",): np.zeros((n, 2), np.float32),
            ("next", "reward"): np.array(reward).reshape(n, 1),
            ("next", "terminated"): np.zeros((n, 1), bool),
            ("next", "truncated"): np.ones((n, 1), bool),
        },
        "observations": {OBSERVATION: np.array(codes)},
        "final_observation": np.ones(e, bool),
    }
    return EpisodeBatch(**{**parts, **changes})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=12))
def test_rows_point_to_the_observation_before_and_after(lengths: list[int]) -> None:
    batch = batch_of(lengths)
    before: list[int] = []
    after: list[int] = []
    episode, starts, last = [], [], []
    for number, length in enumerate(lengths):
        starts.append(len(before))
        for step in range(length):
            before.append(1000 * number + step + 1)
            after.append(1000 * number + step + 2)
            episode.append(number)
        last.append(len(before) - 1)
    codes = batch.observations[OBSERVATION]
    assert batch.transitions == len(before)
    assert codes[batch.root_rows].tolist() == before
    assert codes[batch.next_rows].tolist() == after
    assert batch.episode_of.tolist() == episode
    assert batch.starts.tolist() == starts
    assert batch.last_rows.tolist() == last


@pytest.mark.parametrize(
    ("lengths", "rewards", "expected"),
    [
        ([2, 3, 1], [1.0, 2.0, 1001.0, 1002.0, 1003.0, 2001.0], [3.0, 3006.0, 2001.0]),
        ([3], np.array([1, 2.0**24, 1], np.float32), [2.0**24 + 2]),  # added up in float64
        ([2, 1], [np.inf, -np.inf, 1.0], [np.nan, 1.0]),  # without a warning
    ],
)
def test_returns_are_sums_over_each_episode(
    lengths: list[int], rewards: Any, expected: list[float]
) -> None:
    steps = {**batch_of(lengths).steps, ("next", "reward"): np.asarray(rewards)[:, None]}
    returns = batch_of(lengths, steps=steps).returns
    assert returns.dtype == np.float64
    np.testing.assert_array_equal(returns, expected)


def test_text_is_a_column_and_bytes_are_those_of_all() -> None:
    batch = batch_of([2], episodes={("id",): np.zeros(1, np.int64)})
    assert batch.nbytes == 2 * (8 + 8 + 1 + 1) + 3 * 8 + 8
    words = np.array(["go", None, "stop"], dtype=object)
    assert batch_of([2], observations={OBSERVATION: words}).observations[OBSERVATION] is words


def without(key: Key) -> dict[Key, Any]:
    return {name: column for name, column in batch_of([2, 1]).steps.items() if name != key}


def changed(key: Key, column: Any) -> dict[Key, Any]:
    return {**batch_of([2, 1]).steps, key: column}


FLAG: Key = ("next", "terminated")
REWARD: Key = ("next", "reward")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.array([3, 0])}, "Episode 1 of the batch has no transition"),
        ({"lengths": np.array([2, 1], np.int32)}, "must be int64"),
        ({"lengths": np.array([[2, 1]])}, "must be int64"),
        ({"final_observation": np.ones(3, bool)}, r"must be bool \[2\], not bool \[3\]"),
        ({"final_observation": np.ones(2)}, "not float64"),
        ({"steps": without(("action",))}, "No step leaf 'action'"),
        ({"steps": without(FLAG)}, "'next/terminated' is missing"),
        ({"steps": without(("next", "truncated"))}, "'next/truncated' is missing"),
        ({"steps": changed(REWARD, np.zeros(3))}, r"must be \[N, 1\], not \[3\]"),
        ({"steps": changed(FLAG, np.zeros((3, 1)))}, "must be bool, not float64"),
        ({"steps": changed(("action",), np.zeros(4))}, "has 4 rows, expected 3"),
        ({"steps": changed(("action",), np.float64(0))}, "has no rows, expected 3"),
        ({"steps": changed(("info", ".."), np.zeros(3))}, "cannot be a file name"),
        ({"steps": changed(("info", "w"), np.array(["a"] * 3))}, "has dtype <U1"),
        ({"observations": {OBSERVATION: np.zeros(3)}}, "has 3 rows, expected 5"),
        ({"observations": {("next", "x"): np.zeros(5)}}, "cannot be named 'next/x'"),
        ({"episodes": {("start",): np.zeros(2)}}, "cannot be named 'start'"),
        ({"observations": {("done",): np.zeros(5)}}, "cannot be named 'done'"),
        ({"episodes": {("id",): np.zeros(3)}}, "has 3 rows, expected 2"),
    ],
    ids=str,
)
def test_what_does_not_add_up_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        batch_of([2, 1], **changes)
