"""Hosts that are down, lie, cut and stall, as the command's user meets them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offline_data.store.reader import open_reader
from offline_data.testing.d4rl_toy import write_d4rl_hdf5
from offline_data.testing.hub_server import HubServer
from offline_data.testing.minari_toy import write_minari
from offline_data.testing.minari_values import toy_episode
from offline_data.testing.servers import Answer, Fault, FileServer
from tests.stories.conftest import Shell

DOOR = "minari:D4RL/door/human-v2"
PEN = "d4rl:pen-human-v1"
FILE = "/hand_dapg_v1/pen-human-v1.hdf5"
D4RL_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
PAGE = Answer(b"<!DOCTYPE html><title>Moved</title>", headers={"Content-Type": "text/html"})
LENGTHS = (400, 1, 700, 300)


@pytest.fixture
def pen(tmp_path: Path) -> bytes:
    write_d4rl_hdf5(tmp_path / "pen.hdf5")
    return (tmp_path / "pen.hdf5").read_bytes()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    episodes = [toy_episode(e, length, seed=e + 5) for e, length in enumerate(LENGTHS)]
    write_minari(tmp_path / "repo" / "door" / "human-v2", episodes)
    return tmp_path / "repo"


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer({"farama-minari/D4RL": repository}) as server:
        yield server


def test_places_that_fail_are_passed_over_and_named(shell: Shell, pen: bytes) -> None:
    with FileServer({FILE: pen}) as right, FileServer({}) as lying:
        lying.always(FILE, Fault(PAGE))
        dead = "http://127.0.0.1:9"
        mirrors = ";".join(f"{D4RL_HOST}={host}/" for host in (lying.url, right.url))
        user = Shell(shell.folder, {"OFFLINE_DATA_MIRRORS": f"{D4RL_HOST}={dead}/;{mirrors}"})
        user.run("download", PEN)
        (file,) = user.json("info", PEN)["files"]
    assert file["url"] == right.at(FILE)
    assert file["sha256"] == hashlib.sha256(pen).hexdigest()
    assert [reason.partition(": ")[0] for reason in file["failed"]] == [
        "127.0.0.1:9",
        lying.url.removeprefix("http://"),
    ]
    shown = user.run("info", PEN).stdout
    assert "failed hosts" in shown
    assert lying.url.removeprefix("http://") in shown


def test_a_connection_lost_ten_times_and_killed_twice(
    shell: Shell, hub: HubServer, repository: Path
) -> None:
    content = (repository / "door/human-v2/data/main_data.hdf5").read_bytes()
    blob = f"/cdn/{hashlib.sha256(content).hexdigest()}"
    user = Shell(shell.folder, {"HF_ENDPOINT": hub.url})
    tenth = len(content) // 12
    for _ in range(2):
        hub.script(blob, *[Fault(cut_after=tenth)] * 3, Fault(stall_after=tenth))
        process = user.start("download", DOOR)
        wait_for_requests(hub, blob, 4 + len(of(hub, blob)) // 4 * 4)
        time.sleep(0.2)
        process.kill()
        process.communicate()
        assert user.datasets() == []
    hub.script(blob, *[Fault(cut_after=tenth)] * 2)
    before = len(of(hub, blob))
    got = user.json("download", DOOR)
    got = got[0] if isinstance(got, list) else got
    asked = [int(r.headers["range"].removeprefix("bytes=").rstrip("-")) for r in of(hub, blob)[1:]]
    assert asked == sorted(asked)
    assert min(asked[before - 1 :]) >= 8 * tenth
    reader = open_reader(Path(got["path"]))
    files = {file["path"]: file for file in reader.manifest.files}
    assert files["data/main_data.hdf5"]["sha256"] == hashlib.sha256(content).hexdigest()
    first = reader.transitions_at(np.arange(sum(LENGTHS)))["observation",][:, 0]
    assert first[:3].tolist() == [1, 2, 3]
    assert first[-1] == 1000 * 3 + LENGTHS[3]


def of(hub: HubServer, path: str) -> list:  # type: ignore[type-arg]
    return [request for request in hub.requests if request.path == path]


def wait_for_requests(hub: HubServer, path: str, count: int) -> None:
    end = time.monotonic() + 30
    while len(of(hub, path)) < count:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (Fault(Answer(b"", 403)), 4, "403"),
        (Fault(Answer(b"", 404)), 3, "404"),
        (Fault(PAGE), 5, "web page"),
        (Fault(Answer(b"", 429, {"Retry-After": "7200"})), 6, "7200"),
    ],
)
def test_the_only_place_fails(
    fault: Fault, code: int, words: str, shell: Shell, hub: HubServer, repository: Path
) -> None:
    content = (repository / "door/human-v2/data/main_data.hdf5").read_bytes()
    hub.always(f"/cdn/{hashlib.sha256(content).hexdigest()}", fault)
    user = Shell(shell.folder, {"HF_ENDPOINT": hub.url})
    result = user.run("download", DOOR, code=code)
    assert words in result.stderr
    assert "main_data.hdf5" in result.stderr
    assert "hint: " in result.stderr
    assert user.datasets() == []
    hub.clear_script()
    user.run("download", DOOR)


def test_every_place_is_named_on_a_line_of_its_own(shell: Shell, pen: bytes) -> None:
    with FileServer({FILE: pen}) as first, FileServer({FILE: pen}) as second:
        first.always(FILE, Fault(PAGE))
        second.always(FILE, Fault(Answer(b"", 403)))
        mirrors = f"http{D4RL_HOST[4:]}={first.url}/;https{D4RL_HOST[4:]}={second.url}/"
        published = {"http_proxy": first.url, "https_proxy": "http://127.0.0.1:9"}
        user = Shell(shell.folder, {"OFFLINE_DATA_MIRRORS": mirrors, **published})
        lines = user.run("download", PEN, code=3).stderr.splitlines()
    told = [line for line in lines if line.startswith("  ")]
    assert [line.split("/")[2].partition(":")[0] for line in told] == [
        "127.0.0.1",
        "rail.eecs.berkeley.edu",
        "127.0.0.1",
        "rail.eecs.berkeley.edu",
    ]
    assert user.datasets() == []
