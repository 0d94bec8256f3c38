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
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"action": torch.arange(3)}, "a dict"),
        ("abc", "a str"),
        (5, "a int"),
        (np.array(3), "a ndarray without a batch dimension"),
        (TensorDict({"action": torch.arange(3)}, []), "a TensorDict without a batch dimension"),
        ((torch.arange(3), torch.arange(3)), "a tuple of tensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_sequence_of_rows_is_refused(storage: Any, given: Any, found: str) -> None:
    buffer = ReplayBuffer(storage(8), batch_size=2)
    if storage is not ListStorage and isinstance(given, dict | tuple):
        return  # leaves of rows there
    with pytest.raises(UsageError, match=f"found {found}"):
        buffer.extend(given)
    assert (len(buffer), buffer.write_count) == (0, 0)
    buffer.extend(rows())
    if not isinstance(given, TensorDict):
        with pytest.raises(UsageError):
            buffer[0:3] = given
        assert buffer[:]["action"].tolist() == [0, 1, 2]


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
    ("given", "match"),
    [
        (TensorDict({"deep": {}}, [3]), "have no leaves"),
        ([1, 2], "the elements of the list resulted in an error: they are int"),
        ([rows()[0], rows(2)], "resulted in an error: they are TensorDict"),
        (rows().rename_key_("action", "other"), "lack action and also have other"),
        (rows().float(), "The leaf action is torch.float32; stored rows have torch.int64"),
        (TensorDict({"action": torch.zeros(3, 2)}, [3]), r"\[3, 2\]; expected \[3\]"),
        (rows(mission="go"), "mission is "),
        (rows().unsqueeze(1), r"batch size \[1\]"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused_by_name(given: Any, match: str) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(8), batch_size=2)
    buffer.extend(rows())
    with pytest.raises(UsageError, match=match):
        buffer.extend(given)
    assert (len(buffer), buffer.write_count) == (3, 3)
    assert buffer[:]["action"].tolist() == [0, 1, 2]


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
    for own in (torch.rand(3), torch.arange(3)[:, None], torch.arange(3, dtype=torch.int32)):
        with pytest.raises(UsageError, match="a leaf of your own needs another name"):
            TensorDictReplayBuffer(storage(8)).extend(rows(index=own))
    with pytest.raises(UsageError, match="a leaf of your own needs another name"):
        TensorDictReplayBuffer(storage(8)).extend(
            rows(index=TensorDict({"index": torch.arange(3)}, [3]))
        )
    buffer = TensorDictReplayBuffer(storage(30), batch_size=2)
    with pytest.warns(UserWarning, match="The leaf index is not stored"):
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


@pytest.mark.parametrize("size", [1.5, 0])
def test_a_batch_size_is_a_whole_number(size: Any) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(8))
    buffer.extend(rows())
    with pytest.raises(UsageError, match="batch_size is"):
        buffer.sample(size)
