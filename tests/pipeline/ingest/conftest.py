"""Conversions in this process, unless a test is about the processes, and a host of shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.base.config import Settings
from tests.pipeline.ingest.here import conversions_start_no_process, processes
from tests.toys.servers import FileServer
from tests.toys.sharded import PUBLISHED, install

__all__ = ["conversions_start_no_process", "processes"]


@pytest.fixture
def sharded(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a host that has what a test gives it of the toy source of shards."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugin")))
    return Settings(tmp_path / "root", mirrors=((PUBLISHED, server.url),), minari_path=tmp_path)
