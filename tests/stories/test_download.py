"""A user's first hour: download, look, verify, sample, work offline, delete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.d4rl_toy import write_d4rl_hdf5
from offline_data.testing.hub_server import HubServer
from offline_data.testing.minari_toy import write_minari
from offline_data.testing.minari_values import toy_episode
from offline_data.testing.servers import FileServer
from tests.stories.conftest import Shell

DOOR = "minari:D4RL/door/human-v2"
PEN = "d4rl:pen-human-v1"
LENGTHS = (7, 1, 12, 5)
D4RL_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    episodes = [toy_episode(e, length, seed=e + 5) for e, length in enumerate(LENGTHS)]
    write_minari(tmp_path / "repo" / "door" / "human-v2", episodes)
    with HubServer({"farama-minari/D4RL": tmp_path / "repo"}) as server:
        yield server


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FileServer]:
    write_d4rl_hdf5(tmp_path / "pen.hdf5")
    content = (tmp_path / "pen.hdf5").read_bytes()
    with FileServer({"/hand_dapg_v1/pen-human-v1.hdf5": content}) as server:
        yield server


def online(shell: Shell, hub: HubServer) -> Shell:
    return Shell(shell.folder, {"HF_ENDPOINT": hub.url})


def check_door(reader: DatasetReader) -> None:
    """Values after the disk against the numbers they were made of."""
    found = reader.transitions_at(np.arange(sum(LENGTHS)))
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    step = np.concatenate([np.arange(length) for length in LENGTHS])
    code = 1000 * episode + step + 1
    np.testing.assert_array_equal(found["observation",][:, 0], code)
    np.testing.assert_array_equal(found["next", "observation"][:, 0], code + 1)
    np.testing.assert_array_equal(found["next", "reward"][:, 0], code / 4)
    np.testing.assert_array_equal(reader.episodes["seed",], np.arange(len(LENGTHS)) + 5)


def test_a_minari_dataset_from_the_hub_to_batches_and_away(shell: Shell, hub: HubServer) -> None:
    user = online(shell, hub)
    got = user.json("download", DOOR)
    got = got[0] if isinstance(got, list) else got
    commit = got["id"].rpartition("@")[2]
    assert len(commit) == 40
    reader = open_reader(Path(got["path"]))
    check_door(reader)
    files = {file["path"]: file for file in reader.manifest.files}
    assert files["data/main_data.hdf5"]["url"].startswith(
        "hf://datasets/farama-minari/D4RL@" + commit
    )
    assert len(files["data/main_data.hdf5"]["sha256"]) == 64
    assert reader.manifest.licence == "CC-BY-4.0"

    info = user.json("info", DOOR)
    expected = {"id", "path", "layout", "transitions", "episodes", "bytes", "schema", "source"}
    assert expected <= set(info)
    assert (info["transitions"], info["episodes"]) == (sum(LENGTHS), len(LENGTHS))
    assert user.run("verify", DOOR).returncode == 0
    assert user.datasets() == [got["id"]]
    head = user.run("head", DOOR, "-n", "3").stdout
    assert "2.125" in head
    assert user.json("stats", DOOR)
    assert user.json("sample", DOOR, "--batch", "4")
    again = user.json("download", DOOR)
    assert (again[0] if isinstance(again, list) else again)["existed"] is True

    assert user.run("rm", DOOR, code=2).stdout == ""
    assert user.datasets() == [got["id"]]
    user.run("rm", DOOR, "--yes")
    assert user.datasets() == []
    assert not Path(got["path"]).exists()


def test_what_is_here_works_without_any_socket(shell: Shell, hub: HubServer) -> None:
    online(shell, hub).run("download", DOOR)
    code = (
        "import socket, sys\n"
        "def forbidden(*_, **__): raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.socket.connect_ex = forbidden\n"
        "socket.create_connection = socket.getaddrinfo = forbidden\n"
        "from offline_data_cli.main import main\n"
        "codes = [main([*verb.split(), '-q']) for verb in sys.argv[1:]]\n"
        "import offline_data\n"
        f"ds = offline_data.load_dataset({DOOR!r}, batch_size=4)\n"
        "assert len(ds) == 25 and ds.sample().shape == (4,)\n"
        "sys.exit(max(codes))\n"
    )
    verbs = [f"{verb} {DOOR}" for verb in ("download", "info", "verify", "head", "stats", "sample")]
    done = subprocess.run(
        [sys.executable, "-c", code, *verbs, "list"],
        env={**shell.environ, "OFFLINE_DATA_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("flag", ["--offline", "OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"])
def test_what_is_not_here_says_so_offline(shell: Shell, hub: HubServer, flag: str) -> None:
    user = Shell(shell.folder, {"HF_ENDPOINT": hub.url})
    if flag.startswith("-"):
        error = user.json("download", DOOR, flag, code=6)["error"]
    else:
        error = Shell(shell.folder, {**user.extra, flag: "1"}).json("download", DOOR, code=6)[
            "error"
        ]
    assert error["code"] == "offline"
    assert error["message"].endswith(f"online, run: offline-data download {DOOR}")
    assert flag in error["hint"]


def test_a_typo_offers_the_nearest(shell: Shell, hub: HubServer) -> None:
    user = online(shell, hub)
    error = user.json("download", "minari:D4RL/dor/human-v2", code=3)["error"]
    assert "D4RL/door/human-v2" in error["hint"]
    error = user.json("download", "d4rl:pen-humn-v1", code=3)["error"]
    assert "pen-human-v1" in error["hint"]
    assert user.json("download", "minari:../../etc", code=2)["error"]["code"] == "invalid_id"


def test_a_d4rl_dataset_over_a_mirror(shell: Shell, host: FileServer) -> None:
    user = Shell(shell.folder, {"OFFLINE_DATA_MIRRORS": f"{D4RL_HOST}={host.url}/"})
    dry = user.json("download", PEN, "--dry-run")
    assert user.datasets() == []
    assert "pen-human-v1.hdf5" in str(dry)
    user.run("download", PEN, "--layout", "ted")
    info: dict[str, Any] = user.json("info", PEN)
    assert info["layout"] == "ted"
    assert info["licence"] == "CC-BY-4.0"
    user.run("download", PEN, "--layout", "compact")
    assert user.json("info", PEN)["layout"] == "compact"
    assert user.run("verify", PEN).returncode == 0
    assert user.json("sample", PEN, "--batch", "8")


def test_a_page_of_html_is_not_a_dataset(shell: Shell) -> None:
    page = b"<!DOCTYPE html><title>Moved</title>"
    with FileServer({"/hand_dapg_v1/pen-human-v1.hdf5": page}) as host:
        mirrors = ";".join(f"{scheme}{D4RL_HOST[4:]}={host.url}/" for scheme in ("http", "https"))
        user = Shell(shell.folder, {"OFFLINE_DATA_MIRRORS": mirrors})
        user.run("download", PEN, "--offline", code=6)
        local = shell.folder / "page.hdf5"
        local.write_bytes(page)
        error = user.json("convert", str(local), "page", "--from", "d4rl", code=5)["error"]
        assert "web page" in error["message"]
    assert user.datasets() == []
