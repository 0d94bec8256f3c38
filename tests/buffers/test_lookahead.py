"""Batches made ahead, and rows of a disk that are expected: the same batches, in the same order."""

from __future__ import annotations

import copy
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_data.buffers.buffer import LOOKAHEAD_MISSES
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.prefetch import Draw, Prefetcher
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
        buffer = Dataset(folder, 16, sampler=make())
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
    whole = Dataset(folder, 8)
    view = whole.filter(lambda episodes: episodes["length"] > 25)
    batches = [view.sample()["dataset_index"].tolist() for _ in range(5)]
    assert cold[:4] == batches[1:]
    assert max(map(max, batches)) >= LENGTHS[0] + LENGTHS[1]


def test_gives_up_where_others_draw_in_between(folder: Path, cold: list[list[int]]) -> None:
    buffer = Dataset(folder, 8)
    for _ in range(10):
        buffer.sample()
        torch.rand(1)
    assert len(cold) == LOOKAHEAD_MISSES
    buffer = Dataset(folder, 8, prefetch=2)
    for _ in range(4):
        buffer.sample()
    assert len(cold) == LOOKAHEAD_MISSES


def test_a_miss_now_and_then_is_none(folder: Path, cold: list[list[int]]) -> None:
    sampler = RandomSampler(seed=1)
    buffer = Dataset(folder, 4, sampler=sampler)
    for number in range(12):
        buffer.sample()
        if number % 2:
            sampler.sample(buffer.storage, 4)
    assert len(cold) == 12


class Counting:
    """Draws 0, 1, 2, …; every third is the last of an epoch."""

    def __init__(self) -> None:
        self.drawn = 0
        self.made: list[int] = []
        self.threads: set[str] = set()

    def draw(self) -> Draw:
        self.drawn += 1
        return Draw(torch.tensor([self.drawn - 1]), {}, self.drawn % 3 == 0)

    def make(self, draw: Draw) -> Any:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.02 if int(draw.rows) % 2 else 0.0)  # later ones are ready earlier
        self.made.append(int(draw.rows))
        return int(draw.rows)

    def take(self, ahead: Prefetcher) -> tuple[Draw, Any]:
        draw, future = ahead.take(self.draw, self.make)
        assert future is not None
        return draw, future.result()


def test_batches_come_in_the_order_drawn_from_threads() -> None:
    source, ahead = Counting(), Prefetcher(3)
    taken = [source.take(ahead) for _ in range(9)]
    assert [batch for _, batch in taken] == list(range(9))
    assert [draw.last for draw, _ in taken] == [False, False, True] * 3
    assert threading.current_thread().name not in source.threads
    assert source.drawn == 9 + 3


def test_an_error_comes_with_its_batch() -> None:
    source = Counting()

    def make(draw: Draw) -> int:
        return 10 // (int(draw.rows) - 1)

    ahead = Prefetcher(2)
    futures = [ahead.take(source.draw, make)[1] for _ in range(3)]
    first, second, third = (future for future in futures if future is not None)
    assert first.result() == -10
    with pytest.raises(ZeroDivisionError):
        second.result()
    assert third.result() == 10


def test_settling_waits_also_for_what_was_handed_out() -> None:
    gate, made = threading.Event(), threading.Event()

    def make(draw: Draw) -> None:
        gate.wait(120)
        made.set()

    source, ahead = Counting(), Prefetcher(1)
    ahead.take(source.draw, make)
    ahead._queue.clear()
    waiting = threading.Thread(target=ahead.settle)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    waiting.join(120)
    assert made.is_set()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_goes_on() -> None:
    source, ahead = Counting(), Prefetcher(2)
    source.take(ahead)
    with multiprocessing.get_context("fork").Pool(1, _keep, (source, ahead)) as pool:
        assert pool.apply_async(_take_in_child).get(120) == [1, 2, 3]
    assert source.take(ahead)[1] == 1


_kept: list[Any] = []


def _keep(source: Counting, ahead: Prefetcher) -> None:
    _kept.extend((source, ahead))


def _take_in_child() -> list[int]:
    source, ahead = _kept
    return [source.take(ahead)[1] for _ in range(3)]
