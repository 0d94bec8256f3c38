"""Members of different sizes whose every value tells its member, episode and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LENGTHS: tuple[tuple[int, ...], ...] = ((3, 2), (7, 1, 12), (4, 4, 4, 4))
"""Episodes of each member: 5, 20 and 16 rows. Member `m` has episodes from `10·m` on."""


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A dataset directory for each member."""
    for number, lengths in enumerate(LENGTHS):
        write_toy(tmp_path / str(number), [toy_batch(lengths, first_episode=10 * number)])
    return [tmp_path / str(number) for number in range(len(LENGTHS))]


@pytest.fixture
def datasets(folders: list[Path]) -> list[BaseDatasetExperienceReplay]:
    """The members, as datasets."""
    return [BaseDatasetExperienceReplay(folder) for folder in folders]


@pytest.fixture
def actions() -> Callable[[Any, Any], Any]:
    """Compute, by a loop, the actions of `(member, row)`: `-(1000·(episode + 1) + t + 1)`."""
    table = [_actions(lengths, 10 * number) for number, lengths in enumerate(LENGTHS)]

    def of(members: Any, rows: Any) -> Any:
        pairs = zip(members.reshape(-1).tolist(), rows.reshape(-1).tolist(), strict=True)
        found = np.array([table[member][row] for member, row in pairs], np.float32)
        return found.reshape(tuple(members.shape))

    return of


def _actions(lengths: Sequence[int], first: int) -> list[int]:
    return [
        -(1000 * (episode + 1) + step + 1)
        for episode, length in enumerate(lengths, first)
        for step in range(length)
    ]
