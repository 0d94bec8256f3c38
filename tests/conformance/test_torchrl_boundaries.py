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
from offline_data.buffers import samplers as ours
from offline_data.buffers import storage as our_storages
from offline_data.buffers.buffer import TensorDictReplayBuffer
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs

ROWS = 60
KEYS: list[dict[str, Any]] = [
    {"traj_key": ("collector", "traj_ids")},
    {"traj_key": "my_id"},
    {"traj_key": ("deep", "down", "my_id")},
    {"end_key": ("next", "my_done")},
    {"end_key": "my_end"},
    {"end_keys": [("next", "lost"), ("next", "won")]},
    {"end_keys": [("next", "lost"), ("next", "absent"), ("next", "won")]},
]
MORE: list[dict[str, Any]] = [{}, {"cache_values": True}, {"truncated_key": None}]


def stream(
    count: int, shape: tuple[int, ...], *, seed: int, first: int = 0, ended: bool = True
) -> TensorDict:
    """Make transitions of trajectories of 1 to 9 steps, told by leaves of every name in `KEYS`.

    The leaves that a storage looks at by itself say something else: no end, or one everywhere.
    `serial` counts the rows, `true` the trajectories; ids come again after three others. The last
    trajectory goes on unless it has `ended`.
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
    flags = {"my_done": last, "lost": lost, "won": last & ~lost}
    data = {
        "serial": torch.arange(count) + 1000 * first,
        "true": of,
        "my_id": ids,
        "my_end": last.reshape(count, *shape),
        "deep": {"down": {"my_id": ids.float()}},
        "collector": {"traj_ids": ids},
        "next": {
            **{name: flag.reshape(count, *shape) for name, flag in flags.items()},
            "done": torch.zeros(count, 1, dtype=torch.bool),
            "truncated": torch.zeros(count, 1, dtype=torch.bool),
        },
    }
    return TensorDict(data, batch_size=[count])


def mine(size: int, sampler: str = "SliceSampler", storage: str = "Tensor", **options: Any) -> Any:
    kind = "ListStorage" if storage == "List" else f"Lazy{storage}Storage"
    positional = (size, 0.7, 0.5) if sampler.startswith("Prioritized") else ()
    return TensorDictReplayBuffer(
        storage=getattr(our_storages, kind)(size),
        sampler=getattr(ours, sampler)(*positional, **options),
        batch_size=60,
    )


def both(size: int, **options: Any) -> tuple[Any, Any]:
    other = theirs.TensorDictReplayBuffer(
        storage=theirs.LazyTensorStorage(size),
        sampler=theirs.SliceSampler(**options),
        batch_size=60,
    )
    return mine(size, **options), other


def assert_slices_are_true(batch: Any, length: int) -> None:
    """Each slice has rows of one trajectory that were written one after the other."""
    for name, step in (("true", 0), ("serial", 1)):
        values = batch[name].reshape(-1, length)
        assert (values[:, 1:] - values[:, :-1] == step).all(), name


@pytest.mark.parametrize("shape", [(), (1,)], ids=["B", "B1"])
@pytest.mark.parametrize("full", [False, True], ids=["room", "wrapped"])
@pytest.mark.parametrize("more", MORE, ids=str)
@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_slices_end_where_the_named_leaves_say(
    keys: dict[str, Any], more: dict[str, Any], full: bool, shape: tuple[int, ...]
) -> None:
    buffers = both(ROWS, slice_len=4, **keys, **more)
    writes = [(50, 0)] if not full else [(45, 0), (38, 50), (9, 90)]
    known = 1 if shape and "traj_key" in keys else 2  # TorchRL takes ids `[B]` only
    for buffer in buffers[:known]:
        for count, first in writes:
            ended = (count, first) != writes[-1]
            buffer.extend(stream(count, shape, seed=first, first=first, ended=ended))
        for _ in range(20):
            assert_slices_are_true(buffer.sample(), 4)


@pytest.mark.parametrize("storage", ["Tensor", "Memmap", "List"])
@pytest.mark.parametrize("sampler", ["SliceSamplerWithoutReplacement", "PrioritizedSliceSampler"])
@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_all_slice_samplers_and_storages_look_at_the_named_leaves(
    sampler: str, storage: str, keys: dict[str, Any]
) -> None:
    buffer = mine(ROWS, sampler, storage, slice_len=4, **keys)
    for count, first in ((45, 0), (38, 50)):
        buffer.extend(stream(count, (1,), seed=first, first=first))
    for _ in range(20):
        batch = buffer.sample()
        assert_slices_are_true(batch, 4)


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_slices_begin_wherever_trajectories_allow(keys: dict[str, Any], strict: bool) -> None:
    """Every start that a loop over the rows finds, and no other, in a ring that has room."""
    data = stream(50, () if "traj_key" in keys else (1,), seed=3)
    true = data["true"].tolist()
    allowed = set()
    for row in range(50):
        length = true.count(true[row])
        before = row - true.index(true[row])
        if (length >= 4 and before + 4 <= length) or (not strict and length < 4 and not before):
            allowed.add(row)
    for buffer in both(ROWS, slice_len=4, strict_length=strict, **keys):
        buffer.extend(data.clone())
        found = set()
        for _ in range(60):
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
    for buffer in both(20, slice_len=10, traj_key="whole"):
        buffer.extend(data.clone())
        batch = buffer.sample()
        assert (batch["serial"].reshape(-1, 10).diff(dim=1) == 1).all()
    buffer = mine(20, slice_len=5, traj_key="whole", end_key="half")
    buffer.extend(data)
    starts = {int(row) for _ in range(40) for row in buffer.sample()["serial"][::5]}
    assert starts == {0, 1, 6, 7}


@pytest.mark.parametrize(
    "sampler",
    [
        lambda **keys: ours.SliceSampler(slice_len=2, **keys),
        lambda **keys: ours.SliceSamplerWithoutReplacement(slice_len=2, **keys),
        lambda **keys: ours.PrioritizedSliceSampler(30, 0.7, 0.5, slice_len=2, **keys),
    ],
)
def test_a_dataset_has_its_episodes_stored(tmp_path: Path, sampler: Callable[..., Any]) -> None:
    """Names of its own flags and numbers mean them, and others cannot take their place."""
    write_toy(tmp_path / "toy", [toy_batch([6, 2, 9, 5])])
    ends = [("next", "terminated"), ("next", "truncated")]
    for keys in (
        {"traj_key": "episode"},
        {"end_key": ("next", "done")},
        {"end_keys": ends},
        {"traj_key": ("episode",), "end_keys": [*ends, ("next", "done")]},
    ):
        batch = open_dataset(tmp_path / "toy", 8, sampler=sampler(**keys)).sample()
        assert (batch["episode"].reshape(-1, 2).diff(dim=1) == 0).all()
    for keys in (
        {"traj_key": ("collector", "traj_ids")},
        {"end_key": ("next", "terminated")},
        {"end_key": "done"},
        {"end_keys": [("next", "done"), ("next", "my_done")]},
    ):
        ds = open_dataset(tmp_path / "toy", 8, sampler=sampler(**keys))
        with pytest.raises(UsageError, match="episodes of a dataset are stored"):
            ds.sample()
