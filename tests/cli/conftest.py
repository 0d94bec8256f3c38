"""Running one command line inside the test process, and a small dataset to run it on."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from offline_data.testing.toy import toy_batch
from offline_data_cli.main import main
from tests.pipeline.ingest.here import convert_here
from tests.toys.stored import write_stored

RUN = "from offline_data_cli.main import run; run()"
"""The program, for the few tests that need a process of their own."""


def program(*arguments: str, code: str = "", **environ: str) -> Ran:
    """Run the program in a process of its own, after some other code."""
    ended = subprocess.run(
        [sys.executable, "-c", code + RUN, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)


@dataclass(frozen=True)
class Ran:
    """How a command line ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on stdout."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Lines of stdout, cut at tabs."""
        return [line.split("\t") for line in self.out.splitlines()]


class Cli(Protocol):
    """Runs `offline-data` with some arguments."""

    def __call__(self, *arguments: str) -> Ran: ...


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE", "OFFLINE_DATA_MIRRORS", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "root"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def _hang(*_: object) -> None:
    raise TimeoutError("the command hangs")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line as if in a pipe, without input; one that hangs for two minutes fails.

    Conversions run in this process; `test_signals.py` has one in a child.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO())
    convert_here(monkeypatch)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        before = signal.signal(signal.SIGALRM, _hang)
        signal.alarm(120)
        try:
            code = main(arguments)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err or code == 1
        return Ran(code, printed.out, printed.err)

    return run


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was printed, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@dataclass(frozen=True)
class Terminal:
    """A terminal of 80 columns."""

    out: Screen
    err: Screen


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """Return a function that makes the standard streams a terminal in which a line is typed."""

    def make(typed: str = "", width: int = 80) -> Terminal:
        for name in ("FORCE_COLOR", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        streams = Screen(typed), Screen(), Screen()
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        return Terminal(*streams[1:])

    return make


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the dataset `local:toy@1` of 5 transitions in 2 episodes; not to be written."""
    root: Path = tmp_path_factory.mktemp("toy") / "root"
    write_stored(root, "local:toy@1", toy_batch([3, 2], text=True))
    return root


@pytest.fixture
def toy(toy_root: Path, tmp_path: Path) -> Path:
    """A dataset `local:toy@1` of the test's own, under its root; its directory."""
    shutil.copytree(toy_root, tmp_path / "root", dirs_exist_ok=True)
    return tmp_path / "root" / "local" / "toy" / "1"
