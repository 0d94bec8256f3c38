from __future__ import annotations

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Select
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract

REQUIRED = {("next", "reward"), ("next", "terminated"), ("next", "truncated")}


class TestContract(StepContract):
    @pytest.fixture(params=["select:obs.velocity", "select:action,info", "select:mission"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def arms(lengths: list[int]) -> Piece:
    """Make a piece with two action leaves and none called `action`."""
    piece = toy_piece(lengths)
    steps = dict(piece.batch.steps)
    arm = steps.pop(("action",))
    return piece.having(steps={**steps, ("action", "arm"): arm, ("action", "hand"): arm + 5})


@pytest.mark.parametrize(
    ("text", "steps", "observations"),
    [
        ("observation", {("action",)}, {("observation", "position"), ("observation", "velocity")}),
        ("next.obs.velocity", {("action",)}, {("observation", "velocity")}),
        ("action", {("action",)}, set()),
        ("mission,info", {("action",), ("mission",)}, {("info", "code")}),
        ("reward", {("action",)}, set()),
    ],
)
def test_what_is_kept(
    text: str, steps: set[tuple[str, ...]], observations: set[tuple[str, ...]]
) -> None:
    piece = toy_piece([2, 1])
    found = parse_step(f"select:{text}").apply(piece)
    assert set(found.batch.steps) == steps | REQUIRED
    assert set(found.batch.observations) == observations
    for key in steps | REQUIRED:
        assert found.batch.steps[key] is piece.batch.steps[key]
    for key in observations:
        assert found.batch.observations[key] is piece.batch.observations[key]
    words = {("mission",): ["go", "stop", "turn"]}
    assert found.words == (words if ("mission",) in steps else {})
    assert found.batch.episodes == piece.batch.episodes


def test_action_leaves_are_all_kept_where_none_is_named() -> None:
    arm, hand = ("action", "arm"), ("action", "hand")
    found = Select(("obs",)).apply(arms([2])).batch.steps
    assert {arm, hand} <= set(found)
    found = Select(("action.hand",)).apply(arms([2])).batch.steps
    assert set(found) == {hand, *REQUIRED}


def test_words_of_observations_stay_with_them() -> None:
    codes = np.array([1, 0, 1], np.int32)
    piece = with_leaves(toy_piece([2]), observations={"goal": codes}, words={"goal": ["a", "b"]})
    assert Select(("goal",)).apply(piece).words == {("goal",): ["a", "b"]}


def test_a_leaf_that_is_not_there() -> None:
    with pytest.raises(StepError) as caught:
        parse_step("select:action,observation.positoin").apply(toy_piece([1]))
    assert caught.value.hint == "did you mean 'observation/position'?"


def test_no_leaf_named() -> None:
    with pytest.raises(UsageError, match="Step 'select' needs keys") as caught:
        parse_step("select")
    assert caught.value.hint == "for example --step select:observation,action"
