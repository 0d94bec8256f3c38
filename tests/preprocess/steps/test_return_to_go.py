from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.registry import parse_step
from offline_data.preprocess.steps.rewards import discounted
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract, prepared


class TestContract(StepContract):
    @pytest.fixture(params=["return_to_go", "return_to_go:0.9,next.sum", "return_to_go:gamma=0"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def walked_back(rewards: list[float], lengths: list[int], gamma: float) -> list[float]:
    """Each sum with exact fractions, rounded once."""
    found, end = [0.0] * len(rewards), 0
    for length in lengths:
        end, ahead = end + length, Fraction(0)
        for row in range(end - 1, end - length - 1, -1):
            ahead = Fraction(rewards[row]) + Fraction(gamma) * ahead
            found[row] = float(ahead)
    return found


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    gamma=st.sampled_from((0.0, 0.25, 0.99, 1.0)),
    seed=st.integers(0, 2**32),
)
def test_sums_are_exact_to_rounding_and_those_of_the_episode(
    lengths: list[int], gamma: float, seed: int
) -> None:
    rewards = np.random.default_rng(seed).uniform(0.5, 9, sum(lengths))
    sizes = np.array(lengths)
    found = discounted(rewards.copy(), sizes, gamma)
    np.testing.assert_allclose(found, walked_back(rewards.tolist(), lengths, gamma), rtol=4e-15)
    alone = [
        discounted(part.copy(), np.array([len(part)]), gamma)
        for part in np.split(rewards, np.cumsum(sizes)[:-1])
    ]
    assert np.concatenate(alone).tobytes() == found.tobytes()


def test_a_long_episode_is_exact_to_rounding() -> None:
    rewards = np.random.default_rng(3).uniform(-1, 9, 5000)
    found = discounted(rewards.copy(), np.array([4000, 1000]), 0.999)
    want = walked_back(rewards.tolist(), [4000, 1000], 0.999)
    np.testing.assert_allclose(found, want, rtol=1e-13)


def test_the_leaf() -> None:
    piece = toy_piece([3, 1, 2])
    result = parse_step("return_to_go:gamma=0.5").apply(piece)
    leaf: Any = result.batch.steps["return_to_go",]
    rewards = piece.batch.steps["next", "reward"][:, 0].tolist()
    assert (leaf.dtype, leaf.shape) == (np.dtype("f4"), (6, 1))
    want = np.array(walked_back(rewards, [3, 1, 2], 0.5), np.float32)
    assert leaf[:, 0].tolist() == want.tolist()
    assert set(result.batch.steps) == {*piece.batch.steps, ("return_to_go",)}
    assert all(result.batch.steps[key] is column for key, column in piece.batch.steps.items())
    assert result.words == piece.words


@pytest.mark.parametrize(
    ("dtype", "becomes"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i8", "f4"), ("u1", "f4")]
)
def test_types(dtype: str, becomes: str) -> None:
    rewards = np.array([[200], [100], [7]], dtype)
    piece = with_leaves(toy_piece([2, 1]), steps={"next.reward": rewards})
    found = parse_step("return_to_go").apply(piece).batch.steps["return_to_go",]
    assert found.dtype == np.dtype(becomes)
    assert found[:, 0].tolist() == [300, 100, 7]  # more than a byte holds


def test_truncated_episodes_are_not_continued() -> None:
    piece = toy_piece([2, 2])  # the second one ends truncated
    assert piece.batch.steps["next", "truncated"][:, 0].tolist() == [False] * 3 + [True]
    step = prepared(parse_step("return_to_go"), piece)
    found = step.apply(piece).batch.steps["return_to_go",][:, 0]
    reward = piece.batch.steps["next", "reward"][:, 0]
    assert found.tolist() == [reward[0] + reward[1], reward[1], reward[2] + reward[3], reward[3]]
    assert "also where it was truncated" in step.notes()[0]


def test_small_sums_behind_large_ones() -> None:
    rewards = np.array([1e17, 1.0, 1e-3, 5.0])
    assert discounted(rewards, np.array([1, 2, 1]), 1.0).tolist() == [1e17, 1.001, 1e-3, 5.0]


def test_nan_and_infinite_rewards_stay_in_their_episode() -> None:
    rewards = np.array([1.0, 2, np.nan, 4, 5, np.inf, 3])
    found = discounted(rewards, np.array([2, 2, 3]), 0.5)
    want = [2.0, 2.0, math.nan, 4.0, math.inf, math.inf, 3.0]
    np.testing.assert_array_equal(found, want)


def test_what_follows_does_not_even_change_the_sign_of_zero() -> None:
    rewards = np.array([-0.0, 1.0, -0.0, -0.0, 3.0, 4.0])
    found = discounted(rewards, np.array([1, 1, 2, 2]), 0.5)
    assert [math.copysign(1, one) for one in found] == [-1, 1, -1, -1, 1, 1]


def test_an_infinite_reward_far_ahead() -> None:
    rewards = np.ones(20_000)
    rewards[-1] = np.inf
    assert discounted(rewards, np.array([20_000]), 0.5).tolist() == [math.inf] * 20_000
    rewards = np.ones(3)
    rewards[-1] = np.inf
    assert discounted(rewards, np.array([3]), 0.0).tolist() == [1, 1, math.inf]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("action", "two leaves the name 'action'"),
        ("action.more", "make 'action' a leaf, and 'action/more' is below"),
        ("next", "'next': the name is reserved"),
        ("next.reward", "two leaves the name 'next/reward'"),
        ("observation", "make 'observation' a leaf"),
        ("info.code", "two leaves the name 'info/code'"),
        ("next.info.code", "two leaves the name 'next/info/code'"),
        ("episode", "'episode': the name is reserved"),
        ("next.done", "'next/done': the name is reserved"),
        ("a..b", "cannot be a file name"),
    ],
)
def test_places_that_are_taken(key: str, told: str) -> None:
    with pytest.raises(StepError, match=told):
        parse_step(f"return_to_go:key={key}").settled(toy_piece([2]))


def test_a_sum_that_is_too_large() -> None:
    rewards = np.array([3e38, 3e38, -1.0], np.float32)[:, None]
    piece = with_leaves(toy_piece([2, 1]), steps={"next.reward": rewards})
    with pytest.raises(StepError, match=r"row 0 \(episode 0, step 0\) .* float32 cannot hold"):
        parse_step("return_to_go").apply(piece)


def test_a_branch_is_no_place_either() -> None:
    piece = with_leaves(toy_piece([2]), steps={"sums.one": np.ones((2, 1))})
    with pytest.raises(StepError, match="make 'sums' a leaf, and 'sums/one' is below"):
        parse_step("return_to_go:key=sums").apply(piece)
    assert ("sums", "two") in parse_step("return_to_go:key=sums.two").apply(piece).batch.steps


@pytest.mark.parametrize(
    "text",
    [
        "gamma=1.5",
        "gamma=-0.1",
        "gamma=much",
        "gamma=true",
        "gamma=NaN",
        "1,a,b",
        "g=1",
    ],
)
def test_arguments_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="return_to_go") as caught:
        parse_step(f"return_to_go:{text}")
    assert "return_to_go:gamma=0.99" in str(caught.value.hint)


def test_the_derived_leaf_has_the_same_sums() -> None:
    import torch

    from offline_data.buffers.derived.return_to_go import discounted as derived

    lengths = [7, 1, 30]
    rewards = np.random.default_rng(1).uniform(1, 2, (38, 1))
    found: Any = derived(torch.tensor(rewards), torch.tensor(lengths), 0.97)
    mine = discounted(rewards.copy(), np.array(lengths), 0.97)
    np.testing.assert_allclose(mine, found.numpy(), rtol=1e-15)
