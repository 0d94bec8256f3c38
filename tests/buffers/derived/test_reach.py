from __future__ import annotations

import pytest
import torch

from offline_data.buffers.derived.reach import reached, rewards_of
from offline_data.errors import UsageError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.int64])
def test_reached_is_equal_or_near(dtype: torch.dtype) -> None:
    goals = torch.tensor([[1, 2], [1, 2], [4, 6]]).to(dtype)
    achieved = torch.tensor([[1, 2], [1, 3], [1, 2]]).to(dtype)
    assert reached(achieved, goals, 0).tolist() == [True, False, False]
    assert reached(achieved, goals, 1).tolist() == [True, True, False]
    assert reached(achieved, goals, 4.99).tolist() == [True, True, False]
    assert reached(achieved, goals, 5).tolist() == [True, True, True]


def test_reached_takes_rows_of_any_shape() -> None:
    assert reached(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]), 0).tolist() == [True, False]
    images = torch.zeros(2, 3, 4, 4)
    images[1, 2, 3, 3] = 1
    assert reached(images, torch.zeros(2, 3, 4, 4), 0).tolist() == [True, False]
    assert reached(images[:0], images[:0], 0.1).shape == (0,)


def test_rewards_are_like_those_stored() -> None:
    goals, stored = torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.float64)
    achieved = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    found = rewards_of(None, 0, achieved, goals, stored)
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.0], [-1.0], [0.0]]
    dense = rewards_of(lambda a, g: -(a - g).norm(dim=-1), 0, achieved, goals, stored)
    assert dense[:, 0].tolist() == [0, -5, 0]
    whole = rewards_of(lambda a, g: -(a - g).norm(dim=-1) / 2, 0, achieved, goals, stored.long())
    assert whole[:, 0].tolist() == [0, -2.5, 0]


def test_rewards_that_are_not_one_a_row() -> None:
    goals = torch.zeros(3, 2)
    with pytest.raises(UsageError, match=r"reward_fn gave \[3, 2\] for 3 transitions"):
        rewards_of(lambda a, g: a - g, 0, goals, goals, torch.zeros(3, 1))
