"""Raw files go after a conversion, unless somebody asked for them to stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download, fetch_raw
from offline_data.store.cache import plan_prune
from tests.pipeline.ingest.test_shards import raw_files as raw
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.servers import FileServer

HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
PEN, DOOR = parse_id("d4rl:pen-human-v1"), parse_id("d4rl:door-human-v1")


@pytest.fixture
def online(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    """A host that has the same bytes for two datasets."""
    write_d4rl_hdf5(tmp_path / "raw.hdf5")
    content = (tmp_path / "raw.hdf5").read_bytes()
    files = {f"/hand_dapg_v1/{one.name}.hdf5": content for one in (PEN, DOOR)}
    with FileServer(files) as host:
        yield replace(settings, offline=False, mirrors=((HOST, f"{host.url}/"),))


def test_they_go(online: Settings) -> None:
    download(PEN, online, Options())
    assert raw(online) == []


def test_they_stay_where_another_dataset_keeps_them(online: Settings) -> None:
    download(PEN, online, Options(keep_raw=True))
    (kept,) = raw(online)
    download(DOOR, online, Options())
    assert raw(online) == [kept]
    assert [reason for _, reason in plan_prune(online).kept] == ["requested with --keep-raw"]


def test_they_stay_where_they_are_laid_out(online: Settings) -> None:
    folder = fetch_raw(PEN, online, Options())
    (kept,) = raw(online)
    download(PEN, online, Options())
    assert raw(online) == [kept]
    assert kept.samefile(next(folder.rglob("*.hdf5")))
    assert plan_prune(online).removed == ()


def test_what_a_failed_conversion_left_goes_with_the_next(online: Settings, tmp_path: Path) -> None:
    fetch_raw(PEN, online, Options())
    for path in (online.downloads / "raw").rglob("*.hdf5"):
        path.unlink()
    assert len(raw(online)) == 1
    download(PEN, online, Options())
    assert raw(online) == []
