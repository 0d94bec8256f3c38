"""Signals at any moment: 130 or the command's own end, nothing staged left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

SAID = "error: interrupted; run the same command again to continue\n"

_TIMED = """
import os, signal, sys, threading, time
delay, number = float(sys.argv.pop(1)), int(sys.argv.pop(1))
sys.argv[0] = "offline-data"
from offline_data_cli.main import run

def strike():
    time.sleep(delay)
    os.kill(os.getpid(), number)

def start(event, arguments):
    # the first thing that the program does, once Python is up, is to set its handlers
    if event == "import" and arguments[0] == "logging":
        started.set()

started = threading.Event()
sys.addaudithook(start)
def wait():
    started.wait(20)
    strike()

threading.Thread(target=wait, daemon=True).start()
run()
"""

_WAITING = """
import sys, time
from offline_data.reports import environment

def wait(settings):
    print("ready", file=sys.stderr, flush=True)
    while True:
        try:
            time.sleep(60)
        finally:
            time.sleep(PAUSE)

environment.environment = wait
from offline_data_cli.main import run
sys.argv = ["offline-data", "env"]
run()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("signals")
    path = folder / "local" / "toy" / "1"
    path.mkdir(parents=True)
    write_toy(path, [toy_batch([3, 2], text=True)])
    return folder


COMMANDS = (("--version",), ("list",), ("head", "local:toy"), ("info", "local:toy", "--json"))
DELAYS = (0.0, 0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("arguments", COMMANDS)
def test_an_interrupt_at_any_time(arguments: tuple[str, ...], delay: float, root: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _TIMED, str(delay), str(int(signal.SIGINT)), *arguments],
        env={**os.environ, "OFFLINE_DATA_HOME": str(root), "OFFLINE_DATA_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode in {0, 130}, ended.stderr
    for word in ("Traceback", "unexpected", "Exception ignored"):
        assert word not in ended.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_each_ends_cleanly_and_twice_is_once(name: str) -> None:
    code = _WAITING.replace("PAUSE", "0.5")
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        for _ in range(2):  # as a terminal that closes does
            process.send_signal(getattr(signal, name))
            time.sleep(0.05)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, SAID)


def test_an_interrupt_before_the_command_begins_is_told() -> None:
    code = """
import os, signal, sys
from offline_data_cli import streams

real = streams.guard_streams

def guard():
    real()
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass

streams.guard_streams = guard
from offline_data_cli.main import run
sys.argv = ["offline-data", "env"]
run()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (130, SAID)


def test_a_signal_that_is_ignored_stays_so() -> None:
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + _WAITING
    with subprocess.Popen(
        [sys.executable, "-c", code.replace("PAUSE", "0")], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)  # nohup
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 130


def test_an_error_that_a_library_makes_of_an_interrupt_is_an_interrupt() -> None:
    code = """
import os, signal, sys
from offline_data.reports import environment

def fail(settings):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
    except KeyboardInterrupt as error:
        raise ImportError("numpy could not be loaded") from error

environment.environment = fail
from offline_data_cli.main import run
sys.argv = ["offline-data", "env"]
run()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (130, SAID)


def test_a_hint_of_the_one_who_was_interrupted_is_shown() -> None:
    code = """
import sys
from offline_data.reports import environment

def fail(settings):
    raise KeyboardInterrupt("interrupted; run it again with --resume to continue")

environment.environment = fail
from offline_data_cli.main import run
sys.argv = ["offline-data", "env"]
run()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    said = "error: interrupted; run it again with --resume to continue\n"
    assert (ended.returncode, ended.stderr) == (130, said)


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_conversion_leaves_nothing_staged(name: str, tmp_path: Path) -> None:
    from offline_data.testing.d4rl_toy import TOYS, write_d4rl_hdf5

    raw = write_d4rl_hdf5(tmp_path / "mine.hdf5", TOYS["mujoco-v2"])
    code = f"""
import sys, time
from offline_data.ingest import build

class Slow(build.DatasetWriter):
    def finish(self):
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)

build.DatasetWriter = Slow
from offline_data_cli.main import run
sys.argv = ["offline-data", "convert", {str(raw)!r}, "mine", "--from", "d4rl"]
run()
"""
    root = tmp_path / "root"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "OFFLINE_DATA_HOME": str(root), "OFFLINE_DATA_WORKERS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, SAID)
    assert [path for path in (root / ".staging").iterdir() if path.is_dir()] == []
    assert not list(root.rglob("manifest.json"))
