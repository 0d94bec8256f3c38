from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offline_data.sources.minari import Minari
from offline_data.testing.minari_toy import STORAGES, write_minari
from offline_data.testing.minari_values import box, toy_episode
from offline_data.testing.sources import SourceCase, SourceContract

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("storage", STORAGES)
class TestMinari(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path, storage: str) -> SourceCase:
        episodes = [
            toy_episode(n, length, info={"x": box()}, seed=n, options={"start": [n]})
            for n, length in enumerate([4, 1, 30, 2])
        ]
        raw = write_minari(tmp_path / "raw", episodes, storage)
        source = Minari()
        return SourceCase(source, source.release_of(raw, "toy/raw-v0"), raw)
