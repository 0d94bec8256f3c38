"""Rows that are trajectories `[B, T]`, each with one priority."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data import open_dataset
from offline_data.buffers.buffer import TensorDictReplayBuffer
from offline_data.buffers.samplers import PrioritizedSampler, RandomSampler, SliceSampler
from offline_data.buffers.storages import LazyTensorStorage, ListStorage
from offline_data.testing.toy import toy_batch, write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    from torchrl._utils import logger

logger.setLevel("ERROR")
LENGTHS = [3, 1, 4, 2, 1]


def trajectories(count: int, steps: int = 4) -> TensorDict:
    code = torch.arange(count * steps).reshape(count, steps)
    return TensorDict({"code": code, "next": {"reward": code[..., None] / 2}}, [count, steps])


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_batches_have_labels_for_every_step(storage: Any) -> None:
    """As TorchRL gives `index`: the row at each of its steps."""
    sampler = PrioritizedSampler(6, 1.0, 1.0, eps=0.0)
    buffer = TensorDictReplayBuffer(storage=storage(6), sampler=sampler, batch_size=8)
    other = theirs.TensorDictReplayBuffer(storage=theirs.LazyTensorStorage(6), batch_size=8)
    for one in (buffer, other):
        one.extend(trajectories(5))
    buffer.update_priority(torch.arange(5), torch.arange(5) + 1.0)
    for one in (buffer, other):
        batch = one.sample()
        assert batch.batch_size == batch["index"].shape == (8, 4)
        assert (batch["code"] // 4 == batch["index"]).all()
        if one is buffer:
            torch.testing.assert_close(batch["priority_weight"], 1 / (batch["index"] + 1.0))


@pytest.mark.parametrize("reduction", ["max", "min", "mean", "median", "sum"])
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_the_errors_of_its_steps_make_a_trajectorys_priority(
    reduction: str, shape: tuple[int, ...]
) -> None:
    sampler = PrioritizedSampler(6, 1.0, 1.0, reduction=reduction)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), sampler=sampler, batch_size=2)
    buffer.extend(trajectories(5))
    batch = buffer[torch.tensor([3, 1])]
    batch["td_error"] = torch.rand(2, 4, *shape, generator=torch.Generator().manual_seed(0))
    for count in (4, 2):  # all steps, and those that a mask tells
        batch["mask"] = torch.arange(4).expand(2, 4) < count
        buffer.update_tensordict_priority(batch)
        steps = batch["td_error"][:, :count].flatten(1).numpy()
        lower = np.sort(steps)[:, (steps.shape[1] - 1) // 2]
        want = lower if reduction == "median" else getattr(np, reduction)(steps, 1)
        found = sampler.state_dict()["priorities"][[3, 1]]
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-6)


def test_trajectories_come_as_often_as_their_priorities_say() -> None:
    sampler = PrioritizedSampler(4, 1.0, 0.5, eps=0.0, seed=0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=4000)
    written = trajectories(4)
    written["td_error"] = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0], [4.0, 4.0]])[
        :, [0, 1, 1, 0]
    ]
    buffer.extend(written)
    counts = buffer.sample()["index"][:, 0].bincount(minlength=4).double().numpy()
    expected = np.array([0.1, 0.2, 0.3, 0.4]) * 4000
    assert ((counts - expected) ** 2 / expected).sum() < 20


def test_episodes_of_a_dataset_have_priorities(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch(LENGTHS)])
    sampler = PrioritizedSampler(5, 1.0, 1.0, eps=0.0, seed=0)
    ds = open_dataset(tmp_path / "toy", 4, split_trajs=True, sampler=sampler)
    flat = open_dataset(tmp_path / "toy")[:]
    for _ in range(20):
        batch = ds.sample()
        assert torch.equal(batch["index"], batch["index"][:, :1].expand(4, 4))
        there = batch["mask"]
        assert torch.equal(batch["traj_ids"][there], batch["index"][there])
        assert torch.equal(batch["action"][there], flat["action"][batch["dataset_index"][there]])
        # Errors of padding are far off, and those of steps say which episode it is.
        batch["td_error"] = torch.where(there, batch["index"] + 1.0, 1000.0)[..., None]
        ds.update_tensordict_priority(batch)
    stored = sampler.state_dict()["priorities"].tolist()
    assert set(stored) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert stored == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(ds[batch["index"][:, 0]]["action"], batch["action"])


def test_slices_of_whole_trajectories_end_where_these_do() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6), sampler=SliceSampler(slice_len=1), batch_size=3
    )
    written = trajectories(5)
    written["next", "truncated"] = torch.zeros(5, 4, 1, dtype=torch.bool)
    buffer.extend(written)
    batch = buffer.sample()
    assert not batch["next", "truncated"].any()
    random = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6), sampler=RandomSampler(), batch_size=3
    )
    random.extend(written)
    assert set(random.sample().keys(True, True)) == set(batch.keys(True, True))
