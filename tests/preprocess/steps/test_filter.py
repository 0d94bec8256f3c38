from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.episodes import Filter
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece
from offline_data.testing.steps import StepContract

ID = ("id",)


class TestContract(StepContract):
    @pytest.fixture(
        params=[
            "filter:length >= 2",
            "filter:return >= percentile(return, 50) and not (terminated or number == 4)",
            "filter:seed in [101, 103]",
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def chosen(text: str, table: Any, words: Any = None) -> Any:
    step = parse_step(f"filter:{text}")
    assert isinstance(step, Filter)
    return step.choose(table, words or {}).tolist()


def toy_table() -> dict[tuple[str, ...], Any]:
    step = Filter("length > 0")
    return dict(step.measure(toy_piece([3, 1, 4, 2], first_episode=5, unknown_final=[6])))


def test_fields_of_the_episode_table() -> None:
    table = toy_table()
    piece = toy_piece([3, 1, 4, 2], first_episode=5, unknown_final=[6])
    rewards = piece.batch.steps["next", "reward"][:, 0].tolist()
    returns = [sum(rewards[:3]), sum(rewards[3:4]), sum(rewards[4:8]), sum(rewards[8:])]
    assert chosen("return > 2000", table) == [value > 2000 for value in returns]
    assert chosen("length in [3, 2]", table) == [True, False, False, True]
    assert chosen("number == 7", table) == [False, False, True, False]
    assert chosen("seed > 106", table) == [False, False, True, True]
    assert chosen("terminated", table) == [False, True, False, True]
    assert chosen("truncated", table) == [True, False, True, False]
    assert chosen("not final_observation", table) == [False, True, False, False]


def test_the_best_tenth() -> None:
    returns = np.random.default_rng(0).permutation(100).astype(float)
    found = chosen("return >= percentile(return, 90)", {("return",): returns})
    assert found == [value >= 90 for value in returns]


def test_commas_and_equal_signs_are_the_expressions_own() -> None:
    assert parse_step("filter: seed in [1, 2] and length==3 ") == Filter(
        "seed in [1, 2] and length==3"
    )


def test_text_by_its_words() -> None:
    table = {ID: np.array([2, 0, -1], np.int32), ("length",): np.array([1, 2, 3])}
    words = {ID: ["3", "7", "x"]}
    assert chosen('id != "3"', table, words) == [True, False, True]
    assert chosen("id in ['3', 'x'] and length < 2", table, words) == [True, False, False]
    with pytest.raises(StepError, match="text with a number"):
        chosen("id == 3", table, words)


@pytest.mark.parametrize("dtype", ["?", "u1", "i4", "u8", "f2", "f4"])
def test_columns_of_any_number(dtype: str) -> None:
    table = {("task", "good"): np.array([[1], [0], [1]], dtype)}
    assert chosen("task.good == 1", table) == [True, False, True]


def test_whole_numbers_do_not_overflow() -> None:
    table = {("task",): np.array([200, 100, 7], np.uint8)}
    assert chosen("task * 2 > 300", table) == [True, False, False]
    assert chosen("-task < -100", table) == [True, False, False]


@pytest.mark.parametrize(
    "column", [np.ones((3, 2)), np.ones(3, complex), np.array(["a", "b", "c"], object)]
)
def test_columns_that_are_no_field(column: Any) -> None:
    with pytest.raises(StepError, match=r"Step 'filter': 'goal' is .* for each episode"):
        chosen("goal == 1", {("goal",): column})
    assert chosen("length == 2", {("goal",): column, ("length",): np.array([1, 2, 3])}) == [
        False,
        True,
        False,
    ]


def test_a_field_that_is_not_there() -> None:
    with pytest.raises(StepError, match=r"have no 'lenght'; there are seed, number") as caught:
        parse_step("filter:lenght > 3").settled(toy_piece([2]))
    assert caught.value.hint == "did you mean 'length'?"
    with pytest.raises(StepError, match="have no 'lenght'"):
        chosen("lenght > 3", {("length",): np.array([1])})
    step = parse_step("filter:return > 3")
    assert step.settled(toy_piece([2])) == step


def test_nothing_is_left() -> None:
    table = {("return",): np.array([3.5, -7.0]), ID: np.array([0, 1], np.int32)}
    words = {ID: ["a", "b"]}
    with pytest.raises(StepError) as caught:
        chosen("return > 100 or id == 'c'", table, words)
    assert str(caught.value) == (
        "Step 'filter' leaves none of 2 episodes by \"return > 100 or id == 'c'\": return is from "
        "-7.0 to 3.5, id is one of ['a', 'b']"
    )


def test_long_texts_are_cut_in_a_message() -> None:
    words = {ID: ["x" * 1000, *"abcde"]}
    with pytest.raises(StepError) as caught:
        chosen("id == 'z'", {ID: np.array([0, 1, 5], np.int32)}, words)
    told = f"id is one of ['{'x' * 40}…', 'a', 'b', 'c', 'd']…"
    assert caught.value.message.endswith(told)


@pytest.mark.parametrize("text", ["filter", "filter:", "filter:  "])
def test_no_expression(text: str) -> None:
    with pytest.raises(UsageError, match="needs an expression") as caught:
        parse_step(text)
    assert caught.value.hint == f"for example --step '{Filter.example}'"


def test_what_cannot_be_read() -> None:
    with pytest.raises(UsageError, match="cannot be read after 'length'") as caught:
        parse_step("filter:length => 3")
    assert "percentile" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no function 'open'"):
        Filter("open('x') == length")
