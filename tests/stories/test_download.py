"""A user's first hour, and hosts that are down, lie, cut and stall."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.store.reader import DatasetReader, open_reader
from tests.pipeline.jobs.processes.waiting import wait_until
from tests.stories.conftest import D4RL_HOST, DOOR, LENGTHS, PEN, PEN_FILE, Shell
from tests.toys.servers import Answer, Fault, FileServer, HubServer

pytestmark = pytest.mark.slow

PAGE = Answer(b"<!DOCTYPE html><title>Moved</title>", headers={"Content-Type": "text/html"})


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
    assert "0.75" in head
    assert user.json("stats", DOOR)
    assert user.json("sample", DOOR, "--batch", "4")
    again = user.json("download", DOOR)
    assert (again[0] if isinstance(again, list) else again)["existed"] is True

    assert user.run("rm", DOOR, code=2).stdout == ""
    assert user.datasets() == [got["id"]]
    user.run("rm", DOOR, "--yes")
    assert user.datasets() == []
    assert not Path(got["path"]).exists()


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


@pytest.mark.usefixtures("no_waits")
def test_places_that_fail_are_passed_over_and_named(shell: Shell, pen: bytes) -> None:
    with FileServer({PEN_FILE: pen}) as right, FileServer({}) as lying:
        lying.always(PEN_FILE, Fault(PAGE))
        dead = "http://127.0.0.1:9"
        mirrors = ";".join(f"{D4RL_HOST}={host}/" for host in (lying.url, right.url))
        user = Shell(shell.folder, {"OFFLINE_DATA_MIRRORS": f"{D4RL_HOST}={dead}/;{mirrors}"})
        user.run("download", PEN)
        (file,) = user.json("info", PEN)["files"]
    assert file["url"] == right.at(PEN_FILE)
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
    for tenths in (4, 8):
        hub.script(blob, *[Fault(cut_after=tenth)] * 3, Fault(stall_after=tenth))
        process = user.start("download", DOOR)
        wait_for_bytes(user, tenth * tenths)
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


def wait_for_bytes(user: Shell, count: int) -> None:
    """Wait until a file that is not whole yet has `count` bytes."""

    def arrived() -> bool:
        largest = 0
        for part in (user.root / ".downloads" / "partial").glob("*.part"):
            with suppress(FileNotFoundError):  # whole by now
                largest = max(largest, part.stat().st_size)
        return largest >= count

    wait_until(arrived)


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
