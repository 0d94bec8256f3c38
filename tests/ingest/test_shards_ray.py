"""Shards on Ray: the same bytes as here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.executors.local import InProcess
from offline_data.executors.ray import RayExecutor
from offline_data.ids import parse_id
from offline_data.ingest import Options, download
from offline_data.testing.servers import FileServer
from offline_data.testing.sharded_toy import PUBLISHED, install, served
from tests.ingest.test_shards import check, left, plain, raw_files

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NAME = "sharded-4x2"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    pytest.importorskip("ray")
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugin")))
    with FileServer(served(NAME)) as server:
        mirrors = ((PUBLISHED, server.url),)
        yield Settings(tmp_path / "root", mirrors=mirrors, minari_path=tmp_path)


@pytest.mark.filterwarnings("default")  # what Ray itself does is its own
def test_bytes_are_those_of_this_process(settings: Settings) -> None:
    dataset = parse_id(f"shardtoy:{NAME}")
    expected = download(dataset, settings, Options(), executor=InProcess())
    ray = RayExecutor("local", workers=2)
    stored = download(dataset, settings, Options(force=True), executor=ray)
    check(stored, range(8))
    assert plain(stored.manifest) == plain(expected.manifest)
    assert (left(settings), raw_files(settings)) == ([], [])
