"""Conversions in this process, a host with a dataset of one file, and a source with shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from tests.pipeline.ingest.here import conversions_start_no_process, processes
from tests.toys.d4rl import TOYS, write_d4rl_hdf5
from tests.toys.servers import FileServer
from tests.toys.sharded import PUBLISHED, install, served

__all__ = ["conversions_start_no_process", "processes"]

HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
HOPPER = "/gym_mujoco_v2/hopper_medium-v2.hdf5"
SHARDS = "sharded-3x2"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Host of `d4rl:hopper-medium-v2` (17 transitions) and `shardtoy:sharded-3x2`."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugin")))
    content = write_d4rl_hdf5(tmp_path / "raw.hdf5", TOYS["mujoco-v2"]).read_bytes()
    with FileServer({HOPPER: content, **served(SHARDS)}) as running:
        yield running


@pytest.fixture
def online(server: FileServer, tmp_path: Path) -> Settings:
    """Settings of a machine that reaches the host."""
    mirrors = ((HOST, server.url), (PUBLISHED, server.url))
    return Settings(tmp_path / "root", workers=1, mirrors=mirrors)


@pytest.fixture
def offline(online: Settings) -> Settings:
    """The same machine without a network."""
    return replace(online, offline=True)


@pytest.fixture
def elsewhere(online: Settings, tmp_path: Path) -> Settings:
    """Another machine."""
    return replace(online, root=tmp_path / "elsewhere")


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Write `datasets.toml`, one line of its table for each argument."""

    def write(*lines: str) -> Path:
        file = tmp_path / "project" / "datasets.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(["[datasets]", *lines, ""]))
        return file

    return write
