from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.normalize import NormalizeReturn
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract, prepared


class TestContract(StepContract):
    @pytest.fixture(params=["normalize_return", "normalize_return:100"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def with_rewards(lengths: list[int], rewards: list[float], dtype: str = "f4") -> Any:
    column = np.array(rewards, dtype)[:, None]
    return with_leaves(toy_piece(lengths), steps={"next.reward": column})


def iql(lengths: list[int], rewards: list[float]) -> list[float]:
    """Sort trajectories by return and divide, as IQL's train_offline.py does."""
    returns, at = [], 0
    for length in lengths:
        returns.append(sum(rewards[at : at + length]))
        at += length
    returns.sort()
    return [reward / (returns[-1] - returns[0]) * 1000.0 for reward in rewards]


def test_it_is_what_iql_does() -> None:
    lengths, rewards = [3, 1, 4], [1.5, -2.0, 4.25, -3.0, 0.5, 0.25, 8.0, 1.0]
    piece = with_rewards(lengths, rewards)
    result = prepared(parse_step("normalize_return"), piece).apply(piece)
    found: Any = result.batch.steps["next", "reward"]
    np.testing.assert_allclose(found[:, 0], iql(lengths, rewards), rtol=1e-6)
    assert found.dtype == np.float32
    assert np.ptp(result.batch.returns) == pytest.approx(1000, rel=1e-6)
    for key, column in piece.batch.steps.items():
        assert key == ("next", "reward") or result.batch.steps[key] is column
    assert result.words == piece.words


@pytest.mark.parametrize(
    ("dtype", "becomes"), [("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("i8", "f4"), ("u1", "f4")]
)
def test_types(dtype: str, becomes: str) -> None:
    piece = with_rewards([2, 1], [3, 4, 5], dtype)
    step = prepared(parse_step("normalize_return:scale=2"), piece)
    found: Any = step.apply(piece).batch.steps["next", "reward"]
    assert found.dtype == np.dtype(becomes)
    np.testing.assert_allclose(found[:, 0], [3, 4, 5])


def test_state_and_parameters() -> None:
    piece = with_rewards([2, 1], [3, 4, 5])
    step = prepared(parse_step("normalize_return:scale=2"), piece)
    assert step.state() == {"minimum": 5.0, "maximum": 7.0, "not_finite": 0}
    assert step.describe() == {"step": "normalize_return", "scale": 2}
    assert step.notes() == ()


def test_returns_that_are_not_finite_do_not_count() -> None:
    piece = with_rewards([1, 2, 1, 1], [3.0, np.nan, 4.0, np.inf, 7.0])
    step = prepared(parse_step("normalize_return:scale=8"), piece)
    assert step.state() == {"minimum": 3.0, "maximum": 7.0, "not_finite": 2}
    found = step.apply(piece).batch.steps["next", "reward"][:, 0]
    np.testing.assert_array_equal(found, [6, np.nan, 8, np.inf, 14])
    (note,) = step.notes()
    assert note == (
        "normalize_return: 2 episodes have a return that is NaN or infinite, and are not in the "
        "range of returns"
    )


@pytest.mark.parametrize(
    ("lengths", "rewards", "told"),
    [
        ([2], [3, 4], "all 1 finite returns are 7"),
        ([1, 2], [7, 3, 4], "all 2 finite returns are 7"),
        ([1, 1], [np.nan, np.inf], "no return is finite"),
    ],
)
def test_no_range(lengths: list[int], rewards: list[float], told: str) -> None:
    with pytest.raises(StepError, match=told) as caught:
        prepared(parse_step("normalize_return"), with_rewards(lengths, rewards))
    assert "reward_scale" in str(caught.value.hint)
    with pytest.raises(StepError, match="no return is finite"):
        NormalizeReturn().fitted([])


def test_a_reward_that_becomes_too_large() -> None:
    piece = with_rewards([1, 2], [3.0, 5.0, 600.0], "f2")
    step = prepared(parse_step("normalize_return:scale=1e5"), piece)
    with pytest.raises(StepError, match=r"row 2 \(episode 1, step 1\) .* float16 cannot hold"):
        step.apply(piece)


def test_it_must_be_measured_first() -> None:
    with pytest.raises(StepError, match="Step 'normalize_return' has measured nothing yet"):
        parse_step("normalize_return").apply(toy_piece([2]))


@pytest.mark.parametrize(
    "text", ["scale=0", "scale=-3", "much", "scale=null", "true", "1,2", "f=1"]
)
def test_arguments_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="normalize_return") as caught:
        parse_step(f"normalize_return:{text}")
    assert "normalize_return:scale=1000" in str(caught.value.hint)
