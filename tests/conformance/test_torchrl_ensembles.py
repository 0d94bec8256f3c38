"""Ensembles of the same members in TorchRL and here: keys, shapes, types, law, and what cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from offline_data import open_dataset
from offline_data.rows.samplers import RandomSampler, SliceSampler
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble
from offline_data.torchrl.ensembles.parts import SamplerEnsemble, StorageEnsemble, WriterEnsemble
from offline_data.torchrl.storages import TensorStorage
from offline_data.torchrl.writers import RoundRobinWriter

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    from torchrl.envs.transforms import Compose, RewardScaling


NESTED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
"""TorchRL makes one where members give different numbers of rows, and torch warns of that."""

LENGTHS = ([30, 1, 9], [20, 40], [8] * 4)


@pytest.fixture
def folders(toys: Callable[..., Path]) -> list[Path]:
    """Datasets of 40, 60 and 32 rows in layout `ted`."""
    return [
        toys(lengths, layout="ted", first_episode=10 * number)
        for number, lengths in enumerate(LENGTHS)
    ]


def mine(folders: list[Path], sampler: Any = RandomSampler) -> list[Any]:
    return [open_dataset(folder, sampler=sampler) for folder in folders]


def other(folders: list[Path], sampler: Any = theirs.RandomSampler, **options: Any) -> list[Any]:
    return [
        theirs.TensorDictReplayBuffer(
            storage=theirs.TensorStorage(TensorDict.load_memmap(folder / "ted")),
            writer=theirs.ImmutableDatasetWriter(),
            sampler=sampler(),
            **options,
        )
        for folder in folders
    ]


def leaves(batch: Any) -> dict[Any, Any]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def assert_same(ours: Any, torchrls: Any) -> None:
    """Keys, shapes, types, values and batch sizes at every level are the same."""
    assert ours.batch_size == torchrls.batch_size
    ours_leaves, others = leaves(ours), leaves(torchrls)
    assert ours_leaves.keys() == others.keys()
    for key, leaf in others.items():
        assert ours_leaves[key].dtype == leaf.dtype, key
        np.testing.assert_array_equal(ours_leaves[key].numpy(), leaf.numpy(), str(key))
        if isinstance(key, tuple):
            assert ours.get(key[:-1]).batch_size == torchrls.get(key[:-1]).batch_size, key


@pytest.mark.parametrize(
    ("options", "size", "shape"),
    [
        ({"sample_from_all": True}, 12, (3, 4)),
        ({"p": [2, 3, 5]}, 9, (3, 3)),
        ({"p": "sampleable"}, 12, (3, 4)),
        ({"num_buffer_sampled": 5}, 10, (5, 2)),
    ],
)
def test_members_are_drawn_alike(
    folders: list[Path], options: dict[str, Any], size: int, shape: tuple[int, int]
) -> None:
    ours = ReplayBufferEnsemble(*mine(folders), **options, batch_size=size)
    torchrls = theirs.ReplayBufferEnsemble(*other(folders), **options, batch_size=size)
    for seed in range(5):
        torch.manual_seed(seed)
        batch = ours.sample()
        torch.manual_seed(seed)
        want = torchrls.sample()
        assert batch.batch_size == want.batch_size == shape
        assert leaves(batch).keys() == leaves(want).keys()
        if options.get("p") != "sampleable":  # of which the numbers are float64 here
            assert torch.equal(batch["index", "buffer_ids"], want["index", "buffer_ids"])
        for member, part in enumerate(batch.unbind(0)):
            number = int(part["index", "buffer_ids"][0])
            rows = part["index", "index"]
            assert_same(
                part.exclude("index"), torchrls[number][rows].exclude("index", inplace=False)
            )
            assert member < shape[0]


def test_members_with_other_leaves_are_lazy_in_both(folders: list[Path]) -> None:
    ours = mine(folders)
    ours[0].append_transform(lambda batch: batch.exclude("info"))
    torchrls = other(folders)
    torchrls[0].append_transform(lambda batch: batch.exclude("info"))
    options: dict[str, Any] = {"sample_from_all": True}
    torch.manual_seed(0)
    batch = ReplayBufferEnsemble(*ours, **options).sample(12)
    torch.manual_seed(0)
    want = theirs.ReplayBufferEnsemble(*torchrls, **options).sample(12)
    assert type(batch) is type(want) is LazyStackedTensorDict
    assert_same(batch, want)
    assert "info" in batch[1].keys()  # noqa: SIM118 - a TensorDict holds leaves, not keys
    for part, want_part in zip(batch.unbind(0), want.unbind(0), strict=True):
        assert_same(part, want_part)


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), 3),
        ([0, 1], torch.tensor([[1, 2], [3, 4]])),
        (slice(0, 2), slice(0, 3)),
        (range(2), np.array([5, 6])),
        (slice(None), slice(None)),
    ],
)
def test_rows_by_index(folders: list[Path], index: Any) -> None:
    """Ours have `index` too, as batches have."""
    batch = ReplayBufferEnsemble(*mine(folders))[index]
    want = theirs.ReplayBufferEnsemble(*other(folders))[index]
    assert type(batch) is type(want)
    assert batch.batch_size == want.batch_size
    for part, want_part in zip(batch.unbind(0), want.unbind(0), strict=True):
        assert_same(part.exclude("index"), want_part)


def test_transforms_of_members_and_of_the_ensemble(folders: list[Path]) -> None:
    def scaling(scale: float) -> Any:
        return Compose(RewardScaling(loc=0.0, scale=scale, in_keys=[("next", "reward")]))

    ours, torchrls = mine(folders), other(folders)
    for number in range(3):
        ours[number].append_transform(scaling(number + 2.0))
        torchrls[number].append_transform(scaling(number + 2.0))
    torch.manual_seed(0)
    batch = ReplayBufferEnsemble(*ours, transform=scaling(10.0), sample_from_all=True).sample(6)
    torch.manual_seed(0)
    want = theirs.ReplayBufferEnsemble(
        *torchrls, transform=scaling(10.0), sample_from_all=True
    ).sample(6)
    assert_same(batch, want)


def test_the_collate_functions_of_the_ensemble(folders: list[Path]) -> None:
    options: dict[str, Any] = {
        "collate_fns": [
            lambda part, n=n: part.set("member", torch.full((2,), n)) for n in range(3)
        ],
        "collate_fn": lambda parts: [part.exclude("index") for part in parts],
        "sample_from_all": True,
    }
    torch.manual_seed(0)
    parts = ReplayBufferEnsemble(*mine(folders), **options).sample(6)
    torch.manual_seed(0)
    wants = theirs.ReplayBufferEnsemble(*other(folders), **options).sample(6)
    assert len(parts) == len(wants) == 3
    for part, want in zip(parts, wants, strict=True):
        assert_same(part, want)


def test_ensembles_made_of_parts() -> None:
    data = [TensorDict({"action": torch.arange(4) + 10 * n}, [4]) for n in range(2)]
    options: dict[str, Any] = {"p": [0.25, 0.75]}

    def negative(batch: Any) -> Any:
        return batch.set("action", -batch["action"])

    ours = ReplayBufferEnsemble(
        storages=StorageEnsemble(*map(TensorStorage, data), transforms=[None, negative]),
        samplers=SamplerEnsemble(RandomSampler(), RandomSampler(), **options),
        writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
    )
    torchrls = theirs.ReplayBufferEnsemble(
        storages=theirs.StorageEnsemble(
            *map(theirs.TensorStorage, data), transforms=[None, negative]
        ),
        samplers=theirs.SamplerEnsemble(theirs.RandomSampler(), theirs.RandomSampler(), **options),
        writers=theirs.WriterEnsemble(theirs.RoundRobinWriter(), theirs.RoundRobinWriter()),
    )
    assert_same(ours.sample(8)[:, :0], torchrls.sample(8)[:, :0])
    for _ in range(10):
        batch = ours.sample(8)
        sign = torch.where(batch["index", "buffer_ids"] == 1, -1, 1)
        want = sign * (10 * batch["index", "buffer_ids"] + batch["index", "index"])
        assert torch.equal(batch["action"], want)
    torch.manual_seed(0)
    rows, _ = ours.sampler.sample(ours.storage, 8)
    torch.manual_seed(0)
    want_rows, _ = torchrls.sampler.sample(torchrls.storage, 8)
    assert rows.batch_size == want_rows.batch_size
    assert rows["buffer_ids"].tolist() == want_rows["buffer_ids"].tolist()
    assert rows["index"].shape == want_rows["index"].shape
    pairs = zip(ours.storage.get(want_rows), torchrls.storage.get(want_rows), strict=True)
    for (member, part), (want_member, want) in pairs:
        assert member == want_member
        assert part["action"].tolist() == want["action"].tolist()


@NESTED
def test_slices_have_no_dimension_more(folders: list[Path]) -> None:
    """TorchRL's batches of slices are `[K, B / K, 1]`, and it fails beside another sampler."""
    sampler = {"slice_len": 4, "truncated_key": ("next", "truncated")}
    ours = mine(folders, lambda: SliceSampler(**sampler))  # type: ignore[arg-type]
    torchrls = other(folders, lambda: theirs.SliceSampler(**sampler, end_key=("next", "done")))
    batch = ReplayBufferEnsemble(*ours).sample(24)
    want = theirs.ReplayBufferEnsemble(*torchrls).sample(24)
    assert want.batch_size == (3, 8, 1)
    assert batch.batch_size == (3, 8)
    for key, leaf in leaves(want).items():
        assert leaves(batch)[key].numel() == leaf.numel(), key
        assert leaves(batch)[key].dtype == leaf.dtype, key
    mixed = theirs.ReplayBufferEnsemble(torchrls[0], *other(folders[1:]), sample_from_all=True)
    with pytest.raises(RuntimeError):
        mixed.sample(24)
    batch = ReplayBufferEnsemble(ours[0], *mine(folders[1:]), sample_from_all=True).sample(24)
    assert batch.batch_size == (3, 8)
