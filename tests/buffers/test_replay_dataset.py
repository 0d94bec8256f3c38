from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from offline_data.agilerl import ReplayDataset
from offline_data.buffers.dataset import Dataset
from offline_data.rows.samplers import (
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
)

from .conftest import flat, rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\)"),  # torch has one thread here
]


def loader(dataset: ReplayDataset, workers: int = 0, **options: Any) -> DataLoader[Any]:
    if workers:
        options = {"multiprocessing_context": "fork", **options}
    return DataLoader(
        dataset, batch_size=None, collate_fn=torch.nn.Identity(), num_workers=workers, **options
    )


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "shuffled": lambda: SamplerWithoutReplacement(seed=3),
    "unseeded": SamplerWithoutReplacement,
    "slices": lambda: SliceSamplerWithoutReplacement(slice_len=4, strict_length=False, seed=1),
}


@pytest.mark.parametrize(("name", "workers"), [("shuffled", 1), ("unseeded", 2), ("slices", 2)])
def test_workers_share_an_epoch(forty: Path, name: str, workers: int) -> None:
    ds = Dataset(forty, sampler=SAMPLERS[name]())
    alone = rows(ReplayDataset(ds, 8, seed=5))
    ds = Dataset(forty, sampler=SAMPLERS[name]())
    assert rows(loader(ReplayDataset(ds, 8, seed=5), workers)) == alone
    if name != "slices":
        assert sorted(flat(alone)) == list(range(40))


@pytest.mark.parametrize("name", SAMPLERS)
def test_later_epochs_are_the_same_whatever_the_workers_and_the_first_epoch(
    forty: Path, name: str
) -> None:
    def epochs(workers: int, *numbers: int, **options: Any) -> list[list[list[int]]]:
        ds = Dataset(forty, sampler=SAMPLERS[name]())
        dataset = ReplayDataset(ds, 8, seed=5)
        dataset.set_epoch(numbers[0])
        batches = loader(dataset, workers, **options)
        return [rows(batches) for _ in numbers]

    alone = epochs(0, 0, 1, 2)
    assert alone[0] != alone[1] != alone[2]
    assert epochs(2, 0, 1, 2) == epochs(2, 0, 1, 2, persistent_workers=True) == alone
    assert epochs(0, 1, 2) == alone[1:]


@pytest.mark.slow
def test_spawned_workers_share_an_epoch(forty: Path) -> None:
    dataset = ReplayDataset(Dataset(forty, 8, sampler=SamplerWithoutReplacement()))
    found = [rows(loader(dataset, 2, multiprocessing_context="spawn")) for _ in range(2)]
    for got in found:
        assert sorted(flat(got)) == list(range(40))
        assert [len(batch) for batch in got] == [8] * 5
    assert found[0] != found[1]


@pytest.mark.slow
def test_random_draws_are_the_same_whatever_the_workers(forty: Path) -> None:
    def first(workers: int, **options: Any) -> list[list[int]]:
        ds = Dataset(forty, sampler=RandomSampler(seed=8))
        return rows(islice(loader(ReplayDataset(ds, 6, **options), workers), 7))

    drawn = first(2, seed=2)
    assert first(0, seed=2) == drawn != first(0, seed=3)
    assert len({tuple(batch) for batch in drawn}) == 7

    def epoch(seed: int) -> list[list[int]]:
        ds = Dataset(forty, 8, sampler=SamplerWithoutReplacement())
        generator = torch.Generator().manual_seed(seed)
        return rows(loader(ReplayDataset(ds), 2, generator=generator))

    assert epoch(1) == epoch(1) != epoch(2)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "persistent"), [(2, False), (2, True)])
def test_epochs_differ_and_are_whole_whatever_starts_the_workers(
    forty: Path, workers: int, persistent: bool
) -> None:
    """Also where torch is seeded the same for each epoch, and where one is left early."""
    sampler = SamplerWithoutReplacement(seed=4)
    dataset = ReplayDataset(Dataset(forty, 4, sampler=sampler))
    loading = loader(dataset, workers, persistent_workers=persistent)
    found = []
    for number in range(4):
        if number > 1:
            torch.manual_seed(0)
        if number == 1:
            list(islice(loading, 2))
        got = rows(loading)
        assert sorted(flat(got)) == list(range(40))
        found.append(got)
    assert all(one != other for one, other in combinations(found, 2))


def test_epochs_go_on_after_a_state_was_loaded(forty: Path) -> None:
    sampler = SamplerWithoutReplacement(seed=4)
    ds = Dataset(forty, 8, sampler=sampler)
    alone = [rows(ds) for _ in range(4)]
    other = Dataset(forty, 8, sampler=SamplerWithoutReplacement(seed=4))
    list(other), list(other)
    resumed = Dataset(forty, 8, sampler=SamplerWithoutReplacement())
    resumed.load_state_dict(other.state_dict())
    loading = loader(ReplayDataset(resumed), 2)
    assert [rows(loading) for _ in range(2)] == alone[2:]


def test_prefetched_draws_do_not_outlive_the_epoch(forty: Path) -> None:
    ds = Dataset(forty, 8, prefetch=2, sampler=SamplerWithoutReplacement(seed=4))
    dataset = ReplayDataset(ds, seed=0)
    whole = rows(dataset)
    dataset.set_epoch(0)
    list(islice(dataset, 2))
    dataset.set_epoch(0)
    assert rows(dataset) == whole


def test_arguments(forty: Path) -> None:
    ds = Dataset(forty)
    assert ReplayDataset(ds).batch_size == 256
    assert ReplayDataset(Dataset(forty, 7)).batch_size == 7
    assert len(pickle.dumps(ReplayDataset(ds))) < 20_000
