from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.rows.samplers import (
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.torchrl.ensembles.parts import SamplerEnsemble, StorageEnsemble, WriterEnsemble
from offline_data.torchrl.storages import LazyTensorStorage, TensorStorage
from offline_data.torchrl.writers import RoundRobinWriter
from tests.buffers.mixtures.conftest import CRITICAL, action, chi_square


@pytest.fixture
def storage(three: list[Dataset]) -> StorageEnsemble:
    """10, 30 and 60 rows."""
    return StorageEnsemble(*(member.storage for member in three))


@pytest.fixture
def numbers() -> StorageEnsemble:
    """Rows 100, 101, 102 and 200, …, 209."""
    rows = (torch.arange(100, 103), torch.arange(200, 210))
    return StorageEnsemble(*(TensorStorage(TensorDict({"action": r}, [len(r)])) for r in rows))


def random(**options: Any) -> SamplerEnsemble:
    return SamplerEnsemble(RandomSampler(), RandomSampler(), RandomSampler(), **options)


def one(sampler: Sampler, size: int, storage: StorageEnsemble) -> tuple[torch.Tensor, Any]:
    """Draw a sub-batch of the first member: its rows, and what the sampler says of them."""
    rows, leaves = SamplerEnsemble(sampler, num_buffer_sampled=1).sample(storage[[0]], size)
    return rows["index"][0], leaves.get(0, {})


def counts(
    sampler: SamplerEnsemble, storage: StorageEnsemble, draws: int, size: int = 6
) -> torch.Tensor:
    """Count in how many sub-batches each member is."""
    drawn = [sampler.sample(storage, size)[0]["buffer_ids"] for _ in range(draws)]
    return torch.bincount(torch.cat(drawn), minlength=len(sampler)).double()


def rows_of(members: list[int], index: list[list[int]]) -> TensorDict:
    rows = {"buffer_ids": torch.tensor(members), "index": torch.tensor(index)}
    return TensorDict(rows, [len(members)])


def test_rows_are_drawn_in_members(storage: StorageEnsemble) -> None:
    rows, leaves = random(num_buffer_sampled=4).sample(storage, 20)
    assert rows.batch_size == (4,)
    assert (rows["buffer_ids"].shape, rows["index"].shape) == ((4,), (4, 5))
    assert rows["index"].dtype == rows["buffer_ids"].dtype == torch.int64
    assert leaves == {}
    sizes = torch.tensor([len(member) for member in storage.storages])
    assert (rows["index"] < sizes[rows["buffer_ids"]][:, None]).all()


def test_sampleable_counts_what_can_be_drawn_now(
    storage: StorageEnsemble, steps: Callable[..., TensorDict]
) -> None:
    slices = SamplerEnsemble(
        *(SliceSampler(slice_len=4) for _ in range(2)),
        PrioritizedSliceSampler(99, 1.0, 1.0, slice_len=4),
        p="sampleable",
        seed=4,
    )
    drawn = counts(slices, storage, 500, size=12)
    assert chi_square(drawn, [1 + 3, 3 * 7, 1 + 17 + 27]) < CRITICAL
    growing = LazyTensorStorage(9)
    storages = StorageEnsemble(growing, storage[0])
    row, slice_of = RandomSampler(), SliceSampler(slice_len=4)
    sampler = SamplerEnsemble(row, row, p="sampleable")
    assert counts(sampler, storages, 10).tolist() == [0, 20]
    growing.set(range(3), steps([3]))
    assert (counts(sampler, storages, 50) > 0).all()
    with pytest.raises(UsageError, match="No member of the ensemble can draw"):
        SamplerEnsemble(slice_of, slice_of, p="sampleable").sample(storages[[0, 0]], 8)


def test_epochs_go_on_in_a_sub_batch(storage: StorageEnsemble) -> None:
    sampler = SamplerWithoutReplacement(seed=0)
    rows = torch.cat([one(sampler, 14, storage)[0] for _ in range(5)])
    assert rows.reshape(7, 10).sort(1).values.tolist() == [[*range(10)]] * 7
    assert sampler.epoch == 7
    slices = SliceSamplerWithoutReplacement(slice_len=2, seed=0)
    rows, leaves = one(slices, 14, storage)
    assert len(rows) == 14
    assert leaves["next", "truncated"][:, 0].tolist() == [False, True] * 7
    assert (rows[1::2] == rows[::2] + 1).all()


def test_some_samplers(storage: StorageEnsemble) -> None:
    sampler = random(p=[0, 0, 1])
    assert counts(sampler, storage, 20).tolist() == [0, 0, 60]
    sampler.p = [1, 1, 2]
    with pytest.raises(UsageError, match="each of 3 members"):
        sampler.p = [1]
    assert sampler[1] is sampler.samplers[1]
    assert sampler[:] is sampler
    part = sampler[[2, 0]]
    assert part.samplers == [sampler.samplers[2], sampler.samplers[0]]
    torch.testing.assert_close(part.p, torch.tensor([2 / 3, 1 / 3]))
    every = random(sample_from_all=True, num_buffer_sampled=7)
    assert every.num_buffer_sampled == 3
    assert every.sample(storage, 6)[0]["buffer_ids"].tolist() == [0, 1, 2]
    assert part.num_buffer_sampled == len(part) == 2
    assert random(num_buffer_sampled=5)[:1].num_buffer_sampled == 5

    def drawn() -> list[list[int]]:
        part, both = random(seed=11)[[0, 2]], storage[[0, 2]]
        return [part.sample(both, 2)[0]["buffer_ids"].tolist() for _ in range(20)]

    assert drawn() == drawn()  # it keeps the generator


def test_rows_of_storages(numbers: StorageEnsemble) -> None:
    rows = rows_of([1, 0, 1], [[9, 0], [2, 2], [3, 4]])
    want = [[209, 200], [102, 102], [203, 204]]
    found = numbers.get(rows)
    assert [(member, part["action"].tolist()) for member, part in found] == list(
        zip([1, 0, 1], want, strict=True)
    )
    batch = numbers.gather(rows)
    assert batch["action"].tolist() == want
    assert batch["index", "buffer_ids"].tolist() == [[1, 1], [0, 0], [1, 1]]
    batch["index", "index"].zero_()
    assert rows["index"].tolist() == [[9, 0], [2, 2], [3, 4]]


@pytest.mark.usefixtures("gathering")
def test_rows_of_datasets_and_views(three: list[Dataset], storage: StorageEnsemble) -> None:
    rows = rows_of([2, 0, 2], [[15, 1], [4, 4], [0, 7]])
    want = [action(2, 15), action(2, 1), action(0, 4), action(0, 4), action(2, 0), action(2, 7)]
    assert storage.gather(rows)["action"].reshape(-1).tolist() == want
    for bad in (-1, 10):
        with pytest.raises(IndexError):
            storage.gather(rows_of([1, 0], [[0], [bad]]))
    views = [three[1].subset([9, 3]), three[2].episodes_at([5, 4])]
    rows = rows_of([1, 0], [[33], [1]])
    batch = StorageEnsemble(*(view.storage for view in views)).gather(rows)
    assert batch["action"].flatten().tolist() == [action(2, 10 + 3), action(1, 3)]
    assert batch["index", "index"].tolist() == [[33], [1]]
    batch["index", "index"].zero_()
    assert rows["index"].tolist() == [[33], [1]]
    assert batch["dataset_index"].tolist() == [[13], [3]]
    assert batch["episode"].tolist() == [[1], [0]]
    assert batch["dataset_episode"].tolist() == [[4], [0]]


def test_transforms_of_storages(three: list[Dataset]) -> None:
    def negative(batch: Any) -> Any:
        return batch.set("action", -batch["action"])

    storages, want = (three[0].storage, three[1].storage), [action(0, 0), -action(1, 0)]
    ensemble = StorageEnsemble(*storages, transforms=[None, negative])
    rows = rows_of([0, 1], [[0], [0]])
    assert ensemble.gather(rows)["action"].flatten().tolist() == want
    assert ensemble.only(["action"]).gather(rows)["action"].flatten().tolist() == want
    assert ensemble[[1]].gather(rows_of([0], [[0]]))["action"].flatten().tolist() == want[1:]


def test_storages_by_index(storage: StorageEnsemble, numbers: StorageEnsemble) -> None:
    assert numbers[0] is numbers.storages[0]
    assert numbers[:] is numbers
    assert numbers[[1, 1]].storages == [numbers.storages[1]] * 2
    assert numbers[1, 4]["action"].item() == 204
    assert numbers[1, [[0, 1]]]["action"].tolist() == [[200, 201]]
    assert [batch["action"].tolist() for batch in numbers[:, -1:]] == [[102], [209]]
    assert [batch["action"].item() for batch in numbers[[1], 2]] == [202]
    assert storage[1, [[0, 8]]]["action"][..., 0].tolist() == [[action(1, 0), action(1, 8)]]
    assert storage[0, 7]["index"].item() == 7
    assert "3 of 3 rows" in repr(numbers)


def test_the_state_of_storages(three: list[Dataset], numbers: StorageEnsemble) -> None:
    grown, empty = LazyTensorStorage(9), LazyTensorStorage(9)
    grown.set(range(3), numbers[0, :].exclude("index"))
    state = StorageEnsemble(three[0].storage, grown).state_dict()
    assert state["0"] == {}
    StorageEnsemble(three[0].storage, empty).load_state_dict(state)
    assert empty.get(slice(None))["action"].tolist() == [100, 101, 102]


def test_each_writer_writes_to_its_own_storage() -> None:
    writers = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter(), ImmutableDatasetWriter())
    storages = StorageEnsemble(*(LazyTensorStorage(2) for _ in range(3)))
    rows = TensorDict({"action": torch.arange(3)}, [3])
    writers[:2].register_storage(storages[:2])
    writers[1].extend(rows)
    assert [len(storage) for storage in storages.storages] == [0, 2, 0]
    assert writers.write_count == 3
    other = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter(), ImmutableDatasetWriter())
    other.load_state_dict(writers.state_dict())
    assert (other[1].cursor, other.write_count) == (1, 3)
    other[:2].empty()
    assert (other[1].cursor, other.write_count) == (0, 0)
