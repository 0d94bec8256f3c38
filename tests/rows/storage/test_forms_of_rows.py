"""What `extend`, `add` and assignment take, and how they say what they do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from offline_data import open_dataset
from offline_data.base.errors import UsageError
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer
from offline_data.torchrl.writers import TensorDictMaxValueWriter

TENSORS = [LazyTensorStorage, LazyMemmapStorage]
ALL = [*TENSORS, ListStorage]


@tensorclass
class Step:
    action: torch.Tensor


def rows(count: int = 3, **more: Any) -> TensorDict:
    return TensorDict({"action": torch.arange(count), **more}, batch_size=[count])


@pytest.mark.parametrize("storage", ALL)
def test_rows_come_in_every_form_that_has_them(storage: Any) -> None:
    lazy = LazyStackedTensorDict(*rows().unbind(0))
    transposed = TensorDict({"action": torch.arange(6).reshape(2, 3).T}, [3])
    grown = TensorDict({"action": torch.arange(3.0).requires_grad_()}, [3])
    forms: list[Any] = [
        rows(),
        lazy,
        list(rows().unbind(0)),
        rows().unbind(0),
        transposed,
        grown,
        Step.from_tensordict(rows()),  # type: ignore[attr-defined]
        [Step.from_tensordict(row) for row in rows().unbind(0)],  # type: ignore[attr-defined]
    ]
    for given in forms:
        buffer = TensorDictReplayBuffer(storage(8), batch_size=2)
        assert buffer.extend(given).tolist() == [0, 1, 2]
        batch = buffer[:]
        first = batch["action"].reshape(3, -1)[:, 0]
        assert first.tolist() == [0, 1, 2]
        assert batch["index"].tolist() == [0, 1, 2]
        assert storage is ListStorage or not first.requires_grad
        assert buffer.extend(given[:0]).tolist() == []
        assert len(buffer) == 3


@pytest.mark.parametrize(
    ("stored", "given", "fits"),
    [
        (torch.uint8, torch.tensor([300]), False),
        (torch.uint8, torch.tensor([255]), True),
        (torch.float32, torch.tensor([2**24 + 1]), False),
        (torch.float32, torch.tensor([0.1], dtype=torch.float64), True),
    ],
)
def test_integers_are_not_changed_by_the_dtype_of_the_first_rows(
    stored: torch.dtype, given: torch.Tensor, fits: bool
) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(8), batch_size=2)
    buffer.extend(torch.zeros(1, dtype=stored))
    if fits:
        buffer.extend(given)
        assert buffer[1] == given.to(stored)
    else:
        with pytest.raises(UsageError, match="do not fit in"):
            buffer.extend(given)


@pytest.mark.parametrize("storage", ALL)
def test_a_leaf_index_of_ones_own_is_not_lost_without_a_word(
    storage: Any, toys: Callable[..., Path]
) -> None:
    buffer = TensorDictReplayBuffer(storage(30), batch_size=2)
    with pytest.warns(UserWarning, match="The feature index is not stored"):
        buffer.extend(rows(index=torch.tensor([7, 8, 9])))
    assert buffer[:]["index"].tolist() == [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = TensorDictReplayBuffer(storage(30), batch_size=2)
        other.extend(open_dataset(toys([6, 2]))[2:5])
    assert other[:]["index"].tolist() == [0, 1, 2]


def test_the_best_rows_are_kept_of_a_list_too_and_others_refused() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(2), writer=TensorDictMaxValueWriter("action"))
    assert buffer.extend(list(rows(3).unbind(0))).tolist() == [-1, 1, 0]
    for wrong in (torch.arange(3), np.arange(3), [1, 2]):
        with pytest.raises(UsageError):
            buffer.extend(wrong)
    with pytest.raises(UsageError):
        buffer.add({"action": 1})
    assert sorted(buffer[:]["action"].tolist()) == [1, 2]
