"""The command as a user starts it: with an environment of its own, and where it matters a process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from offline_data_cli.main import main
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.servers import FileServer, HubServer

COMMAND = (sys.executable, "-c", "from offline_data_cli.main import run; run()")
DOOR = "minari:D4RL/door/human-v2"
PEN = "d4rl:pen-human-v1"
PEN_FILE = "/hand_dapg_v1/pen-human-v1.hdf5"
D4RL_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
LENGTHS = (400, 1, 700, 300)
"""Episodes of the dataset `DOOR` on the hub of this machine."""


@dataclass(frozen=True)
class Shell:
    """Starts `offline-data` with a root, a Minari folder and caches under one folder."""

    folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def environ(self) -> dict[str, str]:
        dropped = ("OFFLINE_DATA_", "HF_", "MINARI_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        return {
            **kept,
            "OFFLINE_DATA_HOME": str(self.root),
            "MINARI_DATASETS_PATH": str(self.folder / "minari"),
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "COLUMNS": "80",
            **self.extra,
        }

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        if "PYTHONPATH" in self.extra:  # something watches over the process
            process = self.start(*arguments)
            out, err = process.communicate(timeout=120)
            ended = process.returncode
        else:
            with (
                patch.dict(os.environ, self.environ, clear=True),
                patch("sys.stdin", io.StringIO()),
                redirect_stdout(io.StringIO()) as stdout,
                redirect_stderr(io.StringIO()) as stderr,
            ):
                ended = main(arguments)
            out, err = stdout.getvalue(), stderr.getvalue()
        assert ended == code, f"{arguments}: {ended}\n{out}\n{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(arguments, ended, out, err)

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def datasets(self) -> list[str]:
        return [entry["id"] for entry in self.json("list")]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository on the hub that has `DOOR`; not to be written."""
    folder: Path = tmp_path_factory.mktemp("hub")
    episodes = [toy_episode(e, length, seed=e + 5) for e, length in enumerate(LENGTHS)]
    write_minari(folder / "door" / "human-v2", episodes)
    return folder


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer({"farama-minari/D4RL": repository}) as server:
        yield server


@pytest.fixture(scope="session")
def pen(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of `PEN`."""
    return write_d4rl_hdf5(tmp_path_factory.mktemp("pen") / "pen.hdf5").read_bytes()


@pytest.fixture
def host(pen: bytes) -> Iterator[FileServer]:
    with FileServer({PEN_FILE: pen}) as server:
        yield server
