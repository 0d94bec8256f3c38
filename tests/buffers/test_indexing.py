from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.indexing import rows_of
from offline_data.errors import UsageError

EVERY = list(range(5))


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (0, 0),
        (-1, 4),
        (np.int32(3), 3),
        (slice(None), EVERY),
        (..., EVERY),
        (slice(1, 4), [1, 2, 3]),
        (slice(-2, None), [3, 4]),
        (slice(None, None, -1), [4, 3, 2, 1, 0]),
        (slice(4, 0, -2), [4, 2]),
        (slice(3, 3), []),
        (slice(10, 20), []),
        ([], []),
        ([0, -1, 2], [0, 4, 2]),
        ((1, 1), [1, 1]),
        (range(2, 4), [2, 3]),
        ([[0, 1], [4, -5]], [[0, 1], [4, 0]]),
        (np.array([4, 0], np.uint8), [4, 0]),
        (torch.tensor([2, -3], dtype=torch.int16), [2, 2]),
        ([True, False, True, False, True], [0, 2, 4]),
        (torch.tensor([False, True, False, False, True]), [1, 4]),
        (np.zeros(5, bool), []),
    ],
)
def test_means_what_it_means_to_numpy(index: Any, rows: Any) -> None:
    found = rows_of(index, 5)
    assert found.dtype == torch.int64
    assert found.tolist() == rows


def test_a_scalar_tensor_is_a_row_and_the_callers_tensor_is_not_kept() -> None:
    assert rows_of(torch.tensor(-2), 5).shape == ()
    mine = torch.tensor([1, 2])
    rows_of(mine, 5).fill_(0)
    assert mine.tolist() == [1, 2]


@pytest.mark.parametrize(
    "index", [5, -6, [0, 5], torch.tensor([-6]), np.array([9]), [True, False]], ids=str
)
def test_a_row_that_is_not_there_or_a_mask_of_another_length(index: Any) -> None:
    with pytest.raises(IndexError, match="5"):
        rows_of(index, 5)


@pytest.mark.parametrize("index", ["observation", ("next", "reward"), None, 1.5, [0.5], object()])
def test_what_is_no_index(index: Any) -> None:
    with pytest.raises(UsageError):
        rows_of(index, 5)
