"""The toy source of JSON-lines shards keeps the contract of every source."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.sharded import ShardToy, write_toy_shards


class TestShardToy(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        source, name = ShardToy(), "sharded-6x3"
        release = source.resolve(name, None, Settings(tmp_path))
        return SourceCase(source, release, write_toy_shards(tmp_path / "raw", name))


class TestUnknownCounts(TestShardToy):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        source, name = ShardToy(), "sharded-3x3-unknown"
        release = source.resolve(name, None, Settings(tmp_path))
        return SourceCase(source, release, write_toy_shards(tmp_path / "raw", name))
