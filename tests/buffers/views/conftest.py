"""Forty short episodes to make views of, and what each row must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offline_data.buffers.dataset import Dataset

LENGTHS = tuple(int(n) for n in np.random.default_rng(7).integers(1, 9, 40))
UNKNOWN = tuple(range(1, 40, 3))


@pytest.fixture
def toy(toys: Callable[..., Path]) -> Path:
    """A dataset of 40 episodes; a third of them lack the observation after the last action."""
    return toys(LENGTHS, unknown_final=UNKNOWN)


@pytest.fixture
def many(toy: Path) -> Dataset:
    """The buffer over it, batches of 16."""
    return Dataset(toy, 16)


def action(episode: int, step: int) -> float:
    """Return the action of the toy at a step."""
    return -(1000.0 * (episode + 1) + step + 1)


def rows_of(*episodes: int) -> list[int]:
    """List the dataset's rows of whole episodes, in this order."""
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    return [int(row) for e in episodes for row in range(starts[e], starts[e + 1])]


def step_of(row: int) -> tuple[int, int]:
    """Return episode and step of a row of the dataset."""
    episode = int(np.searchsorted(np.cumsum(LENGTHS), row, side="right"))
    return episode, row - sum(LENGTHS[:episode])
