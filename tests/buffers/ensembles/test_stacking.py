from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict

from offline_data.buffers.ensembles.stacking import labelled, stacked
from offline_data.errors import UsageError

MEMBERS = torch.tensor([1, 0])


def part(first: int, dtype: torch.dtype = torch.float32, width: int = 2, **more: Any) -> TensorDict:
    values = torch.arange(first, first + 3)
    wide = values[:, None].expand(3, width).to(dtype).contiguous()
    inner = TensorDict({"reward": values.float()[:, None]}, [3, 1])
    return TensorDict({"action": wide, "next": inner, "index": values * 10, **more}, [3])


def test_equal_leaves_make_one_tensor_each() -> None:
    batch = stacked([part(1), part(5)], MEMBERS)
    assert type(batch) is TensorDict
    assert batch.batch_size == (2, 3)
    assert batch["next"].batch_size == (2, 3, 1)
    assert batch["action"][..., 1].tolist() == [[1, 2, 3], [5, 6, 7]]
    assert batch["next", "reward"][..., 0].tolist() == [[1, 2, 3], [5, 6, 7]]
    assert batch["index", "index"].tolist() == [[10, 20, 30], [50, 60, 70]]
    assert batch["index", "buffer_ids"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert all(leaf.is_contiguous() for leaf in batch.values(True, True))
    assert batch.clone().reshape(-1).batch_size == (6,)
    batch.set("new", torch.zeros(2, 3))
    assert batch[1, 2]["index", "index"].item() == 70


def test_memory_is_not_that_of_the_parts() -> None:
    parts = [part(1), part(5)]
    batch = stacked(parts, MEMBERS)
    batch["action"].zero_()
    batch["index", "index"].zero_()
    assert parts[0]["action"][0, 0] == 1
    assert parts[0]["index"].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "other",
    [
        part(5, dtype=torch.float64),
        part(5, dtype=torch.int64),
        part(5, width=4),
        part(5, more=torch.zeros(3)),
        part(5).exclude("action"),
        part(5).exclude(("next", "reward")),
        part(5, text=NonTensorStack("a", "b", "c")),
    ],
    ids=["float64", "int64", "wider", "more", "fewer", "fewer nested", "text"],
)
def test_other_leaves_make_a_lazy_stack(other: TensorDict) -> None:
    want = other.clone()
    batch = stacked([part(1), other], MEMBERS)
    assert isinstance(batch, LazyStackedTensorDict)
    assert batch.batch_size == (2, 3)
    assert batch["index", "index"].tolist() == [[10, 20, 30], [50, 60, 70]]
    assert batch["index", "buffer_ids"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert set(batch.keys()) == {"action", "next", "index", *want.keys()} & {*part(1).keys()} & {
        *want.keys()
    }
    for key in want.keys(include_nested=True, leaves_only=True):
        if key != "index":
            assert batch[1].get(key).dtype == want.get(key).dtype
            assert (batch[1].get(key) == want.get(key)).all()


def test_sub_batches_of_different_lengths_make_a_lazy_stack() -> None:
    batch = stacked([part(1), part(5)[:2]], MEMBERS)
    assert isinstance(batch, LazyStackedTensorDict)
    assert [len(one) for one in batch.unbind(0)] == [3, 2]


def test_lazy_stacks_of_lazy_stacks() -> None:
    lazy = LazyStackedTensorDict.lazy_stack([part(1)[0], part(1)[1]], 0)
    batch = stacked([lazy, lazy.clone()], MEMBERS)
    assert batch.batch_size == (2, 2)
    assert batch["index", "buffer_ids"].tolist() == [[1, 1], [0, 0]]


def test_without_index_there_is_none() -> None:
    batch = stacked([part(1).exclude("index"), part(5).exclude("index")], MEMBERS)
    assert set(batch.keys()) == {"action", "next"}
    assert "index" not in labelled(part(1).exclude("index"), 0).keys()  # noqa: SIM118


def test_tensors_and_trees_of_them_are_stacked() -> None:
    assert stacked([torch.zeros(3), torch.ones(3)], MEMBERS).shape == (2, 3)
    tree = stacked([(torch.zeros(3), {"a": torch.zeros(1)})] * 2, MEMBERS)
    assert tree[0].shape == (2, 3)
    assert tree[1]["a"].shape == (2, 1)


def test_what_cannot_be_stacked_says_so() -> None:
    for parts in ([torch.zeros(3), torch.zeros(2)], [part(1), torch.zeros(3)], ["a", "b"]):
        with pytest.raises(UsageError, match="cannot be stacked") as caught:
            stacked(parts, MEMBERS)
        assert "collate_fn" in str(caught.value.hint)
