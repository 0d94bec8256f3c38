from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from torch import Tensor

from offline_data.rows.samplers import sum_tree
from offline_data.rows.samplers.sum_tree import SumTree

TREE = pytest.mark.usefixtures("tree")
EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ALMOST_ONE = 1 - 2.0**-53


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def filled(weights: ArrayLike) -> SumTree:
    values = torch.as_tensor(np.asarray(weights, np.float64))
    tree = SumTree(len(values))
    assert tree.set(torch.arange(len(values)), values) == -1
    return tree


@TREE
@EXAMPLES
@given(st.integers(1, 700), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_total_minimum_and_draws_are_those_of_a_list(
    capacity: int, seed: int, updates: int
) -> None:
    random = np.random.default_rng(seed)
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for _ in range(updates):
        rows = random.integers(0, capacity, random.integers(1, 2 * capacity))
        weights = random.integers(0, 4, len(rows)) * 2.0**-3
        tree.set(torch.from_numpy(rows), torch.from_numpy(weights))
        for row, weight in zip(rows, weights, strict=True):
            plain[row] = weight
        assert tree.weights.tolist() == plain.tolist()
        assert tree.total == plain.sum()
        assert tree.minimum == min(plain[plain > 0], default=np.inf)
    if tree.total:  # a draw inverts the running sum
        fractions = np.append(random.random(50), [0, ALMOST_ONE])
        drawn, found = tree.draw(torch.from_numpy(fractions))
        expected = np.searchsorted(np.cumsum(plain), fractions * plain.sum(), side="right")
        assert drawn.tolist() == expected.tolist()
        assert found.tolist() == plain[expected].tolist()


@TREE
def test_rounding_never_leads_out_of_the_rows_that_can_be_drawn() -> None:
    # From left to right the ones vanish beside 1e16; in four lanes they do not.
    tree = filled([1e16, 1, 1, 1, 1, 1, 1, 0])
    assert tree.total > 1e16
    assert tree.draw(doubles(ALMOST_ONE))[0].tolist() == [6]
    for capacity in (1, 8, 9, 64, 65, 513):
        tree = SumTree(capacity)
        tree.set(torch.tensor([capacity - 1]), doubles(5e-324))
        assert tree.draw(doubles(0, 0.5, ALMOST_ONE))[0].tolist() == [capacity - 1] * 3


@pytest.mark.skipif(sum_tree.compiled is None, reason="the compiled tree was not built")
@pytest.mark.parametrize("capacity", [64, 4097])
def test_both_ways_give_the_same_numbers(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(capacity)
    trees = []
    fractions = torch.from_numpy(random.random(500))
    rows = torch.from_numpy(random.integers(0, capacity, 3 * capacity))
    weights = torch.from_numpy(10.0 ** random.uniform(-8, 8, 3 * capacity))
    for compiled in (sum_tree.compiled, None):
        monkeypatch.setattr(sum_tree, "compiled", compiled)
        tree = SumTree(capacity)
        tree.set(rows, weights)
        tree.set(rows[:5], weights[-5:])
        trees.append((tree.total, tree.minimum, *(one.tolist() for one in tree.draw(fractions))))
    assert trees[0] == trees[1]
