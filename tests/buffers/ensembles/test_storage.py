from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.ensembles import StorageEnsemble
from offline_data.buffers.storages import LazyTensorStorage, TensorStorage
from offline_data.errors import UsageError


def numbered(first: int, count: int) -> TensorDict:
    return TensorDict({"action": torch.arange(first, first + count)}, [count])


@pytest.fixture
def storage() -> StorageEnsemble:
    """Rows 100, 101, 102 and 200, …, 209."""
    return StorageEnsemble(TensorStorage(numbered(100, 3)), TensorStorage(numbered(200, 10)))


def rows_of(members: list[int], index: list[list[int]]) -> TensorDict:
    rows = {"buffer_ids": torch.tensor(members), "index": torch.tensor(index)}
    return TensorDict(rows, [len(members)])


def test_rows_of_members(storage: StorageEnsemble) -> None:
    rows = rows_of([1, 0, 1], [[9, 0], [2, 2], [3, 4]])
    assert [member for member, _ in storage.get(rows)] == [1, 0, 1]
    assert [part["action"].tolist() for _, part in storage.get(rows)] == [
        [209, 200],
        [102, 102],
        [203, 204],
    ]
    batch = storage.gather(rows)
    assert batch["action"].tolist() == [[209, 200], [102, 102], [203, 204]]
    assert batch["index", "buffer_ids"].tolist() == [[1, 1], [0, 0], [1, 1]]
    batch["index", "index"].zero_()
    assert rows["index"].tolist() == [[9, 0], [2, 2], [3, 4]]


@pytest.mark.usefixtures("gathering")
def test_rows_of_datasets(datasets: list[BaseDatasetExperienceReplay], actions: Any) -> None:
    storage = StorageEnsemble(*(member.storage for member in datasets))
    batch = storage.gather(rows_of([2, 0, 2], [[15, 1], [4, 4], [0, 7]]))
    want = actions(torch.tensor([2, 2, 0, 0, 2, 2]), torch.tensor([15, 1, 4, 4, 0, 7]))
    assert batch["action"].reshape(-1).tolist() == want.tolist()
    for bad in (-1, 5):
        with pytest.raises(IndexError):
            storage.gather(rows_of([1, 0], [[0], [bad]]))


def test_transforms_of_datasets(datasets: list[BaseDatasetExperienceReplay]) -> None:
    negative = StorageEnsemble(
        datasets[0].storage,
        datasets[1].storage,
        transforms=[None, lambda batch: batch.set("action", -batch["action"])],
    )
    batch = negative.gather(rows_of([1, 0], [[0], [0]]))
    assert batch["action"].flatten().tolist() == [11001, -1001]


def test_transforms_of_members(storage: StorageEnsemble) -> None:
    parts = storage.storages
    negative = StorageEnsemble(
        *parts, transforms=[None, lambda batch: batch.set("action", -batch["action"])]
    )
    rows = rows_of([0, 1], [[0], [0]])
    assert negative.gather(rows)["action"].tolist() == [[100], [-200]]
    assert negative[[1]].gather(rows_of([0], [[3]]))["action"].tolist() == [[-203]]
    assert negative.only(["action"]).gather(rows)["action"].tolist() == [[100], [-200]]


def test_indexing(storage: StorageEnsemble) -> None:
    assert storage[0] is storage.storages[0]
    assert storage[:] is storage
    assert storage[[1, 1]].storages == [storage.storages[1]] * 2
    assert storage[1, 4]["action"].item() == 204
    assert storage[1, [[0, 1]]]["action"].tolist() == [[200, 201]]
    assert [batch["action"].tolist() for batch in storage[:, -1:]] == [[102], [209]]
    assert [batch["action"].item() for batch in storage[[1], 2]] == [202]
    with pytest.raises(IndexError):
        storage[2]


def test_rows_of_a_dataset_by_index(datasets: list[BaseDatasetExperienceReplay]) -> None:
    storage = StorageEnsemble(datasets[1].storage)
    assert storage[0, [[0, 8]]]["action"][..., 0].tolist() == [[-11001, -13001]]
    assert storage[0, 7]["index"].item() == 7


def test_only_some_leaves(datasets: list[BaseDatasetExperienceReplay]) -> None:
    storage = StorageEnsemble(*(member.storage for member in datasets)).only(["action"])
    assert set(storage.gather(rows_of([0, 1], [[0], [0]])).keys()) == {"action", "index"}


def test_storages_with_other_leaves_give_a_lazy_stack(storage: StorageEnsemble) -> None:
    other = TensorStorage(TensorDict({"action": torch.zeros(2, 3)}, [2]))
    batch = StorageEnsemble(storage[0], other).gather(rows_of([0, 1], [[1], [0]]))
    assert isinstance(batch, LazyStackedTensorDict)
    assert batch[0]["action"].tolist() == [101]


def test_state_is_that_of_storages_that_grow(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    grown, empty = LazyTensorStorage(9), LazyTensorStorage(9)
    grown.set(range(4), numbered(300, 4))
    state = StorageEnsemble(datasets[0].storage, grown).state_dict()
    assert state["0"] == {}
    StorageEnsemble(datasets[0].storage, empty).load_state_dict(state)
    assert empty.get(slice(None))["action"].tolist() == [300, 301, 302, 303]


def test_what_cannot_be_is_refused(storage: StorageEnsemble) -> None:
    with pytest.raises(UsageError, match="none was given"):
        StorageEnsemble()
    with pytest.raises(UsageError, match="not a storage of this package"):
        StorageEnsemble(storage[0], {})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 transforms for 2 storages"):
        StorageEnsemble(*storage.storages, transforms=[None])
    attempts: list[Any] = [lambda: storage.rows(valid_only=True), storage.runs]
    for attempt in attempts:
        with pytest.raises(UsageError, match="no rows of its own"):
            attempt()
    assert "3 of 3 rows" in repr(storage)
