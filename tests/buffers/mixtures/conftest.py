"""Members of different sizes whose every value tells its member, episode and step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.dataset import Dataset

LENGTHS = ((4, 6), (10, 10, 10), (1, 2, 3, 4, 20, 30))
"""Episodes of each member: 10, 30 and 60 rows. Member `m` has episodes from `100·m` on."""
SIZES = tuple(map(sum, LENGTHS))

CRITICAL = 13.8
"""Chi-square of two degrees of freedom exceeds it once in a thousand times."""


def members(toys: Callable[..., Path]) -> list[Dataset]:
    """Open `local:d0@1`, `local:d1@1` and `local:d2@1`, without a batch size of their own."""
    return [
        Dataset(toys(lengths, first_episode=100 * number, dataset=f"local:d{number}@1"))
        for number, lengths in enumerate(LENGTHS)
    ]


@pytest.fixture
def three(toys: Callable[..., Path]) -> list[Dataset]:
    return members(toys)


@pytest.fixture
def folders(three: list[Dataset]) -> list[Path]:
    return [member.data_path for member in three]


ACTIONS = [
    [
        -(1000.0 * (100 * member + episode + 1) + step + 1)
        for episode, length in enumerate(lengths)
        for step in range(length)
    ]
    for member, lengths in enumerate(LENGTHS)
]


def action(member: int, row: int) -> float:
    """Return the action in a row of a dataset."""
    return ACTIONS[member][row]


def assert_rows(batch: Any, members: Any, rows: Any) -> None:
    """Compare every row of a batch, of any shape, with the row of the dataset that it is."""
    pairs = zip(members.reshape(-1).tolist(), rows.reshape(-1).tolist(), strict=True)
    assert batch["action"].reshape(-1).tolist() == [action(*pair) for pair in pairs]
    assert torch.equal(batch["observation", "state"][..., :1], -batch["action"])
    assert torch.equal(batch["next", "observation", "state"][..., :1], 1 - batch["action"])


def leaves(batch: Any) -> dict[Any, Any]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def assert_same(batch: Any, other: Any) -> None:
    """Leaves, their order, dtypes, shapes and values are the same."""
    assert list(leaves(batch)) == list(leaves(other))
    for key, leaf in leaves(batch).items():
        assert leaf.dtype == other[key].dtype, key
        assert torch.equal(leaf, other[key]), key


def chi_square(counts: Any, expected: Any) -> float:
    """Return Pearson's statistic; `expected` in any unit."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    expected = expected * counts.sum() / expected.sum()
    return float(((counts - expected) ** 2 / expected).sum())
