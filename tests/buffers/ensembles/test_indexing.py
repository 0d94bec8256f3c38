from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.ensembles.indexing import is_all, members_at, split_index
from offline_data.errors import UsageError


@pytest.mark.parametrize(
    ("index", "want"),
    [
        (1, 1),
        (-3, 0),
        (np.int64(2), 2),
        (torch.tensor(1), 1),
        (slice(1, None), [1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        ([0, -1], [0, 2]),
        (range(2), [0, 1]),
        (np.array([2, 2]), [2, 2]),
        ([True, False, True], [0, 2]),
        (torch.tensor([False, True, False]), [1]),
        (..., [0, 1, 2]),
    ],
)
def test_members(index: Any, want: Any) -> None:
    assert members_at(index, 3) == want


@pytest.mark.parametrize("index", [3, -4, [0, 3], torch.tensor([-4]), [True, False]])
def test_members_that_are_not_there(index: Any) -> None:
    with pytest.raises(IndexError, match="There are 3 members"):
        members_at(index, 3)


@pytest.mark.parametrize("index", ["a", None, 0.5, [0.0], [], [[0], [1]], slice(2, 1)])
def test_what_is_no_index(index: Any) -> None:
    with pytest.raises(UsageError, match="not an index of members"):
        members_at(index, 3)


def test_rows_follow_after_a_comma() -> None:
    assert split_index((0, [1])) == (0, ([1],))
    assert split_index([0, 1]) == ([0, 1], ())
    assert split_index((0,), rows=False) == (0, ())
    for index, rows in (((), True), ((0, 1, 2), True), ((0, 1), False)):
        with pytest.raises(UsageError, match="indices were given"):
            split_index(index, rows=rows)


def test_all_members() -> None:
    assert is_all(slice(None))
    assert is_all(...)
    assert not any(map(is_all, (slice(0, None), slice(None, None, 1), 0, [0], None)))
