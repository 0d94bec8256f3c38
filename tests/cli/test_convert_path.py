"""`convert PATH`: what is no dataset is named in one line, at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from offline_data.testing.d4rl_toy import TOYS, write_d4rl_hdf5
from offline_data.testing.minari_toy import write_minari
from offline_data.testing.minari_values import toy_episode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli

COMMAND = (sys.executable, "-c", "from offline_data_cli.main import run; run()")


def _socket(path: Path) -> Path:
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    return path


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


SPECIAL: dict[str, tuple[Callable[[Path], Path], str]] = {
    "fifo": (_fifo, "a named pipe"),
    "socket": (_socket, "a socket"),
    "zero": (lambda path: _link(path, "/dev/zero"), "a device"),
}


@pytest.mark.parametrize("source", [None, "d4rl", "minari", "local"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, source: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    make, named = SPECIAL[kind]
    path = make(tmp_path / "mine.hdf5")
    more = ("--from", source) if source else ()
    ran = subprocess.run(
        [*COMMAND, "convert", str(path), "mine", "--root", str(tmp_path / "root"), *more],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ran.returncode == 5
    assert f"Cannot tell what {path} is: it is {named}" in ran.stderr


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "it is empty"),
    "page": (lambda path: path.write_text("<!DOCTYPE html><title>404"), "it is a web page"),
    "pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "it is a Git LFS pointer",
    ),
    "text": (lambda path: path.write_text("hello"), "it begins with b'hello'"),
    "hdf5": (_hdf5, "it is HDF5 without D4RL or Minari data"),
    "folder": (lambda path: path.mkdir(), "it is a folder without a Minari dataset"),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_a_file_is_instead(cli: Cli, tmp_path: Path, kind: str) -> None:
    make, said = FILES[kind]
    path = tmp_path / "mine.hdf5"
    make(path)
    ran = cli("convert", str(path), "mine")
    assert ran.code == 5
    assert f"Cannot tell what {path} is: {said}" in ran.err
    assert "--from d4rl|local|minari" in ran.err


def test_a_damaged_hdf5_file_is_called_damaged(cli: Cli, tmp_path: Path) -> None:
    path = write_d4rl_hdf5(tmp_path / "mine.hdf5")
    path.write_bytes(path.read_bytes()[:700])
    ran = cli("convert", str(path), "mine")
    assert ran.code == 5
    assert f"{path} is damaged or cut short" in ran.err


def test_several_formats_are_a_question(cli: Cli, tmp_path: Path) -> None:
    folder = write_minari(tmp_path / "one-v0", [toy_episode(0, 4)])
    (folder / "manifest.json").write_text("{}")
    ran = cli("convert", str(folder), "mine")
    assert ran.code == 2
    assert f"Cannot tell what {folder} is: it looks like local and minari data" in ran.err


@pytest.mark.parametrize("name", ["loop", "long", "under a file"])
def test_paths_that_lead_nowhere(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    path = {"loop": "loop", "long": "x" * 300, "under a file": "file/x"}[name]
    ran = cli("convert", str(tmp_path / path), "mine")
    assert ran.code == (3 if name == "under a file" else 2)
    assert "unexpected" not in ran.err
    assert str(tmp_path / path)[:200] in ran.err.replace("\n", "")


def test_a_d4rl_file_by_any_name(cli: Cli, tmp_path: Path) -> None:
    path = write_d4rl_hdf5(tmp_path / "data", TOYS["adroit"])
    ran = cli("convert", str(path), "mine", "--json")
    assert ran.code == 0
    assert ran.json[0]["transitions"] == 15


def test_kept_episodes_on_a_command_line(cli: Cli, tmp_path: Path) -> None:
    path = write_d4rl_hdf5(tmp_path / "mine.hdf5", TOYS["bullet"])
    with h5py.File(path, "a") as file:
        file["next_observations"][1] += 1
    ran = cli("convert", str(path), "cut", "--json")
    assert ran.json[0]["episodes"] == 4
    assert "In 1 row inside episodes" in ran.err
    ran = cli("convert", str(path), "kept", "--keep-episodes", "--json")
    assert ran.json[0]["episodes"] == 3
    assert "the episodes are kept" in ran.err
    notes = cli("info", "local:kept", "--json").json["notes"]
    assert [note for note in notes if note.startswith("In 1 row inside episodes")]
