from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.buffers.samplers.permutation import PIECE, EpochOrder


@pytest.mark.parametrize("count", [1, 2, 7, PIECE - 1, PIECE, PIECE + 1, 100_003, 4 * PIECE])
def test_every_number_once(count: int) -> None:
    order = EpochOrder(count, seed=3, epoch=1).between(0, count)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))


@settings(max_examples=10, deadline=None)
@given(st.integers(PIECE + 1, 300_000), st.integers(0, 2**62), st.integers(0, 1000))
def test_every_number_once_whatever_the_key(count: int, seed: int, epoch: int) -> None:
    order = EpochOrder(count, seed, epoch).between(0, count)
    assert len(np.unique(order)) == count
    assert order.min() == 0
    assert order.max() == count - 1


def test_pieces_are_pieces_of_the_whole() -> None:
    whole = EpochOrder(100_003, 0, 0).between(0, 100_003)
    order = EpochOrder(100_003, 0, 0)
    for start, stop in ((5, 9), (PIECE - 3, PIECE + 4), (0, 2 * PIECE + 1), (100_000, 100_003)):
        np.testing.assert_array_equal(order.between(start, stop), whole[start:stop])
    assert len(order.between(4, 4)) == 0


def test_seed_and_epoch_decide() -> None:
    for count in (1000, 100_003):
        keys = [(0, 0), (0, 1), (1, 0)]
        orders = [EpochOrder(count, *key).between(0, count) for key in keys]
        for other in orders[1:]:
            assert np.mean(orders[0] == other) < 0.01
        again = EpochOrder(count, 0, 0).between(0, count)
        np.testing.assert_array_equal(again, orders[0])


def test_the_order_is_the_same_everywhere_and_for_good() -> None:
    assert EpochOrder(10, 0, 0).between(0, 10).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    large = EpochOrder(10**6, 0, 0).between(500_000, 500_004)
    assert large.tolist() == [267602, 651175, 680447, 67575]


def test_large_sets_cost_no_memory_of_their_size() -> None:
    program = (
        "import resource\n"
        "from offline_data.buffers.samplers.permutation import EpochOrder\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "order = EpochOrder(10**9, 1, 2).between(999_999_000, 10**9)\n"
        "assert len(set(order.tolist())) == 1000 and order.max() < 10**9\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) < 50_000  # KiB; the numbers alone would be 8,000,000


def test_large_sets_are_well_mixed() -> None:
    count = 400_000
    order = EpochOrder(count, 5, 0).between(0, count)
    table, _, _ = np.histogram2d(np.arange(count), order, bins=20)
    deviation = ((table - count / 400) ** 2 / (count / 400)).sum()
    assert 250 < deviation < 500  # chi-square of 361 degrees of freedom: mean 361, deviation 27
    steps = np.diff(order)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.01
    assert len(np.unique(steps)) > 0.5 * count
