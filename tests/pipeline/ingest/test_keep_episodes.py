"""`--keep-episodes` of a published set: what is here is converted again only where it matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import OfflineError
from offline_data.base.ids import parse_id
from offline_data.formats.catalogues.d4rl import read_table
from offline_data.pipeline.ingest import Options, download, ensure, plan_download
from offline_data.store.reader import open_reader
from tests.oracles import d4rl_transitions
from tests.toys.d4rl import TOYS, write_published
from tests.toys.servers import FileServer

ID = parse_id("d4rl:hopper-medium-v2")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = write_published(tmp_path, TOYS["mujoco-v2"])
    with h5py.File(path, "r+") as file:
        file["next_observations"][8] = -1
    return path


@pytest.fixture
def online(raw: Path, settings: Settings) -> Iterator[Settings]:
    url = read_table()[ID.name].url
    with FileServer({f"/{raw.name}": raw.read_bytes()}) as server:
        mirrors = ((url.rpartition("/")[0], server.url),)
        yield replace(settings, offline=False, mirrors=mirrors)


def test_a_set_is_converted_again_to_keep_its_episodes(online: Settings, raw: Path) -> None:
    kept, offline = Options(keep_episodes=True), replace(online, offline=True)
    first = download(ID, online, Options())
    assert first.manifest.counts["episodes"] == 5
    assert download(ID, online, Options()).existed
    with pytest.raises(OfflineError) as caught:
        download(ID, offline, kept)
    assert "--keep-episodes" in str(caught.value.shell_hint)
    plan = plan_download(ID, online, kept)
    assert plan.existing is None
    second = download(ID, online, kept)
    assert (second.existed, second.path) == (False, first.path)
    assert second.manifest.counts["episodes"] == 4
    assert download(ID, offline, kept).existed
    ted = download(ID, offline, replace(kept, layout="ted"))
    assert ted.manifest.layout == "ted"
    assert ensure(str(ID), settings=offline) == first.path
    found: dict[Any, Any] = open_reader(first.path).transitions_at(np.arange(17))
    expected = d4rl_transitions(raw, horizon=1000, keep_episodes=True)
    for row, wanted in enumerate(expected):
        np.testing.assert_array_equal(found["observation",][row], wanted.observation)
        np.testing.assert_array_equal(found["next", "observation"][row], wanted.next_observation)
