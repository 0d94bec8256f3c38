from __future__ import annotations

import pytest
import torch

from offline_data.buffers.samplers.reductions import one_per_row, one_per_update
from offline_data.errors import UsageError

ROWS = torch.Size([3])


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (torch.tensor(2.0), [2, 2, 2]),
        (torch.tensor([[2.0]]), [2, 2, 2]),
        (torch.tensor([1.0, 2, 3]), [1, 2, 3]),
        (torch.tensor([[1], [2], [3]]), [1, 2, 3]),
        (torch.tensor([[1.0, 5], [2, 0], [3, 3]]), [5, 2, 3]),
    ],
)
def test_shapes_that_fit(priority: torch.Tensor, expected: list[float]) -> None:
    assert one_per_row(priority, ROWS, "max").tolist() == expected


@pytest.mark.parametrize("shape", [(2,), (2, 3), (4,), (0,), (3, 0)])
def test_shapes_that_do_not(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"do not fit rows of shape \[3\]"):
        one_per_row(torch.zeros(shape), ROWS, "max")


@pytest.mark.parametrize(
    ("reduction", "expected"), [("mean", [5.0, 3.0]), ("median", [5.0, 2.0]), ("sum", [5.0, 12.0])]
)
def test_a_row_that_comes_again(reduction: str, expected: list[float]) -> None:
    rows = torch.tensor([9, 4, 9, 9, 9])
    priority = torch.tensor([7.0, 5.0, 1.0, 2.0, 2.0])
    once, values = one_per_update(rows, priority, reduction)
    assert once.tolist() == [4, 9]
    assert values.tolist() == expected
    assert values.dtype == priority.dtype
