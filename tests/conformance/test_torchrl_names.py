"""What TorchRL asks of samplers, writers and trajectories, given this package's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from tensordict import TensorDict

theirs = pytest.importorskip("torchrl.data")

import offline_data
from offline_data import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SliceSampler,
    TensorDictReplayBuffer,
    filter_trajectories,
    traj,
)
from offline_data.base.errors import UsageError


def test_samplers_and_writers_are_torchrls() -> None:
    from torchrl.data.replay_buffers.scheduler import LinearScheduler
    from torchrl.data.replay_buffers.writers import Writer

    sampler = PrioritizedSampler(10, alpha=0.5, beta=0.4)
    scheduler = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2)
    scheduler.step()
    assert sampler.beta == pytest.approx(0.7)
    assert isinstance(SliceSampler(slice_len=2), theirs.replay_buffers.samplers.Sampler)
    assert isinstance(RoundRobinWriter(), Writer)


@pytest.mark.slow  # here, torchrl is imported first
@pytest.mark.parametrize("first", ["torchrl.data", "offline_data"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    names = {
        "offline_data": "from offline_data import ReplayBuffer",
        "torchrl.data": "import torchrl.data",
    }
    lines = [names.pop(first), *names.values()]
    program = "\n".join(
        [
            *lines,
            "from offline_data import RandomSampler",
            "from torchrl.data.replay_buffers.samplers import Sampler",
            "assert isinstance(RandomSampler(), Sampler)",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, check=False
    )
    assert not done.returncode, done.stderr.decode()


def test_torchrls_buffer_says_that_it_needs_its_own_parts() -> None:
    for parts in ({"sampler": RandomSampler()}, {"writer": RoundRobinWriter()}):
        with pytest.raises(UsageError, match="of this package") as caught:
            theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(3), **parts)
        assert "to_torchrl" in str(caught.value.hint)


def rows(lengths: list[int], first: int = 0) -> TensorDict:
    numbers = torch.repeat_interleave(
        torch.arange(first, first + len(lengths)), torch.tensor(lengths)
    )
    count = len(numbers)
    return TensorDict(
        {
            "observation": torch.arange(count).float(),
            ("next", "reward"): torch.ones(count, 1) * (numbers[:, None] + 1),
            ("collector", "traj_ids"): numbers,
        },
        [count],
    )


def lengths(found: list[Any]) -> list[int]:
    return [one.length for one in found]


def test_query_takes_torchrls_expressions() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(15), batch_size=4)
    assert buffer.query() == []
    buffer.extend(rows([5, 3, 7]))
    assert lengths(buffer.query()) == [5, 3, 7]
    assert lengths(buffer.query((traj.reward.sum() > 20) | (traj.length == 3))) == [3, 7]
    assert lengths(buffer.query(lambda one: one.observation[0] == 5)) == [3]
    assert lengths(filter_trajectories(buffer[:], traj.length > 3)) == [5, 7]
    with pytest.raises(TypeError, match="any"):
        buffer.query(traj.reward > 3)
    buffer.append_transform(lambda batch: batch.set("observation", batch["observation"] * 2))
    (last,) = buffer.query(traj.observation.max() == 28)
    assert last.observation.tolist() == [16.0, 18, 20, 22, 24, 26, 28]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_query_is_in_order_of_time_and_over_the_end_of_a_ring(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage(10))
    for number, count in enumerate([5, 3, 4]):
        buffer.extend(rows([count], first=number))
    found = buffer.query()
    assert lengths(found) == [3, 3, 4]
    assert found[2].observation.tolist() == [0.0, 1.0, 2.0, 3.0]
    buffer = ReplayBuffer(storage=storage(8))
    for number, count in enumerate([5, 3, 5]):  # the last begins at row 0
        buffer.extend(rows([count], first=number))
    assert [int(one.reward[0]) for one in buffer.query()] == [2, 3]


def test_query_of_parallel_environments_and_by_another_leaf() -> None:
    ids = torch.tensor([[0, 0, 0, 1, 1, 1], [2, 2, 2, 2, 3, 3]])
    data = TensorDict({"collector": {"traj_ids": ids}, "half": ids // 2, "value": ids}, [2, 6])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    buffer.extend(data)
    assert buffer[:].batch_size == (2, 6)
    assert lengths(buffer.query()) == [3, 3, 4, 2]
    assert lengths(buffer.query(trajectory_key="half")) == [6, 6]
    with pytest.raises(UsageError, match="which the rows do not have"):
        buffer.query(trajectory_key="other")
    words = ReplayBuffer(ListStorage(3))
    words.extend([1, 2])
    with pytest.raises(TypeError, match="tensordict-backed"):
        words.query()


def test_query_of_a_dataset(tmp_path: Any) -> None:
    from offline_data.testing.toy import toy_batch, write_toy

    write_toy(tmp_path / "toy", [toy_batch([5, 3, 4])])
    ds = offline_data.open_dataset(tmp_path / "toy")
    assert lengths(ds.query()) == [5, 3, 4]
    assert lengths(ds.query(traj.length > 3)) == [5, 4]


def test_can_sample_set_rng_and_mark_update() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), sampler=SliceSampler(slice_len=4), batch_size=8)
    assert not buffer.can_sample()
    buffer.extend(rows([3]))
    assert not buffer.can_sample()
    buffer.extend(rows([4], first=5))
    assert buffer.can_sample()
    assert buffer.can_sample(4)
    with pytest.raises(RuntimeError, match="batch_size not specified"):
        ReplayBuffer().can_sample()
    seen = []
    for _ in range(2):
        buffer.set_rng(torch.Generator().manual_seed(3))
        seen.append(buffer.sample()["observation"])
    assert seen[0].equal(seen[1])
    sampler = PrioritizedSampler(10, alpha=1.0, beta=1.0)
    sampler.update_priority(torch.tensor([0, 1]), torch.tensor([100.0, 1.0]))
    sampler.mark_update(torch.tensor([1]))
    assert sampler.state_dict()["priorities"][:2].tolist() == [100.0, 100.0]
