"""Rewards: outliers, constant, zero, shifted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.analysis.checks import run_checks
from offline_data.analysis.checks.rules.rewards import ShiftedReward
from offline_data.episode.fields import REWARD
from tests.analysis.checks.planted import Write, changed, clean_batch, found

REWARDS = ["RL040", "RL041", "RL042", "RL043"]


def with_rewards(write: Write, rewards: Any, lengths: Any = (12, 20, 9), **options: Any) -> Any:
    column = np.asarray(rewards, np.float64).reshape(-1, 1)
    return write(changed(clean_batch(lengths), steps={REWARD: column}), **options)


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_clean(write: Write, layout: str) -> None:
    path = write(clean_batch(), layout=layout)
    assert [one for code in REWARDS for one in found(path, code)] == []


def test_outliers(write: Write) -> None:
    rewards = np.random.default_rng(0).normal(size=3000)
    rewards[[1200, 2500]] = (-9999, 5000)
    lengths = [1000, 1000, 1000]
    (one,) = found(with_rewards(write, rewards, lengths), "RL040")
    assert (one.leaf, one.episode, one.row, one.count) == ("next/reward", 1, 1200, 2)
    assert one.message.startswith("2 rewards are up to 9999 in magnitude; the others are at most 4")


@pytest.mark.parametrize(("largest", "reported"), [(127.0, 0), (128.0, 1)])
def test_outliers_begin_at_a_power_of_two(write: Write, largest: float, reported: int) -> None:
    rewards = np.ones(3000)
    rewards[7] = largest  # beyond 64 times the others, rounded to powers of two
    assert len(found(with_rewards(write, rewards, [1000] * 3), "RL040")) == reported


@pytest.mark.parametrize("sparse", [1, 100.0, 1e6])
def test_sparse_rewards_are_no_outliers(write: Write, sparse: float) -> None:
    rewards = np.zeros(3000)
    rewards[::1000] = sparse
    assert found(with_rewards(write, rewards, [1000] * 3), "RL040") == []


def test_constant_and_zero(write: Write) -> None:
    ones = with_rewards(write, np.full(41, -1.0))
    (one,) = found(ones, "RL041")
    assert (one.message, one.severity) == ("Every reward is -1", "info")
    assert found(ones, "RL042") == found(ones, "RL021") == []
    zeros = with_rewards(write, np.zeros(41))
    (zero,) = found(zeros, "RL042")
    assert (zero.message, zero.count) == ("All 41 rewards are 0", 41)
    assert found(zeros, "RL041") == found(zeros, "RL022") == []


def stated(observation: Any, action: Any, after: Any) -> Any:
    return observation[:, 0] + action[:, 1] * after[:, 2]


def rewards_of(batch: Any) -> Any:
    before, after = (
        batch.observations["observation",][rows] for rows in (batch.root_rows, batch.next_rows)
    )
    return stated(before, batch.steps["action",], after)


@pytest.mark.parametrize(("by", "which"), [(1, "before"), (-1, "after"), (0, "")])
@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_shifted(write: Write, layout: str, by: int, which: str) -> None:
    path = with_rewards(write, np.roll(rewards_of(clean_batch()), by), layout=layout)
    reports = [
        run_checks([path], [ShiftedReward(reward=stated)], block_items=items)
        for items in (1, 7, 9999)
    ]
    assert reports[0] == reports[1] == reports[2]
    if not which:
        assert reports[0].findings == ()
        return
    (one,) = reports[0].findings
    assert (one.episode, one.row, one.count, one.severity) == (0, 1, 35, "error")
    assert one.message == f"35 of 35 rewards are of the row {which}; 0 are of their own row"


def test_other_rewards_are_not_shifted(write: Write) -> None:
    path = write(clean_batch())
    assert run_checks([path], [ShiftedReward(reward=stated)]).findings == ()


def test_a_function_of_another_length_is_named(write: Write) -> None:
    report = run_checks([write(clean_batch())], [ShiftedReward(reward=lambda *_: np.zeros(3))])
    assert "returned 3 rewards" in report.findings[0].message
