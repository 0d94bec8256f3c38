from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.base.errors import ImmutableError, UsageError
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer
from offline_data.torchrl.storages import LazyTensorStorage, ListStorage
from offline_data.torchrl.writers import (
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)


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
    with pytest.raises(UsageError, match="no storage"):
        writer.add(1)
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


def test_rows_without_a_rank_are_refused() -> None:
    writer, storage = registered(TensorDictMaxValueWriter("rank"), 2)
    with pytest.raises(UsageError, match="ranked by rank") as caught:
        writer.extend(TensorDict({"a": torch.arange(2)}, [2]))
    assert "rank_key" in str(caught.value.hint)
    with pytest.raises(UsageError, match="NaN"):
        writer.extend(TensorDict({"rank": torch.tensor([1.0, torch.nan])}, [2]))
    with pytest.raises(UsageError, match="expected one of"):
        TensorDictMaxValueWriter(reduction="best")
    assert len(storage) == 0
    for kind in (RoundRobinWriter, TensorDictRoundRobinWriter, TensorDictMaxValueWriter):
        with pytest.raises(UsageError, match="does not support compilable=True"):
            kind(compilable=True)


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


def test_a_writer_of_a_dataset_refuses() -> None:
    writer = ImmutableDatasetWriter()
    for attempt in (lambda: writer.add(1), lambda: writer.extend([1]), writer.empty):
        with pytest.raises(ImmutableError) as caught:
            attempt()
        assert "transform=" in str(caught.value.hint)
