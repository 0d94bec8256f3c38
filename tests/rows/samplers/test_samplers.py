"""The contract of all samplers; then what uniform ones promise."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from offline_data.episode.permutation import PIECE, EpochOrder
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from tests.rows.samplers.conftest import Episodes

MAKERS: dict[str, Callable[[int | None], Any]] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "without": lambda seed: SamplerWithoutReplacement(seed=seed),
    "slices": lambda seed: SliceSampler(slice_len=3, seed=seed),
    "starts": lambda seed: SliceSampler(slice_len=3, seed=seed, over="starts", strict_length=False),
    "slices without": lambda seed: SliceSamplerWithoutReplacement(num_slices=2, seed=seed),
    "prioritized": lambda seed: PrioritizedSampler(30, 0.7, 0.5, seed=seed),
    "prioritized slices": lambda seed: PrioritizedSliceSampler(
        30, 0.7, 0.5, slice_len=3, seed=seed
    ),
}

every_sampler = pytest.mark.parametrize("name", MAKERS)


def draw(sampler: Any, storage: Any, size: int = 6, times: int = 1) -> list[list[int]]:
    """Draw batches, and change priorities in between where there are some."""
    found = []
    for step in range(times):
        rows, leaves = sampler.sample(storage, size)
        found.append([*rows.tolist(), *leaves.get("priority_weight", rows[:0]).tolist()])
        if isinstance(sampler, PrioritizedSampler):
            sampler.update_priority(rows, rows / 10.0 + 1 / (step + 1))
    return found


@every_sampler
def test_the_seed_decides_or_torch_or_a_generator(name: str) -> None:
    storage = Episodes([9] * 3)

    def batches(seed: int | None, generator: int | None = None) -> Any:
        torch.manual_seed(0)
        sampler = MAKERS[name](seed)
        if generator is not None:
            sampler.set_rng(torch.Generator().manual_seed(generator))
            torch.rand(1)
        return draw(sampler, storage, 6, 4)

    assert batches(1) == batches(1) != batches(2)
    assert batches(None) == batches(None)
    assert batches(None, 5) == batches(None, 5) != batches(None, 6)


@every_sampler
def test_a_state_and_a_pickle_resume_in_the_middle(name: str) -> None:
    storage = Episodes([9, 3, 12, 6])
    sampler = MAKERS[name](4)
    draw(sampler, storage, times=3)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    other, state = MAKERS[name](9), sampler.state_dict()
    rest = draw(sampler, storage, times=9)
    draw(other, storage)  # what it knows of its own order is forgotten
    other.load_state_dict(state)
    assert draw(copy, storage, times=9) == draw(other, storage, times=9) == rest
    assert repr(copy) == repr(sampler)
    assert copy.ran_out == other.ran_out == sampler.ran_out


@every_sampler
def test_rows_are_given_away(name: str) -> None:
    one, other, storage = MAKERS[name](0), MAKERS[name](0), Episodes([20])
    one.sample(storage, 6)[0].fill_(0)
    other.sample(storage, 6)
    assert draw(one, storage, times=4) == draw(other, storage, times=4)


@pytest.mark.parametrize(
    ("sampler", "other"),
    [(RandomSampler, SamplerWithoutReplacement), (SliceSampler, SliceSamplerWithoutReplacement)],
)
def test_replacement_false_is_the_other_sampler(sampler: Any, other: Any) -> None:
    options = {"slice_len": 2} if sampler is SliceSampler else {}
    made = sampler(replacement=False, drop_last=True, seed=3, **options)
    assert type(made) is other
    assert (made.drop_last, made.seed) == (True, 3)


def test_a_sampler_without_priorities_says_so() -> None:
    with pytest.warns(UserWarning, match="RandomSampler has no priorities"):
        RandomSampler().update_priority(torch.tensor([0]), 1.0)


def test_random_draws_are_uniform(follows: Callable[[ArrayLike, ArrayLike], bool]) -> None:
    storage = Episodes([10], left_out=[3, 9])
    for valid_only, expected in ((True, [1, 1, 1, 0, 1, 1, 1, 1, 1, 0]), (False, [1] * 10)):
        sampler: Sampler = RandomSampler(seed=0, valid_only=valid_only)
        counts = np.bincount(sampler.sample(storage, 5000)[0], minlength=10)
        assert follows(counts, expected)
        assert not sampler.ran_out


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_valid_row_once_an_epoch(drop_last: bool, shuffle: bool) -> None:
    storage = Episodes([13], left_out=[0, 3, 4, 12])
    sampler = SamplerWithoutReplacement(drop_last, shuffle, seed=0)
    valid = [1, 2, 5, 6, 7, 8, 9, 10, 11]
    orders = []
    for epoch in range(3):
        batches = [sampler.sample(storage, 4)[0].tolist()]
        while not sampler.ran_out:
            batches.append(sampler.sample(storage, 4)[0].tolist())
        seen = [row for batch in batches for row in batch]
        assert [len(batch) for batch in batches] == ([4, 4] if drop_last else [4, 4, 1])
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(valid)
        assert (sampler.epoch, sampler.position) == (epoch + 1, 0)
        assert shuffle or seen == valid[: len(seen)]
        orders.append(seen)
    assert (orders[0] != orders[1]) == shuffle


def test_a_larger_batch_than_an_epoch_has_left_begins_a_new_one() -> None:
    sampler = SamplerWithoutReplacement(drop_last=True, seed=0)
    sampler.sample(Episodes([10]), 4)
    rows = sampler.sample(Episodes([10]), 8)[0].tolist()  # 6 are left
    assert len(set(rows)) == 8


@pytest.mark.parametrize("count", [1, 2, 7, PIECE - 1, PIECE, PIECE + 1, 4 * PIECE])
def test_an_order_has_every_number_once(count: int) -> None:
    order = EpochOrder(count, seed=3, epoch=1).between(0, count)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_parts_of_an_order_are_parts_of_the_whole() -> None:
    whole = EpochOrder(100_003, 0, 0).between(0, 100_003)
    order = EpochOrder(100_003, 0, 0)
    for start, stop in ((5, 9), (PIECE - 3, PIECE + 4), (0, 2 * PIECE + 1), (100_000, 100_003)):
        np.testing.assert_array_equal(order.between(start, stop), whole[start:stop])
    assert len(order.between(4, 4)) == 0


def test_seed_and_epoch_decide_an_order_for_good() -> None:
    for count in (1000, 100_003):
        first, *others = (
            EpochOrder(count, *key).between(0, count) for key in ((0, 0), (0, 1), (1, 0))
        )
        assert all(np.mean(first == other) < 0.01 for other in others)
    assert EpochOrder(10, 0, 0).between(0, 10).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    large = EpochOrder(10**6, 0, 0).between(500_000, 500_004)
    assert large.tolist() == [267602, 651175, 680447, 67575]


def test_large_orders_are_not_stored_and_well_mixed() -> None:
    tracemalloc.start()
    part = EpochOrder(10**9, 1, 2).between(999_999_000, 10**9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50_000_000  # the numbers alone would be 8,000,000,000 bytes
    assert len(set(part.tolist())) == 1000
    assert part.max() < 10**9
    order = EpochOrder(400_000, 5, 0).between(0, 400_000)
    table, _, _ = np.histogram2d(np.arange(400_000), order, bins=20)
    deviation = ((table - 1000) ** 2 / 1000).sum()
    assert 250 < deviation < 500  # chi-square of 361 degrees of freedom: mean 361, deviation 27
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.01
