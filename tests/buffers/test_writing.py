"""Buffers that grow: where rows are written, and what is read while they are."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.base.errors import ImmutableError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer
from offline_data.rows.samplers import (
    PrioritizedSliceSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import LazyTensorStorage, ListStorage
from offline_data.torchrl.writers import (
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)


def actions(batch: Any) -> list[float]:
    found: list[float] = batch["action"][..., 0].tolist()
    return found


def test_emptying_begins_again(steps: Any, recording: Any, growing: Any) -> None:
    sampler = recording()
    buffer = growing(sampler=sampler, batch_size=2, prefetch=2)
    buffer.extend(steps([3, 2]))
    buffer.sample()
    buffer.empty(empty_write_count=False)
    assert (len(buffer), buffer.write_count, sampler.calls[-1]) == (0, 5, "empty")
    assert buffer.extend(steps([2], first_episode=6)).tolist() == [0, 1]
    assert set(actions(buffer.sample())) == {-7001, -7002}
    buffer.empty()
    assert buffer.write_count == 0


def test_the_sampler_is_told_which_rows_were_kept(steps: Any, recording: Any, growing: Any) -> None:
    sampler = recording()
    buffer = growing(4, sampler=sampler)
    buffer.extend(steps([3]))
    buffer.add(steps([1])[0])
    buffer.extend(steps([6]))
    assert sampler.calls == [("extend", [0, 1, 2]), ("extend", [3]), ("extend", [2, 3, 0, 1])]
    sampler = recording()
    buffer = growing(2, sampler=sampler, writer=TensorDictMaxValueWriter("action"))
    assert buffer.extend(steps([3])).tolist() == [0, 1, -1]
    assert buffer.add(steps([1], first_episode=3)[0]) is None
    assert sampler.calls == [("extend", [0, 1])]
    assert buffer.write_count == 2


def test_priorities_reach_the_sampler(steps: Any, recording: Any, growing: Any) -> None:
    sampler = recording()
    buffer = growing(sampler=sampler)
    buffer.extend(steps([3]).set("td_error", torch.tensor([[1.0], [3.0], [2.0]])))
    assert sampler.calls[-1] == ("priority", [0, 1, 2], [[1.0], [3.0], [2.0]])
    buffer.add(steps([1]).set("td_error", torch.tensor([[4.0]]))[0])
    assert sampler.calls[-1] == ("priority", [3], [[4.0]])
    buffer.extend(steps([1]).set("td_error", torch.ones(1, 1)), update_priority=False)
    assert sampler.calls[-1] == ("extend", [4])
    buffer.update_priority(torch.tensor([[0, -1], [2, 1]]), torch.tensor([[1, 2], [3, 4]]))
    assert sampler.calls[-1] == ("priority", [0, 2, 1], [1, 3, 4])
    buffer.update_priority([0, 2], 5.0)
    assert sampler.calls[-1] == ("priority", [0, 2], 5.0)
    buffer.update_priority(torch.tensor([[0, 1]]), torch.ones(1, 2))
    assert sampler.calls[-1] == ("priority", [[0, 1]], [[1.0, 1.0]])


def test_priorities_of_a_batch(steps: Any, recording: Any, growing: Any) -> None:
    sampler = recording()
    buffer = growing(sampler=sampler, priority_key=("loss", "td"), batch_size=3)
    buffer.extend(steps([3]))
    batch = buffer.sample()
    batch.set(("loss", "td"), torch.tensor([[1.0, 5.0], [2.0, 1.0], [0.0, 7.0]]))
    buffer.update_tensordict_priority(batch)
    assert sampler.calls[-1] == ("priority", [0, 1, 2], [[1.0, 5.0], [2.0, 1.0], [0.0, 7.0]])
    buffer.update_tensordict_priority(batch[1])
    assert sampler.calls[-1] == ("priority", [1], [[2.0, 1.0]])


@pytest.mark.filterwarnings("error")
def test_priorities_of_no_use_are_passed_over(steps: Any, growing: Any) -> None:
    buffer = growing(batch_size=2)
    buffer.extend(steps([3]).set("td_error", torch.ones(3)))
    buffer.update_tensordict_priority(buffer.sample())


def test_next_says_once_that_an_epoch_is_over(steps: Any, growing: Any) -> None:
    buffer = growing(sampler=SamplerWithoutReplacement(seed=0), batch_size=2)
    buffer.extend(steps([3]))
    sizes = [len(next(buffer)), len(next(buffer))]
    assert sizes == [2, 1]
    with pytest.raises(StopIteration):
        next(buffer)
    assert len(next(buffer)) == 2
    assert len(buffer.next()) == 1
    assert buffer.next() is None
    assert len(buffer.next()) == 2


class Doubling:
    """A transform of two directions, as TorchRL's have them."""

    evaluating = False

    def eval(self) -> None:
        self.evaluating = True

    def __call__(self, batch: Any) -> Any:
        return batch.set("action", batch["action"] * 2)

    def inv(self, rows: Any) -> Any:
        return rows.set("action", rows["action"] / 2)


def test_transforms_are_undone_on_the_way_in(steps: Any, growing: Any) -> None:
    transform = Doubling()
    buffer = growing(transform=transform)
    assert transform.evaluating
    rows = steps([3])
    buffer.extend(rows)
    buffer.add(steps([1], first_episode=5)[0])
    buffer[0] = steps([1], first_episode=7)[0]
    assert actions(buffer.storage.get(...)) == [-4000.5, -501.0, -501.5, -3000.5]
    assert actions(buffer[:]) == [-8001, -1002, -1003, -6001]
    assert actions(rows) == [-1001, -1002, -1003]
    swapped = growing().append_transform(Doubling(), invert=True)
    swapped.insert_transform(0, lambda rows: rows.set("action", rows["action"] + 1), invert=True)
    swapped.extend(steps([2]))
    assert actions(swapped.storage.get(...)) == [-2001, -2003]
    assert actions(swapped[:]) == [-1000.5, -1001.5]


def test_a_transform_may_keep_rows_out(steps: Any, growing: Any) -> None:
    class Refusing(Doubling):
        def inv(self, rows: Any) -> Any:  # noqa: ARG002
            return None

    buffer = growing(transform_factory=Refusing)
    assert buffer.extend(steps([2])).tolist() == buffer.add(steps([1])[0]).tolist() == []
    assert len(buffer) == 0


def test_lists_of_anything_with_a_collate_function() -> None:
    buffer = ReplayBuffer(batch_size=2, collate_fn=list)
    assert isinstance(buffer.storage, ListStorage)
    assert buffer.storage.max_size == 1000
    assert buffer.extend(["a", "b"]).tolist() == [0, 1]
    assert set(buffer.sample()) <= {"a", "b"}
    assert (buffer[0], buffer[:]) == ("a", ["a", "b"])


def test_parts_in_every_form(folder: Path, growing: Any) -> None:
    made = ReplayBuffer(storage=lambda: LazyTensorStorage(3), writer=TensorDictRoundRobinWriter)
    assert isinstance(made.storage, LazyTensorStorage)
    assert isinstance(made.writer, TensorDictRoundRobinWriter)
    assert type(ReplayBuffer(storage=LazyTensorStorage(3)).writer) is RoundRobinWriter
    assert type(growing().writer) is TensorDictRoundRobinWriter
    assert isinstance(Dataset(folder).writer, ImmutableDatasetWriter)


def test_parts_can_be_replaced(steps: Any, folder: Path, recording: Any, growing: Any) -> None:
    buffer = growing(sampler=recording(), batch_size=2, prefetch=1)
    buffer.extend(steps([3]))
    buffer.sample()
    before = buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert not isinstance(before, SamplerWithoutReplacement)
    assert buffer.sample()["index"].tolist() == [0, 1]
    old = buffer.set_storage(LazyTensorStorage(4))
    assert len(old) == 3
    buffer.set_writer(RoundRobinWriter())
    assert buffer.extend(steps([2], first_episode=6)).tolist() == [0, 1]
    assert set(actions(buffer.sample())) == {-7001, -7002}
    dataset = Dataset(folder)
    old = buffer.set_storage(dataset.storage)
    assert (len(old), len(buffer)) == (2, len(dataset))
    assert buffer.sample()["index"].tolist() == [0, 1]
    with pytest.raises(ImmutableError):
        buffer.extend(steps([2]))
    buffer.set_storage(old)
    assert buffer.extend(steps([1])).tolist() == [0]


def test_a_batch_has_its_rows_as_they_are_when_it_is_handed_out(
    steps: Any, recording: Any, growing: Any
) -> None:
    buffer = growing(8, sampler=recording(), batch_size=2, prefetch=2)
    buffer.extend(steps([8]))
    assert actions(buffer.sample()) == [-1001, -1002]
    buffer.extend(steps([4], first_episode=6))  # rows 0 to 3, of which 2 and 3 are under way
    assert actions(buffer.sample()) == [-7003, -7004]
    buffer[4] = steps([1], first_episode=8)[0]
    assert actions(buffer.sample()) == [-9001, -1006]


def test_rows_written_are_in_batches_drawn_later(steps: Any, growing: Any) -> None:
    class All(Sampler):
        def sample(
            self,
            storage: Any,
            batch_size: int,  # noqa: ARG002
        ) -> tuple[torch.Tensor, dict[Any, Any]]:
            return torch.arange(len(storage)), {}

    buffer = growing(8, sampler=All(), batch_size=1, prefetch=2)
    buffer.extend(steps([2]))
    sizes = [len(buffer.sample())]
    buffer.extend(steps([1], first_episode=6))
    sizes += [len(buffer.sample()) for _ in range(4)]
    assert sizes == [2, 2, 2, 3, 3]


def test_what_is_derived_follows_what_is_written(steps: Any, recording: Any, growing: Any) -> None:
    def neighbour(batch: Any, rows: torch.Tensor, storage: Any) -> Any:
        after = (rows + 1).clamp(max=len(storage) - 1)
        return batch.set("after", storage.only(["action"]).gather(after)["action"][:, 0])

    buffer = growing(8, sampler=recording(), batch_size=1, prefetch=2, derived=[neighbour])
    buffer.extend(steps([3]))
    assert buffer.sample()["after"].tolist() == [-1002]
    buffer[2] = steps([1], first_episode=8)[0]
    assert buffer.sample()["after"].tolist() == [-9001]


@pytest.mark.parametrize("prefetch", [None, 2])
def test_writing_while_other_threads_sample(steps: Any, growing: Any, prefetch: int | None) -> None:
    """Each row's leaves are written together, and no batch has a half of one and one of another."""
    buffer = growing(16, batch_size=16, prefetch=prefetch)
    buffer.extend(steps([16]))
    stop, torn, seen = threading.Event(), list[Any](), set[int]()

    def read() -> None:
        while not stop.is_set():
            batch = buffer.sample()
            seen.update(batch["info", "code"].tolist())
            if not torch.equal(-batch["action"][:, 0].long(), batch["info", "code"]):
                torn.append(batch)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for episode in range(80):
        buffer.extend(steps([16], first_episode=episode))
    stop.set()
    for reader in readers:
        reader.join(60)
    assert torn == []
    assert len(seen) > 16


@pytest.mark.slow
def test_no_thread_is_left_behind(steps: Any, growing: Any) -> None:
    def alive() -> set[int]:
        threads = [one for one in threading.enumerate() if one.name.startswith("offline-data")]
        return {thread.ident or 0 for thread in threads}

    gc.collect()
    before = alive()
    buffer = growing(batch_size=2, prefetch=3)
    buffer.extend(steps([3]))
    buffer.sample()
    assert alive() - before
    del buffer
    gc.collect()
    deadline = time.monotonic() + 120
    while alive() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive() - before


SLICES = [
    SliceSampler(slice_len=4, seed=0),
    SliceSamplerWithoutReplacement(slice_len=4, seed=0),
    PrioritizedSliceSampler(20, 0.7, 0.5, slice_len=4, seed=0),
]


def numbered(first: int, count: int, *, length: int = 5) -> TensorDict:
    """Make transitions numbered from `first`, in trajectories of `length`."""
    number = torch.arange(first, first + count)
    done = (number % length == length - 1)[:, None]
    return TensorDict({"number": number, "next": {"done": done}}, batch_size=[count])


@pytest.mark.parametrize("sampler", SLICES, ids=lambda one: type(one).__name__)
def test_a_slice_is_never_of_two_trajectories(sampler: Any) -> None:
    """The ring is written over in the middle of slices that wait to be handed out."""
    buffer = ReplayBuffer(LazyTensorStorage(20), sampler=sampler, batch_size=8, prefetch=3)
    buffer.extend(numbered(0, 20))
    written = 20
    for count in (1, 2, 3, 7, 1, 5, 2, 20, 3):
        buffer.sample()
        buffer.extend(numbered(written, count))
        written += count
        for _ in range(2):
            slices = buffer.sample()["number"].reshape(-1, 4)
            assert (slices.diff(dim=1) == 1).all()
            assert (slices // 5 == slices[:, :1] // 5).all()


def test_where_no_slice_is_left_that_is_said_and_more_rows_help() -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(8), sampler=SliceSampler(slice_len=4), batch_size=4, prefetch=2
    )
    buffer.extend(numbered(0, 8, length=8))
    buffer.sample()
    buffer.extend(numbered(0, 8, length=1))
    with pytest.raises(UsageError, match="No episode has 4"):
        buffer.sample()
    buffer.extend(numbered(0, 8, length=8))
    assert buffer.sample()["number"].diff().tolist() == [1, 1, 1]


def registered(writer: Writer, size: int) -> tuple[Any, LazyTensorStorage]:
    storage = LazyTensorStorage(size)
    writer.register_storage(storage)
    return writer, storage


def content(storage: LazyTensorStorage) -> list[float]:
    found: list[float] = storage.get(...)["a"].tolist()
    return found


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 7), counts=st.lists(st.integers(0, 17), min_size=1, max_size=8))
def test_a_ring_is_what_a_naive_loop_makes(size: int, counts: list[int]) -> None:
    writer, storage = registered(TensorDictRoundRobinWriter(), size)
    want: list[int] = []
    number = 0
    for count in counts:
        data = TensorDict({"a": torch.arange(number, number + count)}, [count])
        if count == 1:
            assert writer.add(data[0]) == number % size
        else:
            rows = writer.extend(data)
            assert rows.tolist() == [one % size for one in range(number, number + count)]
        assert list(data.keys()) == ["a"]
        for one in range(number, number + count):
            if len(want) < size:
                want.append(one)
            else:
                want[one % size] = one
        number += count
    assert (writer.write_count, writer.cursor, len(storage)) == (number, number % size, len(want))
    assert not want or content(storage) == want


def test_a_ring_of_objects() -> None:
    writer, storage = RoundRobinWriter(), ListStorage(3)
    writer.register_storage(storage)
    assert writer.extend(["a", "b"]).tolist() == [0, 1]
    assert writer.extend(["c", "d", "e"]).tolist() == [2, 0, 1]
    assert storage.get(slice(0, 3)) == ["d", "e", "c"]
    assert writer.extend(list("uvwxyz")).tolist() == [2, 0, 1, 2, 0, 1]
    assert storage.get(slice(0, 3)) == ["y", "z", "x"]


def test_a_write_that_fails_moves_nothing() -> None:
    writer, storage = registered(RoundRobinWriter(), 4)
    writer.extend(TensorDict({"a": torch.arange(3)}, [3]))
    for wrong in ({"b": torch.arange(3)}, {"a": torch.ones(3, 2)}):
        with pytest.raises(UsageError):
            writer.extend(TensorDict(wrong, [3]))
    assert (writer.cursor, writer.write_count, content(storage)) == (3, 3, [0, 1, 2])


@pytest.mark.parametrize("kind", [RoundRobinWriter, TensorDictMaxValueWriter])
def test_a_writer_resumes(kind: Any) -> None:
    first, _ = registered(kind(), 3)
    second, other = registered(kind(), 3)

    def rows(values: list[float]) -> TensorDict:
        reward = torch.tensor(values)
        return TensorDict({"next": {"reward": reward}, "a": reward}, [len(values)])

    first.extend(rows([3.0, 1.0, 2.0, 5.0]))
    other.load_state_dict(first.storage.state_dict())
    second.load_state_dict(first.state_dict())
    assert second.write_count == first.write_count
    assert first.extend(rows([4.0, 9.0])).tolist() == second.extend(rows([4.0, 9.0])).tolist()
    assert content(first.storage) == content(other)
    second.empty(empty_write_count=False)
    assert second.write_count == first.write_count
    second.empty()
    other.empty()
    assert second.extend(rows([7.0])).tolist() == [0]
    assert second.write_count == 1
