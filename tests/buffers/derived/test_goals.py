from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.derived.goals import LAWS, draw_of, laws_of, numbers_for
from offline_data.errors import UsageError

MANY = 40_000


def chosen(of: Any, law: str, row: int, gamma: float = 0.7) -> Counter[int]:
    rows = torch.full((MANY,), row)
    draw = draw_of(of.storage, rows, numbers_for(1, rows, 1)[0], gamma)
    return Counter(LAWS[law](draw).tolist())


def assert_law(found: Counter[int], law: dict[int, float]) -> None:
    """Pearson's test at 0.1 %, the quantile by Wilson and Hilferty; nothing outside the law."""
    assert math.isclose(sum(law.values()), 1)
    assert set(found) <= {row for row, p in law.items() if p > 0}
    expected = {row: p * MANY for row, p in law.items() if p * MANY >= 5}
    distance = sum((found[row] - want) ** 2 / want for row, want in expected.items())
    free = max(len(expected) - 1, 1)
    third = 2 / (9 * free)
    assert distance < free * (1 - third + 3.09 * math.sqrt(third)) ** 3


@pytest.fixture
def of(sets: Any, episode: Any) -> Any:
    """Rows 0-5, 6, 7-10; what comes after row 10 is not known, and it is not terminated."""
    return sets.write(
        [episode(6), episode(1), episode(4, "truncated", False), episode(2, "terminated", False)]
    )


def uniform(first: int, last: int) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), 1 / (last - first + 1))


@pytest.mark.parametrize(
    ("row", "first", "last"), [(0, 0, 5), (3, 0, 5), (5, 0, 5), (6, 6, 6), (8, 7, 9), (11, 11, 11)]
)
def test_laws_of_an_episode(of: Any, row: int, first: int, last: int) -> None:
    assert_law(chosen(of, "final", row), {last: 1.0})
    assert_law(chosen(of, "future", row), uniform(row, last))
    assert_law(chosen(of, "episode", row), uniform(first, last))
    geometric = {row + d: 0.3 * 0.7**d for d in range(last - row)}
    geometric[last] = 1 - sum(geometric.values())
    assert_law(chosen(of, "geometric", row), geometric)


def test_geometric_at_its_ends(of: Any) -> None:
    assert_law(chosen(of, "geometric", 1, gamma=0.0), {1: 1.0})
    far = chosen(of, "geometric", 0, gamma=1 - 1e-15)
    assert far[5] == MANY


def test_any_transition_that_may_be_drawn(of: Any) -> None:
    law = {row: 1 / 12 for row in range(13) if row != 10}
    assert_law(chosen(of, "random", 3), law)


def test_numbers_follow_from_seed_and_rows() -> None:
    rows = torch.tensor([5, 3, 3])
    first = numbers_for(1, rows, 2)
    assert first.shape == (2, 3)
    assert first.dtype == torch.float64
    assert first.equal(numbers_for(1, torch.tensor([0, 5, 3, 3])[1:], 2))
    assert len({float(number) for number in first.flatten()}) == 6
    for other in (numbers_for(2, rows, 2), numbers_for(1, rows.flip(0), 2)):
        assert not other.equal(first)
    assert numbers_for(2**63 - 1, rows[:0], 2).shape == (2, 0)


def test_numbers_are_uniform_over_batches() -> None:
    numbers = torch.stack([numbers_for(0, torch.tensor([k, 1]), 1)[0] for k in range(2000)])
    counts = np.histogram(numbers[:, 1].numpy(), bins=10, range=(0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # 9 degrees of freedom, 0.1 %
    assert abs(float(torch.corrcoef(numbers.T)[0, 1])) < 0.07


def test_numbers_leave_torchs_own_alone() -> None:
    torch.manual_seed(0)
    want = torch.rand(1)
    torch.manual_seed(0)
    numbers_for(0, torch.arange(3), 1)
    assert torch.rand(1).equal(want)


def test_mixtures() -> None:
    assert laws_of({"current": 0.2, "random": 0.8}) == (("current", 0.2), ("random", 0.8))
    with pytest.raises(UsageError, match=r"add up to 0\.9"):
        laws_of({"current": 0.2, "random": 0.7})
    with pytest.raises(UsageError, match="strategy is 'futur'; expected one of current, final"):
        laws_of("futur")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"probability of 'final' is 1\.5"):
        laws_of({"final": 1.5, "random": -0.5})
    with pytest.raises(UsageError, match="add up to 0"):
        laws_of({})
