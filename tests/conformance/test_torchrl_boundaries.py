"""Slices by the leaves that `traj_key`, `end_key` and `end_keys` name, here and in TorchRL."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data import open_dataset
from offline_data.base.errors import UsageError
from offline_data.rows import samplers as ours
from offline_data.torchrl import storages as our_storages
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs

KEYS: list[dict[str, Any]] = [
    {"traj_key": ("collector", "traj_ids")},
    {"traj_key": ("deep", "down", "my_id")},
    {"end_key": "my_end"},
    {"end_keys": [("next", "lost"), ("next", "absent"), ("next", "won")]},
]


def stream(
    count: int, shape: tuple[int, ...], *, seed: int, first: int = 0, ended: bool = True
) -> TensorDict:
    """Make transitions of trajectories of 1 to 9 steps, told by leaves of every name in `KEYS`.

    The leaves that a storage looks at by itself say something else: no end. `serial` counts the
    rows, `true` the trajectories; ids come again after three others. The last trajectory goes on
    unless it has `ended`.
    """
    chance = random.Random(seed)  # noqa: S311 - test data
    true: list[int] = []
    while len(true) < count:
        true += [first + len(set(true))] * chance.randint(1, 9)
    of = torch.tensor(true[:count])
    last = torch.ones(count, dtype=torch.bool)
    last[:-1] = of[1:] != of[:-1]
    last[-1] = ended
    ids = (of % 3).reshape(count, *shape)
    lost = last & (of % 2 == 0)
    no = torch.zeros(count, 1, dtype=torch.bool)
    flags = {name: flag.reshape(count, *shape) for name, flag in
             {"lost": lost, "won": last & ~lost}.items()}  # fmt: skip
    data = {
        "serial": torch.arange(count) + 1000 * first,
        "true": of,
        "my_end": last.reshape(count, *shape),
        "deep": {"down": {"my_id": ids.float()}},
        "collector": {"traj_ids": ids},
        "next": {**flags, "done": no, "truncated": no.clone()},
    }
    return TensorDict(data, batch_size=[count])


def mine(
    size: int,
    sampler: str = "SliceSampler",
    storage: str = "Tensor",
    batch_size: int = 60,
    **options: Any,
) -> Any:
    kind = "ListStorage" if storage == "List" else f"Lazy{storage}Storage"
    positional = (size, 0.7, 0.5) if sampler.startswith("Prioritized") else ()
    return TensorDictReplayBuffer(
        storage=getattr(our_storages, kind)(size),
        sampler=getattr(ours, sampler)(*positional, **options),
        batch_size=batch_size,
    )


def both(size: int, batch_size: int = 60, **options: Any) -> tuple[Any, Any]:
    other = theirs.TensorDictReplayBuffer(
        storage=theirs.LazyTensorStorage(size),
        sampler=theirs.SliceSampler(**options),
        batch_size=batch_size,
    )
    return mine(size, batch_size=batch_size, **options), other


@pytest.mark.parametrize(
    ("sampler", "storage"),
    [
        ("SliceSampler", "Tensor"),
        ("SliceSamplerWithoutReplacement", "Memmap"),
        ("PrioritizedSliceSampler", "List"),
    ],
)
@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_slices_end_where_the_named_leaves_say(
    sampler: str, storage: str, keys: dict[str, Any]
) -> None:
    """Each slice has rows of one trajectory, written one after the other, in a ring come round."""
    buffer = mine(60, sampler, storage, slice_len=4, **keys)
    for count, first in ((45, 0), (38, 50), (9, 90)):
        buffer.extend(stream(count, (1,), seed=first, first=first, ended=first < 90))
    for _ in range(10):
        batch = buffer.sample()
        for name, step in (("true", 0), ("serial", 1)):
            assert (batch[name].reshape(-1, 4).diff(dim=1) == step).all(), name


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")
def test_slices_begin_wherever_trajectories_allow(keys: dict[str, Any], strict: bool) -> None:
    """Every start that a loop over the rows finds, and no other, in a ring that has room."""
    data = stream(50, () if "traj_key" in keys else (1,), seed=3)  # TorchRL takes ids `[B]` only
    true = data["true"].tolist()
    allowed = set()
    for row in range(50):
        length = true.count(true[row])
        before = row - true.index(true[row])
        if (length >= 4 and before + 4 <= length) or (not strict and length < 4 and not before):
            allowed.add(row)
    for buffer in both(60, 400, slice_len=4, strict_length=strict, **keys):
        buffer.extend(data.clone())
        found = set()
        for _ in range(9):
            batch = buffer.sample()
            serial, of = batch["serial"].tolist(), batch["true"].tolist()
            position = 0
            while position < len(serial):
                found.add(serial[position])
                width = min(4, true.count(of[position]))
                assert set(of[position : position + width]) == {of[position]}
                position += width
        assert found == allowed


def test_named_leaves_decide_alone_and_together_both_cut() -> None:
    """What a storage looks at by itself does not count then, as in TorchRL."""
    data = stream(12, (1,), seed=1)
    data["next", "done"].fill_(True)
    data["whole"] = torch.zeros(12)
    data["half"] = (torch.arange(12) == 5)[:, None]
    data["pair"] = torch.tensor([[0, 0]] * 4 + [[0, 1]] * 4 + [[1, 1]] * 4)
    for buffer in both(20, slice_len=10, traj_key="whole"):
        buffer.extend(data.clone())
        batch = buffer.sample()
        assert (batch["serial"].reshape(-1, 10).diff(dim=1) == 1).all()
    cases: list[tuple[dict[str, Any], set[int]]] = [
        ({"traj_key": "whole", "end_key": "half"}, {0, 1, 2, 6, 7, 8}),
        ({"traj_key": "pair"}, {0, 4, 8}),  # another number where one of its parts is
    ]
    for keys, expected in cases:
        buffer = mine(20, slice_len=4, **keys)
        buffer.extend(data)
        starts = {int(row) for _ in range(10) for row in buffer.sample(240)["serial"][::4]}
        assert starts == expected


@pytest.mark.parametrize(
    "sampler",
    [
        lambda **keys: ours.SliceSamplerWithoutReplacement(slice_len=2, **keys),
        lambda **keys: ours.PrioritizedSliceSampler(30, 0.7, 0.5, slice_len=2, **keys),
    ],
)
def test_a_dataset_has_its_episodes_stored(
    toys: Callable[..., Path], sampler: Callable[..., Any]
) -> None:
    """Names of its own flags and numbers mean them, and others cannot take their place."""
    toy = toys([6, 2, 9, 5])
    ends = [("next", "terminated"), ("next", "truncated")]
    known: list[dict[str, Any]] = [
        {"traj_key": "episode", "cache_values": True},
        {"end_key": ("next", "done"), "compile": True, "use_gpu": False, "span": False},
        {"end_keys": ends},
    ]
    others: list[dict[str, Any]] = [
        {"traj_key": ("collector", "traj_ids")},
        {"end_key": ("next", "terminated")},
        {"end_keys": [("next", "done"), ("next", "my_done")]},
    ]
    for keys in known:
        batch = open_dataset(toy, 8, sampler=sampler(**keys)).sample()
        assert (batch["episode"].reshape(-1, 2).diff(dim=1) == 0).all()
    for keys in others:
        ds = open_dataset(toy, 8, sampler=sampler(**keys))
        with pytest.raises(UsageError, match="episodes of a dataset are stored"):
            ds.sample()
