"""Commands on a file system without locks, and on files from the past and the future."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.toys.d4rl import TOYS, write_d4rl_hdf5


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("without_locks", "toy")
@pytest.mark.parametrize(
    "line",
    [
        "convert raw.hdf5 new --from d4rl",
        "preprocess local:toy --step clip:action,low=-1,high=1 --out new",
        "download d4rl:hopper-medium-v2 --offline",
    ],
)
def test_what_writes_says_what_to_do(
    line: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_d4rl_hdf5(tmp_path / "raw.hdf5", TOYS["mujoco-v2"])
    before = sorted((tmp_path / "root").rglob("manifest.json"))
    ran = cli(*line.split())
    assert ran.code == 2, ran.err
    assert "has no locks (No locks available)" in ran.err
    assert "--root DIR" in ran.err
    assert sorted((tmp_path / "root").rglob("manifest.json")) == before


@pytest.mark.usefixtures("without_locks", "toy")
@pytest.mark.parametrize("line", ["list", "info local:toy", "verify local:toy", "cache ls"])
def test_what_reads_needs_none(line: str, cli: Cli) -> None:
    ran = cli(*line.split())
    assert (ran.code, ran.err.count("locks (")) == (0, 0), ran.err


def test_a_file_from_the_future_is_of_today(cli: Cli, tmp_path: Path, toy: Path) -> None:
    part = tmp_path / "root/.downloads/partial/x.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"abc")
    for time in (2**33, 0):  # in the year 2242; in 1970
        os.utime(part, (time, time))
        os.utime(toy / "manifest.json", (time, time))
        (item,) = (i for i in cli("cache", "ls", "--json").json["items"] if i["kind"] == "partial")
        assert (item["age"] == 0) == (time > 0)
        assert cli("verify", "local:toy").code == 0
    os.utime(part, (2**33, 2**33))
    ran = cli("cache", "prune", "--older-than", "0", "--yes")
    assert not part.exists(), ran
