"""A download that turns out to be damaged: the advice that is given cures it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AuditError, IntegrityError
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download
from offline_data.pipeline.ingest.build import StrictError
from tests.toys.d4rl import TOYS, write_d4rl_hdf5
from tests.toys.servers import FileServer

NAME = parse_id("d4rl:hopper-medium-v2")
PATH = "/gym_mujoco_v2/hopper_medium-v2.hdf5"
PUBLISHED = "http://rail.eecs.berkeley.edu/datasets/offline_rl"


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    return write_d4rl_hdf5(tmp_path / "raw.hdf5", TOYS["mujoco-v2"]).read_bytes()


@pytest.fixture
def server(good: bytes) -> Iterator[FileServer]:
    """Serve a file that begins as it should and is damaged after."""
    with FileServer({PATH: good[:600] + bytes(len(good) - 600)}) as running:
        yield running


@pytest.fixture
def settings(server: FileServer, tmp_path: Path) -> Settings:
    return Settings(root=tmp_path / "root", mirrors=((PUBLISHED, server.url),))


def raw(settings: Settings) -> list[str]:
    return [path.name for path in (settings.downloads / "sha256").glob("??/*")]


@pytest.mark.parametrize("force", [False, True])
def test_damaged_then_good(
    force: bool, server: FileServer, good: bytes, settings: Settings
) -> None:
    with pytest.raises(IntegrityError) as caught:
        download(NAME, settings, Options())
    assert "--force" in str(caught.value.shell_hint)
    assert raw(settings) == []
    assert list((settings.downloads / "index").glob("*.json")) == []
    server.files[PATH] = good
    assert download(NAME, settings, Options(force=force)).manifest.counts["transitions"] == 17
    assert not any(path.is_dir() for path in settings.staging.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_damaged_twice_then_good(server: FileServer, good: bytes, settings: Settings) -> None:
    for _ in range(2):
        with pytest.raises(IntegrityError):
            download(NAME, settings, Options())
    assert sum(request.path == PATH for request in server.requests) == 2
    server.files[PATH] = good
    assert not download(NAME, settings, Options()).existed


def test_what_was_asked_to_stay_is_only_forgotten(
    server: FileServer, good: bytes, settings: Settings
) -> None:
    from offline_data.pipeline.ingest import fetch_raw

    fetch_raw(NAME, settings, Options())
    damaged = raw(settings)
    with pytest.raises(IntegrityError):
        download(NAME, settings, Options())
    assert raw(settings) == damaged
    server.files[PATH] = good
    download(NAME, settings, Options())


@pytest.mark.parametrize("kind", [AuditError, StrictError])
def test_a_sound_file_is_not_fetched_again(
    kind: type[IntegrityError],
    server: FileServer,
    good: bytes,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.files[PATH] = good

    def fail(*_arguments: object, **_options: object) -> None:
        raise kind("not the file's fault")

    with monkeypatch.context() as patched:
        # the package has a function of the module's name
        patched.setattr(
            sys.modules["offline_data.pipeline.ingest.shards"], "finish_and_publish", fail
        )
        with pytest.raises(kind, match="not the file's fault"):
            download(NAME, settings, Options())
    assert len(raw(settings)) == 1
    download(NAME, settings, Options())
    assert sum(request.path == PATH for request in server.requests) == 1
