from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.buffers.samplers.base import Runs
from offline_data.buffers.storages import LazyTensorStorage
from offline_data.buffers.storages.links import Links, marks_of
from offline_data.buffers.writers import RoundRobinWriter
from offline_data.errors import UsageError


def as_lists(runs: Runs) -> list[list[int]]:
    pairs = zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True)
    return [list(range(start, start + length)) for start, length in pairs]


def flagged(done: list[int], **more: Any) -> TensorDict:
    flags = torch.tensor(done, dtype=torch.bool)[:, None]
    return TensorDict({"next": {"done": flags}, **more}, batch_size=[len(done)])


def naive(slots: list[tuple[int, bool]]) -> list[list[int]]:
    """Cut a ring, slot by slot, whose slots have (number of the write, whether it ends)."""
    runs = [[0]]
    for row in range(1, len(slots)):
        (before, ended), (number, _) = slots[row - 1], slots[row]
        if ended or number != before + 1:
            runs.append([])
        runs[-1].append(row)
    return runs


@given(
    size=st.integers(1, 9),
    writes=st.lists(st.lists(st.booleans(), min_size=1, max_size=14), min_size=1, max_size=8),
)
def test_runs_of_a_ring_are_those_of_a_naive_loop(size: int, writes: list[list[bool]]) -> None:
    storage = LazyTensorStorage(size)
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    slots: list[tuple[int, bool]] = []
    number = 0
    for ends in writes:
        writer.extend(flagged([int(end) for end in ends]))
        for end in ends:
            if len(slots) < size:
                slots.append((number, end))
            else:
                slots[number % size] = (number, end)
            number += 1
        assert as_lists(storage.runs()) == naive(slots)


def test_the_oldest_rows_do_not_follow_the_newest() -> None:
    storage = LazyTensorStorage(6)
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    writer.extend(flagged([0, 0, 0, 0, 0, 0]))
    assert as_lists(storage.runs()) == [[0, 1, 2, 3, 4, 5]]
    writer.extend(flagged([0, 0]))
    assert as_lists(storage.runs()) == [[0, 1], [2, 3, 4, 5]]
    writer.add(flagged([0])[0])
    assert as_lists(storage.runs()) == [[0, 1, 2], [3, 4, 5]]


def test_the_newest_trajectory_is_a_run_before_it_ends() -> None:
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 3), flagged([0, 1, 0]))
    assert as_lists(storage.runs()) == [[0, 1], [2]]
    storage.set(3, flagged([0])[0])
    assert as_lists(storage.runs()) == [[0, 1], [2, 3]]


def test_runs_are_the_same_object_until_the_next_write() -> None:
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 3), flagged([0, 1, 0]))
    runs = storage.runs()
    assert storage.runs() is runs
    storage.set(3, flagged([1])[0])
    assert storage.runs() is not runs


@pytest.mark.parametrize("key", [("collector", "traj_ids"), "traj_ids", "episode"])
def test_numbers_of_trajectories_cut_where_no_flag_does(key: Any) -> None:
    rows = flagged([0, 0, 0, 0, 1, 0])
    rows.set(key, torch.tensor([4, 4, 7, 7, 7, 7]))
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 6), rows)
    assert as_lists(storage.runs()) == [[0, 1], [2, 3, 4], [5]]
    alone = rows.select(key)
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 6), alone)
    assert as_lists(storage.runs()) == [[0, 1], [2, 3, 4, 5]]


def test_a_trajectory_ends_terminated_or_truncated() -> None:
    flags = {"terminated": torch.tensor([[False], [True], [False], [False]])}
    rows = TensorDict({"next": flags}, [4])
    assert marks_of(rows, 4).ends.tolist() == [False, True, False, False]
    rows["next", "truncated"] = torch.tensor([[True], [False], [False], [False]])
    assert marks_of(rows, 4).ends.tolist() == [True, True, False, False]


def test_one_flag_of_several_ends_a_trajectory() -> None:
    done = torch.tensor([[[0], [0]], [[0], [1]]], dtype=torch.bool)
    assert marks_of(TensorDict({"next": {"done": done}}, [2]), 2).ends.tolist() == [False, True]


def test_rows_that_tell_nothing_are_runs_of_their_own() -> None:
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 3), TensorDict({"action": torch.arange(3)}, [3]))
    assert as_lists(storage.runs()) == [[0], [1], [2]]
    tensors = LazyTensorStorage(9)
    tensors.set(slice(0, 2), torch.arange(2))
    assert as_lists(tensors.runs()) == [[0], [1]]


def test_rows_that_are_trajectories_are_runs_of_their_own() -> None:
    storage = LazyTensorStorage(9)
    done = torch.zeros(3, 5, 1, dtype=torch.bool)
    storage.set(slice(0, 3), TensorDict({"next": {"done": done}}, [3, 5]))
    assert as_lists(storage.runs()) == [[0], [1], [2]]


def test_rows_written_one_by_one_anywhere_follow_nothing() -> None:
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 6), flagged([0] * 6))
    storage.set(torch.tensor([2, 3]), flagged([0, 0]), linked=False)
    assert as_lists(storage.runs()) == [[0, 1], [2], [3], [4, 5]]


def test_values_changed_in_place_stay_where_they_were_in_time() -> None:
    storage = LazyTensorStorage(9)
    storage.set(slice(0, 6), flagged([0, 0, 1, 0, 0, 0]))
    storage[2:5] = flagged([0, 0, 1])
    assert as_lists(storage.runs()) == [[0, 1, 2, 3, 4], [5]]


def test_a_state_of_other_rows_is_refused() -> None:
    links = Links()
    links.wrote(torch.arange(3), marks_of(flagged([0, 0, 0]), 3), linked=True)
    with pytest.raises(UsageError, match="3 rows; expected 2"):
        Links().load_state_dict(links.state_dict(3), 2)
