"""Saved buffers: a copy, or a new process, that loads a state draws the batches that would have come."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict

import offline_data
from offline_data.base.errors import IntegrityError
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.rows import fields
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage
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
    def make() -> Any:
        options = {"batch_size": 8, "sampler": sampler(), "prefetch": prefetch}
        return offline_data.open_dataset(toys(LENGTHS), **options)

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


@pytest.mark.slow
def test_a_new_process_draws_the_batches_that_would_have_come(
    toys: Callable[..., Path], tmp_path: Path
) -> None:
    ds = offline_data.open_dataset(toys(LENGTHS), batch_size=8, prefetch=2)
    ds.sample()
    ds.dumps(tmp_path / "state")
    assert (tmp_path / "state" / "state.bin").stat().st_size < 10_000  # without the dataset's rows
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


def actions(batch: Any) -> list[float]:
    found: list[float] = batch["action"][..., 0].tolist()
    return found


def batches(buffer: Any, count: int = 6) -> list[Any]:
    return [
        (one["index"].tolist(), actions(one)) for one in (buffer.sample() for _ in range(count))
    ]


@pytest.mark.parametrize("prefetch", [None, 3])
def test_the_batches_after_loading_are_those_that_would_have_come(
    steps: Any, tmp_path: Path, new_sampler: Any, prefetch: int | None, growing: Any
) -> None:
    def new(ahead: int | None) -> Any:
        return growing(16, sampler=new_sampler(), batch_size=4, prefetch=ahead)

    buffer = new(prefetch)
    buffer.extend(steps([5, 4, 4, 6]))
    batches(buffer, 5)
    buffer.extend(steps([2], first_episode=7))
    state = tmp_path / "state"
    buffer.dumps(state)
    copy, other, plain = new(prefetch), new(2), new(None)
    for one in (copy, other, plain):
        one.loads(state)
    picked = pickle.loads(pickle.dumps(buffer))  # noqa: S301
    want = batches(buffer)
    assert batches(copy) == batches(other) == batches(plain) == batches(picked) == want
    buffer.extend(steps([3], first_episode=9))
    for one in (copy, other, plain):
        assert (len(one), one.write_count) == (16, 21)
        one.extend(steps([3], first_episode=9))
        assert actions(one[:]) == actions(buffer[:])
        assert one.storage.runs().starts.tolist() == buffer.storage.runs().starts.tolist()


def test_a_state_that_is_no_object_is_damaged(tmp_path: Path, growing: Any) -> None:
    growing().dumps(tmp_path / "state")
    (tmp_path / "state" / "state.json").write_text("[]")
    with pytest.raises(IntegrityError):
        growing().loads(tmp_path / "state")


class Counting(Sampler):
    """Draws rows 0, 1, 2, … and declares where it is."""

    STATE: ClassVar = {**Sampler.STATE, "place": fields.COUNT}
    place = 0

    def sample(self, storage: Any, batch_size: int) -> Any:
        self.place += batch_size
        return (torch.arange(batch_size) + self.place - batch_size) % len(storage), {}


def test_a_sampler_that_declares_its_state(steps: Any, growing: Any, tmp_path: Path) -> None:
    buffer, copy = (growing(sampler=Counting(), batch_size=2) for _ in range(2))
    buffer.extend(steps([7]))
    batches(buffer, 2)
    buffer.dumps(tmp_path / "state")
    copy.loads(tmp_path / "state")
    assert copy.sampler.place == 4
    assert batches(copy) == batches(buffer)
    state = buffer.state_dict()
    state["sampler"]["place"] = -1
    with pytest.raises(IntegrityError, match="state of Counting is damaged: place is -1"):
        copy.load_state_dict(state)


def test_the_state_says_whether_an_epoch_is_over(steps: Any, growing: Any) -> None:
    buffer, copy = (
        growing(sampler=SamplerWithoutReplacement(seed=0), batch_size=2) for _ in range(2)
    )
    buffer.extend(steps([2]))
    next(buffer)
    copy.load_state_dict(buffer.state_dict())
    for one in (buffer, copy):
        with pytest.raises(StopIteration):
            next(one)


def test_transforms_keep_their_state(steps: Any) -> None:
    def new(bias: float) -> Any:
        layer = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(layer.bias, bias)
        return ReplayBuffer(storage=LazyTensorStorage(4), transform=layer)

    first, second = new(3.0), new(4.0)
    second.load_state_dict(first.state_dict())
    assert second._chain.links[0].transform.bias.item() == 3.0


def test_a_pickle_of_a_memmap_has_its_path() -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(4))
    buffer.extend(TensorDict({"a": torch.arange(200_000).reshape(2, -1)}, [2]))
    data = pickle.dumps(buffer)
    assert len(data) < 50_000
    assert pickle.loads(data)[1]["a"][-1] == 199_999  # noqa: S301
