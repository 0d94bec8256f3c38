"""Steps about rewards and returns, computed again by hand."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.episode.discount import discount_rewards
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.testing.chunks import assert_same_chunk, toy_chunk
from offline_data.testing.steps import prepare_step
from tests.pipeline.preprocess.steps.test_refusals import with_rewards

REWARD = ("next", "reward")
TYPES = [("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("i8", "f4"), ("u1", "f4")]


def rewarded(text: str, values: Any, dtype: str) -> Any:
    """Return the rewards that a step makes of these, `[N]`."""
    return parse_step(text).apply(with_rewards(values, dtype)).batch.steps[REWARD][:, 0]


def single(value: float) -> float:
    """Round to single precision, the way C does."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


OLD = [single(value) for value in (0.125, 0.3, -1e30, 125.5)]
WIDE = [0.1, -7.3, 1e-200, math.inf, -math.inf, math.nan]
WHOLE = {name: [1, 2, 60, np.iinfo(name).max // 2] for name in ("i1", "i8", "u1", "u8")}


@pytest.mark.parametrize(
    ("text", "dtype", "values", "becomes", "want"),
    [
        *(
            (f"reward_scale:{x}", "f4", OLD, "f4", [single(old * single(x)) for old in OLD])
            for x in (0.1, -3, 0.7)
        ),
        *(
            (f"reward_shift:{x}", "f4", OLD, "f4", [single(old + single(x)) for old in OLD])
            for x in (0.1, -3, 0.7)
        ),
        ("reward_shift:1e300", "f4", [math.nan, math.inf], "f4", [math.nan, math.inf]),
        ("reward_scale:-0.3", "f8", WIDE, "f8", [old * -0.3 for old in WIDE]),
        ("reward_shift:-0.3", "f8", WIDE, "f8", [old - 0.3 for old in WIDE]),
        ("reward_scale:0", "f8", WIDE, "f8", [0, 0, 0, math.nan, math.nan, math.nan]),
        ("reward_scale:3", "f2", [1, 2.5], "f2", [3, 7.5]),
        *(
            ("reward_scale:2.0", name, old, name, [2 * x for x in old])
            for name, old in WHOLE.items()
        ),
        *(
            ("reward_shift:-1", name, old, name, [x - 1 for x in old])
            for name, old in WHOLE.items()
        ),
        (f"reward_shift:{2**63 + 5}", "u8", [1, 2], "u8", [2**63 + 6, 2**63 + 7]),
        (f"reward_shift:{-(2**63) - 5}", "u8", [2**63 + 6], "u8", [1]),
        (f"reward_shift:{2**63 + 5}", "i8", [-(2**63), -6], "i8", [5, 2**63 - 1]),
        ("reward_scale:-3", "i8", [2**60 + 1, -(2**60)], "i8", [-3 * 2**60 - 3, 3 * 2**60]),
        *(("reward_scale:0.1", name, [0, 1], "f4", [0, single(0.1)]) for name in ("i1", "u1", "?")),
        *(("reward_shift:-0.5", name, [0, 1], "f4", [-0.5, 0.5]) for name in ("i1", "u1", "?")),
        ("reward_shift:-1", "?", [1, 0], "f4", [0, -1]),
    ],
)
def test_scaled_and_shifted(
    text: str, dtype: str, values: list[Any], becomes: str, want: list[Any]
) -> None:
    """In the type of the rewards, exact for whole numbers; other numbers make those single."""
    found = rewarded(text, values, dtype)
    np.testing.assert_array_equal(found, np.array(want, becomes), strict=True)


def walked_back(rewards: list[float], lengths: list[int], gamma: float) -> list[float]:
    """Each sum with exact fractions, rounded once."""
    found, end = [0.0] * len(rewards), 0
    for length in lengths:
        end, ahead = end + length, Fraction(0)
        for row in range(end - 1, end - length - 1, -1):
            ahead = Fraction(rewards[row]) + Fraction(gamma) * ahead
            found[row] = float(ahead)
    return found


@settings(max_examples=40, deadline=None)
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
    found = discount_rewards(rewards.copy(), sizes, gamma)
    np.testing.assert_allclose(found, walked_back(rewards.tolist(), lengths, gamma), rtol=4e-15)
    alone = [
        discount_rewards(part.copy(), np.array([len(part)]), gamma)
        for part in np.split(rewards, np.cumsum(sizes)[:-1])
    ]
    assert np.concatenate(alone).tobytes() == found.tobytes()


@pytest.mark.parametrize(("dtype", "becomes"), [("f2", "f4"), *TYPES[1:]])
def test_the_leaf(dtype: str, becomes: str) -> None:
    chunk = with_rewards([200, 100, 7], dtype, [2, 1])
    result = parse_step("return_to_go:1,next.sum").apply(chunk)
    found = result.batch.steps["next", "sum"]
    assert (found.dtype, found.shape) == (np.dtype(becomes), (3, 1))
    assert found[:, 0].tolist() == [300, 100, 7]  # more than a byte holds
    assert all(result.batch.steps[key] is column for key, column in chunk.batch.steps.items())
    assert result.words == chunk.words


def test_truncated_episodes_are_not_continued() -> None:
    chunk = toy_chunk([2, 2])  # the second one ends truncated
    step = prepare_step(parse_step("return_to_go"), chunk)
    found = step.apply(chunk).batch.steps["return_to_go",][:, 0]
    reward = chunk.batch.steps[REWARD][:, 0]
    assert found.tolist() == [reward[0] + reward[1], reward[1], reward[2] + reward[3], reward[3]]
    assert "also where it was truncated" in step.notes()[0]


def test_nan_infinite_and_large_rewards_stay_in_their_episode() -> None:
    rewards = np.array([1.0, 2, np.nan, 4, 5, np.inf, 3])
    found = discount_rewards(rewards, np.array([2, 2, 3]), 0.5)
    want = [2.0, 2.0, math.nan, 4.0, math.inf, math.inf, 3.0]
    np.testing.assert_array_equal(found, want)
    large = np.array([1e17, 1.0, 1e-3, 5.0])
    found = discount_rewards(large, np.array([1, 2, 1]), 1.0)
    assert found.tolist() == [1e17, 1.001, 1e-3, 5.0]
    far = np.ones(20_000)
    far[-1] = np.inf
    assert discount_rewards(far, np.array([20_000]), 0.5).tolist() == [math.inf] * 20_000
    assert discount_rewards(np.array([1, np.inf]), np.array([2]), 0.0).tolist() == [1, math.inf]


def iql(lengths: list[int], rewards: list[float]) -> list[float]:
    """Sort trajectories by return and divide, as IQL's train_offline.py does."""
    returns, at = [], 0
    for length in lengths:
        returns.append(sum(rewards[at : at + length]))
        at += length
    returns.sort()
    return [reward / (returns[-1] - returns[0]) * 1000.0 for reward in rewards]


def test_returns_are_normalized_as_iql_does() -> None:
    lengths, rewards = [3, 1, 4], [1.5, -2.0, 4.25, -3.0, 0.5, 0.25, 8.0, 1.0]
    chunk = with_rewards(rewards, "f4", lengths)
    result = prepare_step(parse_step("normalize_return"), chunk).apply(chunk)
    found: Any = result.batch.steps[REWARD]
    np.testing.assert_allclose(found[:, 0], iql(lengths, rewards), rtol=1e-6)
    assert np.ptp(result.batch.returns) == pytest.approx(1000, rel=1e-6)
    assert_same_chunk(
        result.having(steps={**result.batch.steps, REWARD: chunk.batch.steps[REWARD]}), chunk
    )


@pytest.mark.parametrize(("dtype", "becomes"), TYPES)
def test_normalized_returns_have_the_type_of_rewards(dtype: str, becomes: str) -> None:
    chunk = with_rewards([3, 4, 5], dtype, [2, 1])
    step = prepare_step(parse_step("normalize_return:scale=2"), chunk)
    found: Any = step.apply(chunk).batch.steps[REWARD]
    assert found.dtype == np.dtype(becomes)
    np.testing.assert_allclose(found[:, 0], [3, 4, 5])
    assert step.state() == {"minimum": 5.0, "maximum": 7.0, "not_finite": 0}
    assert step.describe() == {"step": "normalize_return", "scale": 2}
    assert step.notes() == ()


def test_returns_that_are_not_finite_do_not_count() -> None:
    chunk = with_rewards([3.0, np.nan, 4.0, np.inf, 7.0], "f4", [1, 2, 1, 1])
    step = prepare_step(parse_step("normalize_return:scale=8"), chunk)
    assert step.state() == {"minimum": 3.0, "maximum": 7.0, "not_finite": 2}
    np.testing.assert_array_equal(
        step.apply(chunk).batch.steps[REWARD][:, 0], [6, np.nan, 8, np.inf, 14]
    )
    assert step.notes()[0].startswith("normalize_return: 2 episodes have a return that is NaN or")
