from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.ensembles import (
    ReplayBufferEnsemble,
    SamplerEnsemble,
    StorageEnsemble,
    WriterEnsemble,
)
from offline_data.buffers.samplers import RandomSampler, SamplerWithoutReplacement
from offline_data.buffers.storages import LazyTensorStorage, TensorStorage
from offline_data.buffers.writers import ImmutableDatasetWriter, RoundRobinWriter
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_an_ensemble_made_of_parts(
    datasets: list[BaseDatasetExperienceReplay], steps: Callable[..., TensorDict], actions: Any
) -> None:
    samplers = SamplerEnsemble(
        SamplerWithoutReplacement(shuffle=False), RandomSampler(), sample_from_all=True
    )
    ensemble = ReplayBufferEnsemble(
        storages=StorageEnsemble(
            datasets[0].storage,
            LazyTensorStorage(9),
            transforms=[lambda batch: batch.select("action", "index"), None],
        ),
        samplers=samplers,
        writers=WriterEnsemble(ImmutableDatasetWriter(), RoundRobinWriter()),
        batch_size=4,
    )
    assert ensemble.sampler is samplers
    ensemble[1].extend(steps([3], first_episode=10).select("action"))
    batch = ensemble.sample()
    assert type(batch) is TensorDict
    assert set(batch.keys()) == {"action", "index"}
    assert batch["index", "index"][0].tolist() == [0, 1]
    want = actions(batch["index", "buffer_ids"], batch["index", "index"])
    assert batch["action"][..., 0].tolist() == want.tolist()


def test_storages_are_enough(datasets: list[BaseDatasetExperienceReplay], actions: Any) -> None:
    storages = StorageEnsemble(*(member.storage for member in datasets))
    batch = ReplayBufferEnsemble(storages=storages, p=[0, 1, 0]).sample(6)
    assert batch["index", "buffer_ids"].unique().tolist() == [1]
    want = actions(batch["index", "buffer_ids"], batch["index", "index"])
    assert batch["action"][..., 0].tolist() == want.tolist()


def test_parts_that_do_not_fit(datasets: list[BaseDatasetExperienceReplay]) -> None:
    storages = StorageEnsemble(*(member.storage for member in datasets))
    samplers = SamplerEnsemble(*(RandomSampler() for _ in datasets))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "needs at least one member"),
        ({"samplers": samplers}, "needs at least one member"),
        ({"storages": storages, "samplers": samplers[:2]}, "2 samplers for 3 storages"),
        ({"storages": storages, "samplers": RandomSampler()}, "expected a SamplerEnsemble"),
        ({"storages": storages, "writers": WriterEnsemble(RoundRobinWriter())}, "1 writers for 3"),
        ({"storages": storages, "samplers": samplers, "p": [1, 1, 1]}, "which it has"),
        ({"storages": storages, "samplers": samplers, "sample_from_all": True}, "which it has"),
        ({"storages": storages, "samplers": samplers, "num_buffer_sampled": 2}, "which it has"),
        ({"storages": storages, "collate_fns": [len]}, "one function for each of 3"),
        ({"storages": storages, "collate_fns": [len, len, 3]}, "one function for each of 3"),
    ]
    for arguments, match in wrong:
        with pytest.raises(UsageError, match=match):
            ReplayBufferEnsemble(**arguments)
    with pytest.raises(UsageError, match="beside them"):
        ReplayBufferEnsemble(*datasets, storages=storages)


def test_members_that_cannot_be(datasets: list[BaseDatasetExperienceReplay]) -> None:
    with pytest.raises(UsageError, match="Member 1 is a TensorStorage"):
        ReplayBufferEnsemble(datasets[0], TensorStorage(torch.zeros(2)))  # type: ignore[arg-type]
    inner = ReplayBufferEnsemble(*datasets[:2])
    with pytest.raises(UsageError, match="Member 0 is an ensemble itself"):
        ReplayBufferEnsemble(inner, datasets[2])


@pytest.mark.parametrize(
    ("argument", "match"),
    [
        ({"routing_key": "member"}, "cannot do routing_key"),
        ({"routing_dim": 0}, "cannot do routing_dim"),
        ({"shared": True}, "cannot do shared"),
        ({"derived": []}, "has no argument 'derived'"),
        ({"sampler": RandomSampler()}, "has no argument 'sampler'"),
        ({"nonsense": 1}, "has no argument 'nonsense'"),
        ({"prefetch": 2}, "prefetch needs a batch_size"),
        ({"transform": len, "transform_factory": len}, "cannot both be given"),
        ({"p": [1, 1, 1], "sample_from_all": True}, "p cannot be combined"),
    ],
)
def test_arguments_that_are_not_honoured(
    datasets: list[BaseDatasetExperienceReplay], argument: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        ReplayBufferEnsemble(*datasets, **argument)


def test_arguments_of_torchrl_with_their_defaults_pass(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    ReplayBufferEnsemble(*datasets, shared=False, routing_key=None, routing_dim=None).sample(3)


def test_one_member_is_an_ensemble_too() -> None:
    member = ReplayBuffer(TensorStorage(TensorDict({"action": torch.arange(4)}, [4])))
    assert ReplayBufferEnsemble(member).sample(4).batch_size == (1, 4)
