"""`index` and `priority_weight` after transforms, here and in TorchRL: the rows that were drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data import DatasetMixture, ReplayBufferEnsemble, open_dataset
from offline_data.rows.samplers import PrioritizedSampler, PrioritizedSliceSampler
from offline_data.torchrl.storages import LazyTensorStorage, ListStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    from torchrl._utils import logger
    from torchrl.envs.transforms import ExcludeTransform, SelectTransform

logger.setLevel("ERROR")
ROWS = 20
SAMPLERS: list[Callable[[], Any]] = [
    lambda: PrioritizedSampler(22, 1.0, 1.0, seed=0),
    lambda: PrioritizedSliceSampler(22, 1.0, 1.0, slice_len=2, seed=0),
]


def spoil(batch: TensorDict) -> TensorDict:
    """Overwrite every leaf in place."""
    for leaf in batch.values(include_nested=True, leaves_only=True):
        leaf.zero_()
    return batch


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "times two": lambda: lambda batch: batch * 2,
    "in place": lambda: spoil,
    "float": lambda: lambda batch: batch.float(),
    "select": lambda: SelectTransform("action"),
    "exclude": lambda: ExcludeTransform("index", "priority_weight"),
    "locked": lambda: lambda batch: (batch * 2).lock_(),
    "a leaf more": lambda: lambda batch: batch.set("more", batch["index"] + 1),
}


def growing(transform: Any, sampler: Any, **options: Any) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS),
        sampler=sampler,
        batch_size=8,
        transform=transform,
        priority_key="error",
        **options,
    )
    done = (torch.arange(ROWS) % 5 == 4)[:, None]
    data = {"action": torch.arange(ROWS) + 100, "next": {"done": done}}
    buffer.extend(TensorDict(data, batch_size=[ROWS]))
    return buffer


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(("sampler", "prefetch"), [(SAMPLERS[0], 2), (SAMPLERS[1], None)])
def test_transforms_leave_the_labels_of_a_batch_alone(
    name: str, sampler: Callable[[], Any], prefetch: int | None
) -> None:
    plain = growing(None, sampler())
    buffer = growing(TRANSFORMS[name](), sampler(), prefetch=prefetch)
    for _ in range(6):
        want = plain.sample()
        found, info = buffer.sample(return_info=True)
        assert info["index"].tolist() == want["index"].tolist()
        for label in ("index", "priority_weight"):
            assert found[label].dtype == want[label].dtype
            assert found[label].tolist() == want[label].tolist()


@pytest.mark.parametrize("name", ["times two", "select", "exclude", "in place"])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_priorities_go_to_the_rows_that_were_drawn(name: str, prefetch: int | None) -> None:
    """Each row gets its own number as its priority."""
    sampler = PrioritizedSampler(ROWS, 0.0, 0.0, seed=0)
    buffer = growing(TRANSFORMS[name](), sampler, prefetch=prefetch)
    for _ in range(40):
        batch = buffer.sample()
        batch["error"] = batch["index"].float() + 1
        buffer.update_tensordict_priority(batch)
    stored = sampler.state_dict()["priorities"].tolist()
    assert stored[:ROWS] == [row + 1 for row in range(ROWS)]


def test_what_a_transform_moves_it_takes_along() -> None:
    def shuffled(batch: TensorDict) -> TensorDict:
        return batch[torch.randperm(len(batch))]

    for transform in (shuffled, lambda batch: batch[2:5], lambda batch: batch.reshape(4, 2)):
        buffer = growing(transform, SAMPLERS[0]())
        buffer.update_priority(torch.arange(ROWS), torch.arange(ROWS) + 1.0)
        for _ in range(5):
            batch = buffer.sample()
            assert (batch["action"] == batch["index"] + 100).all()
            expected = 1 / (batch["index"] + 1.0)
            torch.testing.assert_close(batch["priority_weight"], expected)


def test_batches_that_a_collate_function_makes_have_them() -> None:
    sampler = PrioritizedSampler(ROWS, 1.0, 1.0)
    buffer = TensorDictReplayBuffer(
        storage=ListStorage(ROWS),
        sampler=sampler,
        batch_size=6,
        collate_fn=lambda rows: TensorDict({"a": torch.stack([r["a"] for r in rows])}, [len(rows)]),
        priority_key="error",
    )
    buffer.extend([TensorDict({"a": torch.tensor(row)}, []) for row in range(ROWS)])
    batch = buffer.sample()
    assert batch["index"].tolist() == batch["a"].tolist()
    assert batch["priority_weight"].tolist() == [1.0] * 6
    batch["error"] = torch.full((6,), 9.0)
    buffer.update_tensordict_priority(batch)
    priorities = sampler.state_dict()["priorities"]
    assert (priorities[batch["a"]] == 9.0).all()


def test_ensembles_and_mixtures(toys: Callable[..., Path]) -> None:
    members = [open_dataset(toys([6, 2, 9, 5]), 8, keys=["action"]) for _ in range(2)]
    double = TRANSFORMS["times two"]()
    ensemble = ReplayBufferEnsemble(*members, batch_size=8, transform=double)
    whole = members[0][:]["action"]
    batch = ensemble.sample()
    assert torch.equal(batch["action"], whole[batch["index", "index"]] * 2)
    assert set(batch["index", "buffer_ids"].reshape(-1).tolist()) <= {0, 1}
    mixture = DatasetMixture(*members, batch_size=16, weights=[1, 1], exact=True, transform=double)
    batch = mixture.sample()
    assert torch.equal(batch["action"], whole[batch["index"]] * 2)
    assert batch["source"].bincount().tolist() == [8, 8]
