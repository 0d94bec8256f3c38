from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.ensembles import ReplayBufferEnsemble, SamplerEnsemble
from offline_data.buffers.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
)
from offline_data.buffers.storages import LazyTensorStorage
from offline_data.buffers.writers import RoundRobinWriter
from offline_data.errors import ImmutableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def growing(rows: TensorDict | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(50))
    if rows is not None:
        buffer.extend(rows)
    return buffer


def test_an_ensemble_is_not_written_to(
    datasets: list[BaseDatasetExperienceReplay], steps: Callable[..., TensorDict]
) -> None:
    ensemble = ReplayBufferEnsemble(growing(steps([2])), growing(steps([2])))
    rows = steps([2])
    attempts: list[Callable[[], Any]] = [
        lambda: ensemble.add(rows[0]),
        lambda: ensemble.extend(rows),
        lambda: ensemble.extend(rows, update_priority=True),
        lambda: ensemble.__setitem__(0, rows[0]),
    ]
    for attempt in attempts:
        with pytest.raises(ImmutableError, match="which member is meant"):
            attempt()
    for name in ("set_storage", "set_writer"):
        with pytest.raises(UsageError, match=f"{name} is for one member") as caught:
            getattr(ensemble, name)(RoundRobinWriter())
        assert f"ensemble[0].{name}" in str(caught.value.hint)
    assert ensemble.write_count == 4
    ensemble[1].extend(rows)
    assert ensemble.write_count == ensemble.writer.write_count == 6


def test_all_members_are_emptied_or_none(
    datasets: list[BaseDatasetExperienceReplay], steps: Callable[..., TensorDict]
) -> None:
    first, second = growing(steps([2])), growing(steps([3]))
    with pytest.raises(ImmutableError, match="immutable"):
        ReplayBufferEnsemble(first, datasets[0]).empty()
    assert len(first) == 2
    ensemble = ReplayBufferEnsemble(first, second)
    ensemble.empty()
    assert (len(first), len(second), ensemble.write_count) == (0, 0, 0)


def test_samplers_are_replaced_in_members_too(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, p=[1, 1, 1])
    before = ensemble.sampler
    old = list(before.samplers)
    samplers = [SamplerWithoutReplacement(shuffle=False) for _ in datasets]
    returned = ensemble.set_sampler(SamplerEnsemble(*samplers, sample_from_all=True))
    assert returned is before
    assert returned.samplers == old
    assert [member.sampler for member in datasets] == samplers
    assert ensemble.sample(6)["index", "index"].tolist() == [[0, 1]] * 3
    for wrong in (RandomSampler(), SamplerEnsemble(RandomSampler())):
        with pytest.raises(UsageError, match="not a SamplerEnsemble of 3"):
            ensemble.set_sampler(wrong)


def test_priorities_find_their_members(folders: list[Path]) -> None:
    members = [
        BaseDatasetExperienceReplay(folder, sampler=PrioritizedSampler(99, alpha=1.0, beta=1.0))
        for folder in folders[:2]
    ]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True)
    batch, info = ensemble.sample(400, return_info=True)
    assert torch.equal(batch["priority_weight"], info["priority_weight"])
    favourite = torch.tensor([3, 11])
    mine = batch["index", "index"] == favourite[:, None]
    ensemble.update_priority(batch["index"], torch.where(mine, 1.0, 0.0))
    assert ensemble.sample(40)["index", "index"].unique(dim=1).tolist() == [[3], [11]]
    ensemble.update_priority(batch["index"], 1.0)
    assert len(ensemble.sample(400)["index", "index"].unique()) > 15
    with pytest.raises(UsageError, match="2 priorities for 400 rows"):
        ensemble.update_priority(batch["index"], torch.ones(2))
    for wrong in (torch.tensor([0]), 3, batch["index", "index"]):
        with pytest.raises(UsageError, match="a member and a row of it"):
            ensemble.update_priority(wrong, 1.0)


def make(folders: list[Path], steps: Callable[..., TensorDict], prefetch: int | None) -> Any:
    dataset = BaseDatasetExperienceReplay(folders[0], sampler=SamplerWithoutReplacement(seed=1))
    buffer = ReplayBuffer(LazyTensorStorage(50), sampler=RandomSampler(seed=2))
    generator = torch.Generator().manual_seed(3)
    ensemble = ReplayBufferEnsemble(dataset, buffer, batch_size=4, prefetch=prefetch)
    ensemble.sampler._generator = generator
    return ensemble


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("on_disk", [False, True])
def test_state_goes_on_where_it_was(
    folders: list[Path],
    steps: Callable[..., TensorDict],
    tmp_path: Path,
    prefetch: int | None,
    on_disk: bool,
) -> None:
    first, second = make(folders, steps, prefetch), make(folders, steps, prefetch)
    first[1].extend(steps([4, 2], first_episode=40))
    for _ in range(3):
        first.sample()
    if on_disk:
        first.dumps(tmp_path / "state")
        second.loads(tmp_path / "state")
    else:
        second.load_state_dict(first.state_dict())
    assert len(second[1]) == 6
    assert second.write_count == 6
    for _ in range(6):
        one, other = first.sample(), second.sample()
        assert one["index", "buffer_ids"].tolist() == other["index", "buffer_ids"].tolist()
        assert one["action"].tolist() == other["action"].tolist()


def test_state_has_each_part_once(folders: list[Path], steps: Callable[..., TensorDict]) -> None:
    ensemble = make(folders, steps, None)
    state = ensemble.state_dict()
    assert set(state["sampler"]) == {"generator"}
    assert state["writer"] == {}
    assert len(state["members"]) == 2


def test_the_state_of_other_members_is_refused(
    folders: list[Path], datasets: list[BaseDatasetExperienceReplay]
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets)
    state = ensemble.state_dict()
    others = [
        ReplayBufferEnsemble(*datasets[:2]),
        ReplayBufferEnsemble(datasets[1], datasets[0], datasets[2]),
        ReplayBufferEnsemble(
            *datasets[:2],
            BaseDatasetExperienceReplay(folders[2], sampler=SamplerWithoutReplacement()),
        ),
    ]
    for other in others:
        with pytest.raises(UsageError, match="The state is of"):
            other.load_state_dict(state)
