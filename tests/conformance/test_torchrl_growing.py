"""The same calls on TorchRL's growing buffers and on ours: the same rows, indices and batches."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.rows.samplers import RandomSampler
from offline_data.torchrl import storages as our_storages
from offline_data.torchrl import writers as our_writers
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    from torchrl._utils import logger
    from torchrl.envs.transforms import Compose, RewardScaling, UnsqueezeTransform

if TYPE_CHECKING:
    pass

logger.setLevel("ERROR")

STORAGES = ["LazyTensorStorage", "LazyMemmapStorage", "ListStorage"]
SIZE = 7


def rows(count: int, start: int = 0) -> TensorDict:
    """Make transitions whose every value says which one it is."""
    code = torch.arange(start, start + count)
    after = {"reward": code[:, None] / 8 + 1, "done": (code % 4 == 3)[:, None]}
    return TensorDict({"obs": code[:, None] * torch.ones(3), "next": after}, batch_size=[count])


def both(kind: str, size: int = SIZE, **options: Any) -> tuple[Any, Any]:
    """Make the buffer of the same name and arguments of either library."""
    made = []
    for buffers, storages in ((theirs, theirs), (None, our_storages)):
        storage = getattr(storages, kind)(size)
        buffer = TensorDictReplayBuffer if buffers is None else buffers.TensorDictReplayBuffer
        given = {name: option(storages) for name, option in options.items()}
        made.append(buffer(storage=storage, batch_size=4, **given))
    return made[0], made[1]


def assert_same(mine: Any, other: Any) -> None:
    assert mine.batch_size == other.batch_size
    keys = set(mine.keys(include_nested=True, leaves_only=True)) - {"index"}
    assert keys == set(other.keys(include_nested=True, leaves_only=True)) - {"index"}
    for key in keys:
        assert mine[key].dtype == other[key].dtype, key
        np.testing.assert_array_equal(mine[key].numpy(), other[key].numpy(), str(key))


@pytest.mark.parametrize("kind", STORAGES)
def test_the_same_writes_give_the_same_rows(kind: str) -> None:
    other, mine = both(kind)
    for start, count in ((0, 3), (3, 2), (5, 5), (10, 7)):
        data = rows(count, start)
        assert mine.extend(data).tolist() == other.extend(data.clone()).tolist()
        one = rows(1, 90 + start)[0]
        assert int(mine.add(one)) == int(other.add(one.clone()))
        assert (len(mine), mine.write_count) == (len(other), other.write_count)
        assert_same(mine[:], other[:])
        assert_same(mine[1:3], other[1:3])
        assert_same(mine[torch.tensor([2, 0])], other[torch.tensor([2, 0])])
        assert_same(mine[-1], other[-1])
    for counted in (False, True):
        for buffer in (other, mine):
            buffer[1:3] = rows(2, 50)
            buffer[4] = rows(1, 60)[0]
        assert_same(mine[:], other[:])
        for buffer in (other, mine):
            buffer.empty(empty_write_count=counted)
            buffer.extend(rows(6, 70))
        assert (len(mine), mine.write_count) == (len(other), other.write_count)
        assert_same(mine[:], other[:])


@pytest.mark.parametrize("kind", STORAGES)
def test_the_same_seed_gives_the_same_batches(kind: str) -> None:
    other, mine = both(kind)
    for buffer in (other, mine):
        buffer.extend(rows(10))
    torch.manual_seed(3)
    want = [other.sample() for _ in range(4)]
    torch.manual_seed(3)
    for batch in want:
        found = mine.sample()
        assert found["index"].tolist() == batch["index"].tolist()
        assert found["index"].dtype == batch["index"].dtype
        assert_same(found, batch)
    info = mine.sample(return_info=True)[1], other.sample(return_info=True)[1]
    assert set(info[0]) == set(info[1]) == {"index"}


@settings(deadline=None, max_examples=20)
@given(
    size=st.integers(1, 5),
    writes=st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=9), min_size=1, max_size=5),
    reduction=st.sampled_from(["sum", "mean", "max", "min", "median"]),
)
def test_the_best_rows_are_the_same(size: int, writes: list[list[int]], reduction: str) -> None:
    def writer(library: Any) -> Any:
        writers = our_writers if library is our_storages else theirs
        return writers.TensorDictMaxValueWriter(rank_key="rank", reduction=reduction)

    other, mine = both("LazyTensorStorage", size, writer=writer)
    start = 0
    for number, ranks in enumerate(writes):
        data = rows(len(ranks), start)
        data["rank"] = torch.tensor(ranks)[:, None] * torch.tensor([1.0, 0.5, -0.25])
        start += len(ranks)
        if number % 3 == 2:
            found, want = mine.add(data[0]), other.add(data[0].clone())
            assert (found is None) == (want is None)
            assert found is None or int(found) == int(want)
        else:
            assert mine.extend(data).tolist() == other.extend(data.clone()).tolist()
    assert mine.write_count == other.write_count
    assert_same(mine[:], other[:])
    assert mine.storage.runs().lengths.tolist() == [1] * len(mine)


@pytest.mark.parametrize("invert", [False, True])
def test_transforms_of_torchrl_go_both_ways(invert: bool) -> None:
    other, mine = both("LazyTensorStorage")
    for buffer in (other, mine):
        buffer.append_transform(RewardScaling(3.0, 2.0, in_keys=[("next", "reward")]))
        buffer.append_transform(
            Compose(UnsqueezeTransform(-1, in_keys=["obs"], in_keys_inv=["obs"])), invert=invert
        )
        if invert:
            buffer.append_transform(lambda data: data.set("obs", data["obs"] + 1), invert=True)
        buffer.extend(rows(5) if invert else rows(5).set("obs", torch.ones(5, 3, 1)))
    assert_same(mine[:], other[:])
    assert_same(mine.storage.get(slice(None)), other.storage.get(slice(None)))


def test_tensors_and_lists_are_the_same() -> None:
    pairs = (
        (theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(5)), torch.arange(8)),
        (theirs.ReplayBuffer(storage=theirs.ListStorage(5), collate_fn=list), list("abcdefgh")),
    )
    for other, data in pairs:
        name = type(other.storage).__name__
        collate = list if name == "ListStorage" else None
        mine = ReplayBuffer(storage=getattr(our_storages, name)(5), collate_fn=collate)
        assert mine.extend(data).tolist() == other.extend(data).tolist()
        assert list(mine[:]) == list(other[:]) == list(data[5:]) + list(data[3:5])
        torch.manual_seed(1)
        want = other.sample(6)
        torch.manual_seed(1)
        assert list(mine.sample(6)) == list(want)


def test_a_generator_draws_the_same_rows() -> None:
    drawn = []
    for buffers, storages in ((theirs, theirs), (None, our_storages)):
        made = TensorDictReplayBuffer if buffers is None else buffers.TensorDictReplayBuffer
        sampler = RandomSampler() if buffers is None else buffers.RandomSampler()
        generator = torch.Generator().manual_seed(5)
        storage = storages.LazyTensorStorage(SIZE)
        buffer = made(storage=storage, sampler=sampler, batch_size=4, generator=generator)
        buffer.extend(rows(6))
        drawn.append([buffer.sample()["index"].tolist() for _ in range(3)])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("plain", [False, True])
def test_index_is_in_the_same_rows(kind: str, plain: bool) -> None:
    found = []
    for library, storages in ((theirs, theirs), (None, our_storages)):
        name = "ReplayBuffer" if plain else "TensorDictReplayBuffer"
        ours = ReplayBuffer if plain else TensorDictReplayBuffer
        buffer = (ours if library is None else getattr(library, name))(
            storage=getattr(storages, kind)(SIZE), batch_size=4
        )
        buffer.extend(rows(5))
        buffer.add(rows(1, 5)[0])
        buffer.extend(rows(3, 6))
        storage: Any = buffer.storage
        some: Any = [storage[0], storage[5], *storage[2:4], *storage[torch.tensor([6, 1])]]
        some += [buffer[0], *buffer[2:4], buffer.sample()]
        found.append([row.get("index", None) for row in some])
    other, mine = found
    if plain:
        assert mine == other == [None] * len(mine)
    else:
        assert [int(index) for index in mine[:-1]] == [int(index) for index in other[:-1]]
        assert mine[-1].shape == other[-1].shape


def test_rows_of_a_buffer_whose_writer_is_no_tensordict_writer() -> None:
    found = []
    for data, writers in ((theirs, theirs.replay_buffers), (our_storages, our_writers)):
        make = getattr(data, "TensorDictReplayBuffer", TensorDictReplayBuffer)
        storage, writer = data.LazyTensorStorage(SIZE), writers.RoundRobinWriter()
        buffer = make(storage=storage, writer=writer, batch_size=4)
        buffer.extend(rows(5))
        some = [buffer[0], *buffer[2:4], storage[1]]
        found.append([row.get("index", None) for row in some])
        assert buffer.sample()["index"].shape == (4,)
    assert found[0] == found[1] == [None] * 4


def test_a_storage_without_a_writer_has_rows_without_index() -> None:
    for kind in STORAGES:
        storage = getattr(our_storages, kind)(SIZE)
        storage.set(slice(0, 3), rows(3))
        assert "index" not in storage.get(1)
        buffer = TensorDictReplayBuffer(storage=storage)
        assert "index" in storage.get(1)
        buffer.set_writer(our_writers.RoundRobinWriter())
        assert "index" not in storage.get(1)
