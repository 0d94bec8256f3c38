"""A new process that loads a state draws the batches that would have come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import offline_data
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble
from offline_data.torchrl.storages import LazyTensorStorage
from tests.same import assert_same

LENGTHS = (9, 1, 13, 12, 5)

UNSEEDED: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "without replacement": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=4),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(
        slice_len=4, strict_length=False
    ),
    "prioritized": lambda: PrioritizedSampler(40, 0.5, 0.5),
    "prioritized slices": lambda: PrioritizedSliceSampler(40, 0.5, 0.5, slice_len=4),
}

unseeded = pytest.mark.parametrize("sampler", UNSEEDED.values(), ids=UNSEEDED)


def resumes(make: Callable[[], Any], drawn: int, between: Callable[[], Any] = int) -> None:
    """Check that a copy made from a state, with other random numbers, goes on alike."""
    torch.manual_seed(0)
    buffer = make()
    for _ in range(drawn):
        buffer.sample()
    state = buffer.state_dict()
    want = []
    for _ in range(8):
        want.append(buffer.sample())
        between()
    torch.manual_seed(1)
    other = make()
    other.sample()
    torch.rand(7)
    other.load_state_dict(state)
    for batch in want:
        found = other.sample()
        assert_same(found, batch)
        between()


@unseeded
@pytest.mark.parametrize("drawn", [0, 3])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_samplers_without_a_seed(
    toys: Callable[..., Path], sampler: Any, drawn: int, prefetch: Any
) -> None:
    path = toys(LENGTHS)

    def make() -> Any:
        options = {"batch_size": 8, "sampler": sampler(), "prefetch": prefetch}
        return offline_data.open_dataset(path, **options)

    resumes(make, drawn)
    resumes(make, drawn, between=lambda: torch.rand(3))  # noise of the program itself


def test_ensembles_mixtures_and_growing_buffers(toys: Callable[..., Path]) -> None:
    path = toys(LENGTHS)

    def dataset(**options: Any) -> Any:
        return offline_data.open_dataset(path, **options)

    def growing() -> Any:
        buffer: Any = ReplayBuffer(LazyTensorStorage(20), batch_size=4)
        buffer.extend(TensorDict({"action": torch.arange(20)}, [20]))
        return buffer

    seeded = [RandomSampler(seed=number) for number in range(2)]
    for make in (
        growing,
        lambda: DatasetMixture(dataset(), dataset(), batch_size=8),
        lambda: DatasetMixture(*[dataset(sampler=one) for one in seeded], batch_size=8),
        lambda: ReplayBufferEnsemble(growing(), growing(), batch_size=8, p=[0.5, 0.5]),
    ):
        resumes(make, 3)


def test_a_seed_in_the_state_is_that_of_a_sampler_without_one(toys: Callable[..., Path]) -> None:
    path = toys(LENGTHS)
    seeded = offline_data.open_dataset(path, batch_size=8, sampler=RandomSampler(seed=3))
    plain = offline_data.open_dataset(path, batch_size=8)
    seeded.sample()
    before = torch.get_rng_state()
    plain.load_state_dict(seeded.state_dict())
    assert torch.get_rng_state().equal(before)
    assert plain.sample()["index"].equal(seeded.sample()["index"])
    other = offline_data.open_dataset(path, batch_size=8, sampler=RandomSampler(seed=4))
    unseeded = offline_data.open_dataset(path, batch_size=8)
    other.load_state_dict(unseeded.state_dict())
    assert other.sample()["index"].equal(unseeded.sample()["index"])


def test_states_of_earlier_versions_have_no_random_state(toys: Callable[..., Path]) -> None:
    ds = offline_data.open_dataset(toys(LENGTHS), batch_size=8)
    state = ds.state_dict()
    state["sampler"] = {}
    before = torch.get_rng_state()
    ds.load_state_dict(state)
    assert torch.get_rng_state().equal(before)


def test_a_new_process_draws_the_batches_that_would_have_come(
    toys: Callable[..., Path], tmp_path: Path
) -> None:
    ds = offline_data.open_dataset(toys(LENGTHS), batch_size=8, prefetch=2)
    ds.sample()
    ds.dumps(tmp_path / "state")
    want = [ds.sample()["index"].tolist() for _ in range(3)]
    program = (
        "import sys, offline_data\n"
        "ds = offline_data.open_dataset(sys.argv[1], batch_size=8, prefetch=2)\n"
        "ds.loads(sys.argv[2])\n"
        "print([ds.sample()['index'].tolist() for _ in range(3)])\n"
    )
    command = [sys.executable, "-c", program, str(ds.data_path), str(tmp_path / "state")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(want)
