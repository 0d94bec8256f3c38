"""Promises of every storage that grows, and additions of each of them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from offline_data.base.errors import AccessError, NoSpaceError, NotFoundError, UsageError
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import (
    GrowingStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    TensorStorage,
)
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

KINDS = ["tensor", "lazy", "memmap", "list"]
TENSORS = ["tensor", "lazy", "memmap"]
ACTIONS = [-1001.0, -1002.0, -1003.0, -2001.0, -2002.0, -3001.0]


def make(kind: str, rows: TensorDict) -> Any:
    """Make a storage of each kind that has these rows, the first ones of at most 8."""
    if kind == "tensor":
        return TensorStorage(rows.clone())
    kinds = {"lazy": LazyTensorStorage, "memmap": LazyMemmapStorage, "list": ListStorage}
    made: GrowingStorage = kinds[kind](8)
    made.set(slice(0, len(rows)), rows)
    return made


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, steps: Any) -> Any:
    """Episodes of 3, 2 and 1 transitions."""
    return make(request.param, steps([3, 2, 1]))


def actions(batch: Any) -> list[float]:
    found: list[float] = batch["action"][..., 0].tolist()
    return found


def test_batches_have_the_rows_that_were_written(storage: Any, steps: Any) -> None:
    assert len(storage) == storage.rows(valid_only=True).count == 6
    assert storage.runs().starts.tolist() == [0, 3, 5]
    rows = torch.tensor([4, 0, 4, 5])
    batch, want = storage.gather(rows), steps([3, 2, 1])[rows]
    assert batch.batch_size == (4,)
    assert batch["index"].tolist() == rows.tolist()
    for key in want.keys(include_nested=True, leaves_only=True):
        assert batch[key].dtype == want[key].dtype
        assert batch[key].is_contiguous()
        torch.testing.assert_close(batch[key], want[key], rtol=0, atol=0)
    batch["action"].zero_()
    if not isinstance(storage, ListStorage):
        storage.get(slice(0, 6))["action"].zero_()
    assert actions(storage.gather(torch.arange(6))) == ACTIONS


def test_an_empty_storage_says_so(storage: Any) -> None:
    storage.empty()
    assert len(storage) == 0
    with pytest.raises(UsageError, match="empty"):
        storage.rows(valid_only=True)


def test_some_leaves_of_the_rows_as_they_will_be(storage: Any, steps: Any) -> None:
    some = storage.only(["action", ("next", "reward")])
    storage.set(slice(0, 2), steps([2], first_episode=7))
    batch = some.gather(torch.tensor([1, 3]))
    keys = batch.keys(include_nested=True, leaves_only=True)
    assert set(keys) == {"index", "action", ("next", "reward")}
    assert actions(batch) == [-8002.0, -2001.0]
    assert len(some) == some.rows(valid_only=True).count == 6
    assert some.runs() is storage.runs()
    assert list(some.only(["action"]).gather(torch.tensor([0])).keys()) == ["index", "action"]


def test_rows_are_overwritten_by_slices_lists_and_numbers(storage: Any, steps: Any) -> None:
    rows = steps([2], first_episode=6)
    storage.set([5, 1], rows)
    if not isinstance(storage, ListStorage):  # which keeps objects as they are
        rows["action"].zero_()
    storage.set(0, steps([1], first_episode=8)[0])
    storage[2:4] = steps([2], first_episode=4)
    found = actions(storage.gather(torch.arange(6)))
    assert found == [-9001.0, -7002.0, -5001.0, -5002.0, -2002.0, -7001.0]
    for row, message in ((7, "gap|max_size is 6"), (8, "Rows"), (slice(-2, 1), "Rows")):
        with pytest.raises(IndexError, match=message):
            storage.set(row, steps([1])[0])
    with pytest.raises(UsageError, match="set twice"):
        storage[[1, -5]] = rows
    assert actions(storage.gather(torch.arange(6))) == found


def test_a_pickled_storage_resumes(storage: Any) -> None:
    copy = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert actions(copy.gather(torch.arange(6))) == ACTIONS
    assert copy.runs().starts.tolist() == [0, 3, 5]
    assert (copy.max_size, len(copy)) == (storage.max_size, 6)
    large = LazyTensorStorage(1_000_000)
    large.set(slice(0, 2), torch.ones(2, 100))
    assert len(pickle.dumps(large)) < 20_000


@pytest.mark.parametrize(
    ("kind", "onto"),
    [("list", "list"), ("tensor", "lazy"), ("lazy", "memmap"), ("memmap", "tensor")],
)
def test_a_state_on_disk_comes_back(steps: Any, tmp_path: Path, kind: str, onto: str) -> None:
    make(kind, steps([3, 2, 1])).dumps(tmp_path / "state")
    for _ in range(2):
        other = make(onto, steps([4, 2], first_episode=5))
        other.loads(tmp_path / "state")
        assert actions(other.gather(torch.arange(6))) == ACTIONS
        assert other.runs().starts.tolist() == [0, 3, 5]
        other.set(0, steps([1], first_episode=8)[0])


def test_states_of_and_for_storages_that_were_never_written_to(steps: Any) -> None:
    other = make("lazy", steps([1]))
    other.load_state_dict(LazyTensorStorage(6).state_dict())
    assert len(other) == 0
    state = make("lazy", steps([3, 2, 1])).state_dict()
    fresh = LazyMemmapStorage(7)
    fresh.load_state_dict(state)
    assert actions(fresh.gather(torch.arange(6))) == ACTIONS


def test_rows_may_be_tensors_and_trajectories() -> None:
    storage = LazyTensorStorage(4, device="auto")
    assert storage.device is None
    storage.set(slice(0, 3), torch.tensor([[7.0], [8.0], [9.0]]))
    assert storage.gather(torch.tensor([2, 0])).tolist() == [[9.0], [7.0]]
    assert storage.get([[0, 1], [1, 2]]).shape == (2, 2, 1)
    storage = LazyTensorStorage(4, device="meta")
    storage.set(slice(0, 2), TensorDict({"a": torch.arange(6).reshape(2, 3)}, [2, 3]))
    assert storage.get(1).batch_size == (3,)
    assert storage.gather(torch.tensor([1, 0])).device == storage.device == torch.device("meta")
    listed = ListStorage(device="meta")
    listed.set(slice(0, 2), [torch.ones(1), (torch.ones(2), "text")])
    assert listed.get(0).device.type == listed.get(1)[0].device.type == "meta"


def test_a_tensor_storage_uses_the_tensors_it_was_made_of(steps: Any) -> None:
    rows = steps([3, 2, 1])
    storage = TensorStorage(rows, 6)
    storage.set(0, steps([1], first_episode=8)[0])
    assert rows["action"][0].item() == -9001.0
    assert TensorStorage(torch.arange(5)).get(3) == 3


def test_defaults_of_torchrl() -> None:
    LazyTensorStorage(4, ndim=1, compilable=False, consolidated=False, shared_init=False)
    LazyMemmapStorage(4, ndim=1, device="cpu", existsok=False, compilable=False)


def test_a_folder_of_maps_is_a_tensordict(steps: Any, tmp_path: Path) -> None:
    storage = LazyMemmapStorage(8, scratch_dir=tmp_path / "rows")
    storage.set(slice(0, 6), steps([3, 2, 1]))
    read = TensorDict.load_memmap(tmp_path / "rows")
    assert read["action"][:, 0].tolist() == [*ACTIONS, 0.0, 0.0]
    assert read["next", "done"][:3, 0].tolist() == [False, False, True]
    del storage
    gc.collect()
    assert (tmp_path / "rows").is_dir()
    with pytest.raises(UsageError, match="another storage"):
        LazyMemmapStorage(8, scratch_dir=tmp_path / "rows").set(slice(0, 1), steps([1]))
    over = LazyMemmapStorage(8, scratch_dir=tmp_path / "rows", existsok=True)
    over.set(slice(0, 1), steps([1], first_episode=8))
    assert actions(over.gather(torch.arange(1))) == [-9001.0]


@pytest.mark.slow
def test_a_temporary_folder_goes_with_its_storage(steps: Any) -> None:
    storage = make("memmap", steps([3, 2, 1]))
    folder, carried = storage.scratch_dir, pickle.dumps(storage)
    copy = pickle.loads(carried)  # noqa: S301
    del copy
    gc.collect()
    assert folder.is_dir()
    del storage
    gc.collect()
    assert not folder.exists()
    with pytest.raises(NotFoundError, match="does not exist"):
        pickle.loads(carried)  # noqa: S301


def test_a_folder_that_cannot_be_used(steps: Any, tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match="rows"):
        LazyMemmapStorage(10**15, scratch_dir=tmp_path).set(slice(0, 1), steps([1]))
    (tmp_path / "file").touch()
    with pytest.raises((AccessError, NoSpaceError)):
        LazyMemmapStorage(2, scratch_dir=tmp_path / "file").set(slice(0, 1), steps([1]))
    odd = tmp_path / os.fsdecode(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8, as torch requires"):
        LazyMemmapStorage(2, scratch_dir=odd).set(slice(0, 1), steps([1]))


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_does_not_take_the_folder_away(steps: Any) -> None:
    storage = make("memmap", steps([3]))
    process = multiprocessing.get_context("fork").Process(target=_forget, args=([storage],))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert actions(storage.gather(torch.arange(3))) == ACTIONS[:3]
    assert os.listdir(storage.scratch_dir)  # noqa: PTH208 - all it is to have is content


def _forget(held: list[Any]) -> None:
    import weakref

    held.clear()
    weakref.finalize._exitfunc()  # type: ignore[attr-defined]


def test_lists_take_anything_and_stack_what_can_be(tmp_path: Path) -> None:
    storage = ListStorage(8)
    storage.set(slice(0, 2), ["a", {"b": 3}])
    assert storage.get(1) == {"b": 3}
    assert storage.get([1, 0]) == [{"b": 3}, "a"]
    with pytest.raises(UsageError, match="cannot be stacked") as caught:
        storage.gather(torch.tensor([0, 1]))
    assert "collate_fn" in str(caught.value.hint)
    with pytest.raises(UsageError, match="3 objects for 2 rows"):
        storage.set(slice(0, 2), ["a", "b", "c"])
    pairs = ListStorage(8)
    pairs.set(slice(0, 2), [(torch.ones(2), 3), (torch.zeros(2), 4)])
    left, right = pairs.gather(torch.tensor([1, 0]))
    assert left.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert right.tolist() == [4, 3]
    ragged = ListStorage()
    ragged.set(slice(0, 2), [TensorDict({"a": torch.ones(n)}, []) for n in (2, 3)])
    batch = ragged.gather(torch.tensor([1, 0]))
    assert [len(row["a"]) for row in batch.unbind(0)] == [3, 2]
    assert batch["index"].tolist() == [1, 0]
    ragged.set(0, object())
    with pytest.raises(UsageError, match="pickle"):
        ragged.dumps(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def ragged(count: int = 3) -> list[Any]:
    return [TensorDict(a=torch.full((n + 1,), float(n)), c=f"row {n}") for n in range(count)]


@pytest.mark.parametrize("stack_dim", [0, -1])
def test_rows_of_other_shapes_are_a_lazy_stack(stack_dim: int, tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyStackStorage(8, stack_dim=stack_dim), batch_size=5)
    buffer.extend(ragged())
    storage: Any = buffer.storage
    for rows in (buffer.sample(), buffer[[2, 0]], storage.get(slice(None))):
        assert isinstance(rows, LazyStackedTensorDict)
        assert "index" not in rows.keys()  # noqa: SIM118 - a TensorDict
    padded = buffer[[2, 0]].get("a", as_padded_tensor=True)
    assert padded.tolist() == [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]
    assert [*buffer[[2, 0]]["c"]] == ["row 2", "row 0"]
    assert buffer[1]["a"].tolist() == [1.0, 1.0]
    buffer.dumps(tmp_path / "state")
    other = ReplayBuffer(LazyStackStorage(8), batch_size=5)
    other.loads(tmp_path / "state")
    assert other[2]["a"].tolist() == [2.0] * 3


def test_the_same_shape_is_a_lazy_stack_too_and_a_collate_function_gets_it() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyStackStorage(), batch_size=2)
    buffer.extend(TensorDict(a=torch.arange(3)).auto_batch_size_())
    batch = buffer.sample()
    assert isinstance(batch, LazyStackedTensorDict)
    assert batch["a"].equal(batch["index"])
    collated = ReplayBuffer(LazyStackStorage(), collate_fn=lambda rows: rows.get("a"), batch_size=2)
    collated.extend([TensorDict(a=torch.tensor(7))] * 2)
    assert collated.sample().tolist() == [7, 7]


@pytest.mark.parametrize("kind", [ListStorage, LazyStackStorage])
def test_what_is_done_with_a_batch_does_not_reach_the_rows(kind: Any) -> None:
    buffer = ReplayBuffer(kind(8), batch_size=4)
    buffer.extend(ragged(2))
    batch = buffer.sample()
    batch.set("b", torch.ones(4))
    for row in batch.unbind(0):
        row["a"].zero_()
    assert [sorted(buffer[n].keys()) for n in range(2)] == [["a", "c"]] * 2
    assert buffer[1]["a"].tolist() == [1.0, 1.0]


def test_a_dimension_that_is_not_the_first_is_refused() -> None:
    storage = LazyStackStorage(8, stack_dim=-1)
    storage.set([0, 1], [TensorDict({"a": torch.ones(2)}, [2])] * 2)
    with pytest.raises(UsageError, match="stack_dim=-1"):
        storage.get([0, 1])
    storage = LazyStackStorage(8)
    storage.set([0, 1], ["a", "b"])
    assert storage.get([1, 0]) == ["b", "a"]
