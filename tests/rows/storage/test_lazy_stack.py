"""`LazyStackStorage`: rows of TensorDicts whose shapes differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from offline_data import LazyStackStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from offline_data.base.errors import UsageError


def ragged(count: int = 3) -> list[Any]:
    return [TensorDict(a=torch.full((n + 1,), float(n)), c=f"row {n}") for n in range(count)]


@pytest.mark.parametrize("stack_dim", [0, -1])
def test_rows_are_a_lazy_stack(stack_dim: int, tmp_path: Path) -> None:
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
