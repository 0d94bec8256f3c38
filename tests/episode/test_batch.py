"""`EpisodeBatch`: its row arithmetic against plain loops; names of leaves; `refusals.json`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import check_key, join_key, next_of, split_key
from tests.refusals import Refusals

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
    before, after, episode, starts, last = (list[int]() for _ in range(5))
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


part = st.text(st.sampled_from('ab.0_ "=<~ä'), min_size=1, max_size=4)
keys = st.lists(part.filter(lambda one: one not in {".", ".."}), min_size=1, max_size=4).map(tuple)


@settings(max_examples=200, deadline=None)
@given(keys)
def test_text_form_comes_back(key: tuple[str, ...]) -> None:
    assert check_key(key) == key
    assert split_key(join_key(key)) == key
    assert next_of(key) == ("next", *key)


def test_dots_separate_where_no_slash_does() -> None:
    assert split_key("next.info.x") == split_key("next/info/x") == ("next", "info", "x")


def changed(name: str, column: Any = None) -> dict[Key, Any]:
    """Return the steps of two episodes with another column of a name, or none."""
    steps = {**batch_of([2, 1]).steps, tuple(name.split("/")): column}
    return {key: values for key, values in steps.items() if values is not None}


REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
NAMES: dict[str, Any] = {
    "np": np,
    "batch": partial(batch_of, [2, 1]),
    "changed": changed,
    "check_key": check_key,
}


@REFUSALS.cases
def test_refusals(kind: str, text: str) -> None:
    REFUSALS.check(kind, text, lambda: eval(text, NAMES))  # noqa: S307
