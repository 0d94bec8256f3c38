from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.ensembles import SamplerEnsemble, StorageEnsemble
from offline_data.buffers.samplers import (
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from offline_data.buffers.storages import LazyTensorStorage, TensorStorage
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def storage(datasets: list[BaseDatasetExperienceReplay]) -> StorageEnsemble:
    """5, 20 and 16 rows."""
    return StorageEnsemble(*(member.storage for member in datasets))


def random(**options: Any) -> SamplerEnsemble:
    return SamplerEnsemble(RandomSampler(), RandomSampler(), RandomSampler(), **options)


def counts(sampler: SamplerEnsemble, storage: StorageEnsemble, draws: int) -> torch.Tensor:
    """Count in how many sub-batches each member is, and in how many pairs of a batch."""
    drawn = [sampler.sample(storage, 6)[0]["buffer_ids"] for _ in range(draws)]
    return torch.bincount(torch.cat(drawn), minlength=len(sampler)).double()


def chi_square(found: torch.Tensor, shares: torch.Tensor) -> float:
    expected = shares.double() / shares.sum() * found.sum()
    return float(((found - expected) ** 2 / expected).sum())


CRITICAL = 13.8
"""Chi-square of two degrees of freedom exceeds it once in a thousand times."""


def test_rows_are_drawn_in_members(storage: StorageEnsemble) -> None:
    rows, leaves = random(num_buffer_sampled=4).sample(storage, 20)
    assert rows.batch_size == (4,)
    assert rows["buffer_ids"].shape == (4,)
    assert rows["index"].shape == (4, 5)
    assert rows["index"].dtype == rows["buffer_ids"].dtype == torch.int64
    assert leaves == {}
    sizes = torch.tensor([len(member) for member in storage.storages])
    assert (rows["index"] < sizes[rows["buffer_ids"]][:, None]).all()


def test_without_shares_a_small_member_comes_as_often_as_a_large_one(
    storage: StorageEnsemble,
) -> None:
    found = counts(random(seed=0), storage, 1000)
    assert chi_square(found, torch.ones(3)) < CRITICAL
    assert chi_square(found, torch.tensor([5, 20, 16])) > 10 * CRITICAL


@pytest.mark.parametrize("p", [[0.2, 0.5, 0.3], [2, 5, 3], torch.tensor([20.0, 50.0, 30.0])])
def test_members_come_by_their_shares(storage: StorageEnsemble, p: Any) -> None:
    sampler = random(p=p, seed=1)
    torch.testing.assert_close(sampler.p, torch.tensor([0.2, 0.5, 0.3]))
    found = counts(sampler, storage, 1000)
    assert chi_square(found, torch.tensor([0.2, 0.5, 0.3])) < CRITICAL
    assert chi_square(found, torch.ones(3)) > 10 * CRITICAL


def test_shares_pick_whole_sub_batches_each_on_its_own(storage: StorageEnsemble) -> None:
    sampler = random(p=[0.5, 0.5, 0.0], num_buffer_sampled=2, seed=2)
    pairs = [tuple(sampler.sample(storage, 8)[0]["buffer_ids"].tolist()) for _ in range(800)]
    found = torch.tensor([pairs.count(pair) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))])
    assert found.sum() == 800
    assert chi_square(found.double(), torch.ones(4)) < 16.3


def test_sampleable_shares_follow_what_can_be_drawn(storage: StorageEnsemble) -> None:
    found = counts(random(p="sampleable", seed=3), storage, 1000)
    assert chi_square(found, torch.tensor([5, 20, 16])) < CRITICAL
    slices = SamplerEnsemble(
        *(SliceSampler(slice_len=2) for _ in range(2)),
        PrioritizedSliceSampler(99, 1.0, 1.0, slice_len=2),
        p="sampleable",
        seed=4,
    )
    found = counts(slices, storage, 1000)
    assert chi_square(found, torch.tensor([2 + 1, 6 + 11, 4 * 3])) < CRITICAL


def test_sampleable_leaves_out_members_that_cannot_be_drawn_yet(
    storage: StorageEnsemble, steps: Callable[..., TensorDict]
) -> None:
    growing = LazyTensorStorage(9)
    storages = StorageEnsemble(growing, storage[0])
    row, row_or_slice = RandomSampler(), SliceSampler(slice_len=4)
    sampler = SamplerEnsemble(row, row, p="sampleable")
    assert counts(sampler, storages, 10).tolist() == [0, 20]
    growing.set(range(3), steps([3]))
    assert (counts(sampler, storages, 50) > 0).all()
    with pytest.raises(UsageError, match="No member of the ensemble can draw"):
        SamplerEnsemble(row_or_slice, row_or_slice, p="sampleable").sample(storages, 8)


def test_one_of_each_in_order(storage: StorageEnsemble) -> None:
    sampler = random(sample_from_all=True, num_buffer_sampled=7)
    assert sampler.num_buffer_sampled == 3
    for _ in range(5):
        assert sampler.sample(storage, 6)[0]["buffer_ids"].tolist() == [0, 1, 2]


def test_every_sub_batch_is_a_draw_of_its_own(storage: StorageEnsemble) -> None:
    """`num_slices` gives slices of one length, however many sub-batches a member has."""
    sampler = SamplerEnsemble(SliceSampler(num_slices=2), num_buffer_sampled=3)
    rows, leaves = sampler.sample(StorageEnsemble(storage[1]), 12)
    assert sorted(leaves) == [0, 1, 2]
    steps = rows["index"].reshape(3, 2, 2)
    assert (steps[..., 1] == steps[..., 0] + 1).all()


def test_what_cannot_be_is_refused(storage: StorageEnsemble) -> None:
    for p in ([0.5, 0.5], [1], [[0.2, 0.3, 0.5]], [-1, 1, 1], [0, 0, 0], [float("nan"), 1, 1]):
        with pytest.raises(UsageError, match="p "):
            random(p=p)
    with pytest.raises(UsageError, match="'sampleable'"):
        random(p="all")
    with pytest.raises(UsageError, match="p cannot be combined"):
        random(p=[1, 1, 1], sample_from_all=True)
    with pytest.raises(UsageError, match="num_buffer_sampled is 0"):
        random(num_buffer_sampled=0)
    with pytest.raises(UsageError, match="none was given"):
        SamplerEnsemble()
    with pytest.raises(UsageError, match="not a sampler of this package"):
        SamplerEnsemble(RandomSampler(), 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be cut into 3") as caught:
        random().sample(storage, 10)
    assert str(caught.value.hint).startswith("9 can")
    for wrong in (storage[:2], storage[0]):
        with pytest.raises(UsageError, match="of 3 samplers draws from"):
            random().sample(wrong, 6)
    with pytest.raises(UsageError, match="for a ReplayBufferEnsemble"):
        random().complete(TensorDict({}, []), {})


def test_shares_can_be_set_later(storage: StorageEnsemble) -> None:
    sampler = random()
    sampler.p = [0, 0, 2]
    assert counts(sampler, storage, 20).tolist() == [0, 0, 60]
    with pytest.raises(UsageError, match="there are 3 members"):
        sampler.p = [1]
    assert sampler.p.tolist() == [0, 0, 1]


def test_indexing() -> None:
    sampler = random(p=[1, 1, 2], seed=0)
    assert sampler[1] is sampler.samplers[1]
    assert sampler[:] is sampler
    part = sampler[[2, 0]]
    assert part.samplers == [sampler.samplers[2], sampler.samplers[0]]
    torch.testing.assert_close(part.p, torch.tensor([2 / 3, 1 / 3]))
    assert part.num_buffer_sampled == len(part) == 2
    assert random(num_buffer_sampled=5)[:1].num_buffer_sampled == 5
    with pytest.raises(UsageError, match="2 indices"):
        sampler[0, 1]


def test_a_part_keeps_the_generator(storage: StorageEnsemble) -> None:
    def drawn() -> list[list[int]]:
        part = random(seed=11)[[0, 2]]
        both = storage[[0, 2]]
        return [part.sample(both, 2)[0]["buffer_ids"].tolist() for _ in range(20)]

    assert drawn() == drawn()


def test_state_goes_on_where_it_was(storage: StorageEnsemble) -> None:
    def make() -> SamplerEnsemble:
        samplers = [RandomSampler(seed=7), SamplerWithoutReplacement(seed=8), RandomSampler(seed=9)]
        return SamplerEnsemble(*samplers, seed=10)

    first, second = make(), make()
    first.sample(storage, 9)
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        assert (first.sample(storage, 9)[0] == second.sample(storage, 9)[0]).all()


def test_a_short_member_does_not_stop_the_batch() -> None:
    tiny = TensorStorage(TensorDict({"action": torch.arange(3)}, [3]))
    sampler = SamplerEnsemble(SamplerWithoutReplacement(), num_buffer_sampled=1)
    rows = sampler.sample(StorageEnsemble(tiny), 9)[0]["index"]
    assert rows.sort().values.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2]]
