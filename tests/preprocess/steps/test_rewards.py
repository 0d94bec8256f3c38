"""The steps that do arithmetic on the reward: `reward_scale`, `reward_shift`, `reward_clip`."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.registry import parse_step
from offline_data.preprocess.steps.rewards import RewardClip, RewardScale, RewardShift
from offline_data.testing.pieces import assert_same_piece, toy_piece
from offline_data.testing.steps import StepContract

REWARD = ("next", "reward")


class TestContract(StepContract):
    @pytest.fixture(
        params=[
            "reward_scale:0.1",
            "reward_scale:scale=-3",
            "reward_shift:-1",
            "reward_shift:0.3",
            "reward_clip:low=-1,high=125.2",
            "reward_clip:high=0.2",
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def with_rewards(values: Any, dtype: str) -> Piece:
    column = np.array(values, dtype)[:, None]
    piece = toy_piece([len(values)])
    return piece.having(steps={**piece.batch.steps, REWARD: column})


def single(value: float) -> float:
    """Round to single precision, the way C does."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_only_the_reward_changes() -> None:
    piece = toy_piece([2, 3])
    for text in ("reward_scale:3", "reward_shift:2.5", "reward_clip:low=0.2"):
        found = parse_step(text).apply(piece)
        assert found.batch.steps[REWARD].tolist() != piece.batch.steps[REWARD].tolist()
        steps = {**found.batch.steps, REWARD: piece.batch.steps[REWARD]}
        assert_same_piece(found.having(steps=steps), piece)


@pytest.mark.parametrize("number", [0.1, -3, 1e-3, 0.7])
def test_single_precision(number: float) -> None:
    piece = toy_piece([3, 2])
    old = [single(value) for value in piece.batch.steps[REWARD][:, 0].tolist()]
    found = RewardScale(number).apply(piece).batch.steps[REWARD]
    assert found.dtype == np.float32
    assert found.tolist() == [[single(value * single(number))] for value in old]
    found = RewardShift(number).apply(piece).batch.steps[REWARD]
    assert found.dtype == np.float32
    assert found.tolist() == [[single(value + single(number))] for value in old]


def test_double_precision() -> None:
    values = [0.1, -7.3, 1e-200, math.inf, -math.inf, math.nan]
    piece = with_rewards(values, "float64")
    found = RewardScale(-0.3).apply(piece).batch.steps[REWARD]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found[:, 0], [value * -0.3 for value in values])
    found = RewardShift(-0.3).apply(piece).batch.steps[REWARD]
    np.testing.assert_array_equal(found[:, 0], [value - 0.3 for value in values])
    found = RewardScale(0).apply(piece).batch.steps[REWARD]
    np.testing.assert_array_equal(found[:, 0], [0, 0, 0, math.nan, math.nan, math.nan])


def test_half_precision_stays() -> None:
    piece = with_rewards([1, 2.5], "float16")
    found = RewardScale(3).apply(piece).batch.steps[REWARD]
    assert found.dtype == np.float16
    assert found.tolist() == [[3.0], [7.5]]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_whole_numbers_keep_integers(dtype: str) -> None:
    info = np.iinfo(dtype)
    values = [1, 2, 60, info.max // 2]
    piece = with_rewards(values, dtype)
    found = RewardScale(2.0).apply(piece).batch.steps[REWARD]
    assert found.dtype == dtype
    assert found.tolist() == [[value * 2] for value in values]
    found = RewardShift(-1).apply(piece).batch.steps[REWARD]
    assert found.dtype == dtype
    assert found.tolist() == [[value - 1] for value in values]
    if info.min < 0:
        found = RewardScale(-2).apply(piece).batch.steps[REWARD]
        assert found.tolist() == [[value * -2] for value in values]


def test_integers_are_exact_wherever_the_result_fits() -> None:
    found = RewardShift(2**63 + 5).apply(with_rewards([1, 2], "uint64")).batch.steps[REWARD]
    assert found.tolist() == [[2**63 + 6], [2**63 + 7]]
    found = RewardShift(-(2**63) - 5).apply(with_rewards([2**63 + 6], "uint64")).batch.steps[REWARD]
    assert found.tolist() == [[1]]
    found = RewardShift(2**63 + 5).apply(with_rewards([-(2**63), -6], "int64")).batch.steps[REWARD]
    assert found.tolist() == [[5], [2**63 - 1]]
    far = 2**60 + 1
    found = RewardScale(-3).apply(with_rewards([far, -far], "int64")).batch.steps[REWARD]
    assert found.tolist() == [[-3 * far], [3 * far]]


@pytest.mark.parametrize(
    ("text", "dtype", "values", "bad"),
    [
        ("reward_scale:2", "int8", [1, -64, 64, 100], 2),
        ("reward_scale:-1", "int8", [127, -128], 1),
        ("reward_scale:-1", "uint8", [0, 1], 1),
        ("reward_shift:-1", "uint8", [1, 0], 1),
        ("reward_shift:1", "int64", [5, 2**63 - 1], 1),
        ("reward_shift:1e30", "int64", [5], 0),
        ("reward_scale:1e30", "uint64", [0, 1], 1),
        ("reward_scale:1e300", "float64", [1, 1e100], 1),
        ("reward_scale:1e300", "float32", [1, 2], 0),
        ("reward_shift:1e300", "float32", [1, 2], 0),
        ("reward_scale:2", "float16", [32000, math.nan, math.inf, 60000], 3),
    ],
)
def test_what_the_type_cannot_hold(text: str, dtype: str, values: list[Any], bad: int) -> None:
    piece = with_rewards(values, dtype)
    with pytest.raises(StepError) as caught:
        parse_step(text).apply(piece)
    name = text.partition(":")[0]
    assert caught.value.message == (
        f"Step '{name}' on 'next/reward' in row {bad} (episode 0, step {bad}) gives what {dtype} "
        "cannot hold"
    )


def test_rewards_that_no_number_changes() -> None:
    piece = with_rewards([math.nan, math.inf], "float32")
    found = parse_step("reward_shift:1e300").apply(piece).batch.steps[REWARD]
    np.testing.assert_array_equal(found, piece.batch.steps[REWARD])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
def test_other_numbers_make_integers_single(dtype: str) -> None:
    piece = with_rewards([0, 1, 1], dtype)
    found = RewardScale(0.1).apply(piece).batch.steps[REWARD]
    assert found.dtype == np.float32
    assert found.tolist() == [[0.0], [single(0.1)], [single(0.1)]]
    found = RewardShift(-0.5).apply(piece).batch.steps[REWARD]
    assert found.tolist() == [[-0.5], [0.5], [0.5]]


def test_bools_become_single() -> None:
    found = RewardShift(-1).apply(with_rewards([True, False], "bool")).batch.steps[REWARD]
    assert found.dtype == np.float32
    assert found.tolist() == [[0.0], [-1.0]]
    with pytest.raises(StepError, match="next/reward is bool"):
        RewardClip(low=0).apply(with_rewards([True, False], "bool"))


def test_clipped_rewards() -> None:
    values = [-7.5, -0.25, 0.25, 7.5, math.nan, math.inf]
    found = RewardClip(-1, 1).apply(with_rewards(values, "float32")).batch.steps[REWARD]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 0], [-1, -0.25, 0.25, 1, math.nan, 1])
    found = RewardClip(low=-0.5).apply(with_rewards([-3, 0, 4], "int64")).batch.steps[REWARD]
    assert found.dtype == np.int64
    assert found.tolist() == [[0], [0], [4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward_scale", "needs scale"),
        ("reward_scale:NaN", "has scale=NaN; expected a number"),
        ("reward_scale:1,2", "has no use for '2'"),
        ("reward_scale:scal=2", "has no 'scal'; did you mean 'scale'?"),
        ("reward_shift", "needs shift"),
        ("reward_shift:true", "has shift=true; expected a number"),
        ("reward_clip", "expected one bound or two"),
        ("reward_clip:low=2,high=1", "has low=2, high=1; expected one bound or two, low <= high"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_step(text)
    name = text.partition(":")[0]
    assert caught.value.message.startswith(f"Step '{name}' ")
    assert message in caught.value.message
    assert str(caught.value.hint).startswith(f"for example --step {name}:")


@pytest.mark.parametrize("number", [math.nan, math.inf, True, "1", None])
def test_numbers_are_finite(number: Any) -> None:
    for step in (RewardScale, RewardShift):
        with pytest.raises(UsageError, match="expected a finite number"):
            step(number)
