from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_data.buffers.buffer import LOOKAHEAD_MISSES
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.rows.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.rows.storage import DatasetStorage

LENGTHS = (40, 5, 30, 25)
ROWS = sum(LENGTHS)

SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": RandomSampler,
    "random, seed": lambda: RandomSampler(seed=3),
    "without replacement": lambda: SamplerWithoutReplacement(seed=3),
    "slices": lambda: SliceSampler(slice_len=4, strict_length=False),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=4, seed=3),
}


@pytest.fixture
def folder(toys: Callable[..., Path]) -> Path:
    return toys(LENGTHS, unknown_final=(3,))


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """A way to make a sampler."""
    return SAMPLERS[request.param]


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Every storage seems to read from a disk; rows that were expected."""
    expected: list[list[int]] = []
    monkeypatch.setattr(DatasetStorage, "needs_io", True)
    monkeypatch.setattr(
        DatasetStorage, "prefetch_rows", lambda _, rows: expected.append(rows.tolist())
    )
    return expected


def test_what_is_foreseen_comes_next_and_changes_nothing(
    folder: Path, make: Callable[[], Any]
) -> None:
    storage, sampler = DatasetStorage(folder), make()
    for _ in range(12):  # over the end of epochs
        before = torch.get_rng_state(), copy.deepcopy(sampler.state_dict()), sampler.ran_out
        foreseen = sampler.lookahead(storage, 16)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert repr(sampler.state_dict()) == repr(before[1])
        assert sampler.ran_out == before[2]
        rows, _ = sampler.sample(storage, 16)
        assert foreseen.tolist() == rows.tolist()


def test_batches_are_the_same_from_a_disk(
    folder: Path, make: Callable[[], Any], cold: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows_of_batches() -> list[list[int]]:
        torch.manual_seed(5)
        buffer = BaseDatasetExperienceReplay(folder, 16, sampler=make())
        return [buffer.sample()["index"].tolist() for _ in range(10)]

    found = rows_of_batches()
    assert cold[: len(found) - 1] == found[1:]
    monkeypatch.setattr(DatasetStorage, "needs_io", False)
    del cold[:]
    assert rows_of_batches() == found
    assert not cold


def test_samplers_that_do_not_know(folder: Path) -> None:
    storage = DatasetStorage(folder)
    for sampler in (PrioritizedSampler(ROWS, 0.7, 0.5), SamplerWithoutReplacement()):
        state = torch.get_rng_state()
        assert sampler.lookahead(storage, 4) is None
        assert torch.equal(torch.get_rng_state(), state)


def test_a_view_expects_rows_of_the_whole(folder: Path, cold: list[list[int]]) -> None:
    whole = BaseDatasetExperienceReplay(folder, 8)
    view = whole.filter(lambda episodes: episodes["length"] > 25)
    batches = [view.sample()["dataset_index"].tolist() for _ in range(5)]
    assert cold[:4] == batches[1:]
    assert max(map(max, batches)) >= LENGTHS[0] + LENGTHS[1]


def test_gives_up_where_others_draw_in_between(folder: Path, cold: list[list[int]]) -> None:
    buffer = BaseDatasetExperienceReplay(folder, 8)
    for _ in range(10):
        buffer.sample()
        torch.rand(1)
    assert len(cold) == LOOKAHEAD_MISSES
    buffer = BaseDatasetExperienceReplay(folder, 8, prefetch=2)
    for _ in range(4):
        buffer.sample()
    assert len(cold) == LOOKAHEAD_MISSES


def test_a_miss_now_and_then_is_none(folder: Path, cold: list[list[int]]) -> None:
    sampler = RandomSampler(seed=1)
    buffer = BaseDatasetExperienceReplay(folder, 4, sampler=sampler)
    for number in range(12):
        buffer.sample()
        if number % 2:
            sampler.sample(buffer.storage, 4)
    assert len(cold) == 12
