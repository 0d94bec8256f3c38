"""Storages that are only rows, and whether draws are far from their law."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from offline_data.rows.samplers import EpisodeIndex, ValidRows, sum_tree


class Episodes:
    """A storage of episodes of these lengths, of which some rows are not valid."""

    def __init__(self, lengths: Sequence[int], left_out: Sequence[int] = ()) -> None:
        self.lengths = list(lengths)
        self.left_out = np.array(left_out, np.int64)
        self._runs: EpisodeIndex | None = None

    def __len__(self) -> int:
        return sum(self.lengths)

    def rows(self, *, valid_only: bool) -> ValidRows:
        return ValidRows(len(self), self.left_out if valid_only else self.left_out[:0])

    def runs(self) -> EpisodeIndex:
        if self._runs is None:
            lengths = torch.tensor(self.lengths, dtype=torch.int64)
            self._runs = EpisodeIndex(lengths.cumsum(0) - lengths, lengths)
        return self._runs

    def append(self, length: int) -> None:
        self.lengths.append(length)
        self._runs = None


@pytest.fixture(scope="session")
def follows() -> Callable[[ArrayLike, ArrayLike], bool]:
    """Chi-square: five standard deviations above its mean is one in a few hundred thousand."""

    def check(counts: ArrayLike, law: ArrayLike) -> bool:
        found, expected = np.asarray(counts, float), np.asarray(law, float)
        expected = expected / expected.sum() * found.sum()
        assert not found[expected == 0].any()
        found, expected = found[expected > 0], expected[expected > 0]
        assert expected.min() > 5
        freedom = len(found) - 1
        distance = ((found - expected) ** 2 / expected).sum()
        return bool(distance < freedom + 5 * np.sqrt(2 * freedom) + 5)

    return check


@pytest.fixture(params=["compiled", "numpy"])
def tree(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the compiled tree and without it."""
    if request.param == "numpy":
        monkeypatch.setattr(sum_tree, "compiled", None)
    elif sum_tree.compiled is None:
        pytest.skip("the compiled tree was not built")
