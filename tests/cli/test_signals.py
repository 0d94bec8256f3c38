"""Signals at any moment: 130 or the command's own end, nothing staged left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import RUN, program
from tests.toys.d4rl import TOYS, write_d4rl_hdf5

pytestmark = pytest.mark.slow

SAID = "error: interrupted; run the same command again to continue\n"

_TIMED = """
import os, signal, sys, threading, time
delay = float(sys.argv.pop(1))
sys.argv[0] = "offline-data"

def start(event, arguments):
    # the first thing that the program does, once Python is up, is to set its handlers
    if event == "import" and arguments[0] == "logging":
        started.set()

started = threading.Event()
sys.addaudithook(start)
def wait():
    started.wait(120)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=wait, daemon=True).start()
"""

_ENV = """
import os, signal, sys, time
from offline_data.reports import environment

def strike():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass

def wait(settings):
    while True:
        try:
            print("ready", file=sys.stderr, flush=True)
            time.sleep(600)
        finally:
            if twice is not None:  # as a terminal that closes does
                signal.raise_signal(twice)
            print("cleaned up", file=sys.stderr, flush=True)

twice = None
environment.environment = wait
sys.argv = ["offline-data", "env"]
"""
"""Makes `env` wait for a signal."""


@contextmanager
def started(code: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python program and wait until it says that it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        yield process


@pytest.mark.parametrize(
    ("arguments", "delay"),
    [(("list",), 0.0), (("list",), 0.05), (("info", "local:toy", "--json"), 0.2)],
)
def test_an_interrupt_at_any_time(arguments: tuple[str, ...], delay: float, toy_root: Path) -> None:
    where = {"OFFLINE_DATA_HOME": str(toy_root), "OFFLINE_DATA_OFFLINE": "1"}
    ran = program(str(delay), *arguments, code=_TIMED, **where)
    assert ran.code in {0, 130}, ran.err
    assert (ran.code == 130) == ("interrupted; run the same command" in ran.out + ran.err)
    for word in ("Traceback", "unexpected", "Exception ignored"):
        assert word not in ran.err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_each_ends_cleanly_and_twice_is_once(name: str) -> None:
    with started(f"{_ENV}twice = signal.{name}\n{RUN}") as process:
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, f"cleaned up\n{SAID}")


def test_a_signal_that_is_ignored_stays_so() -> None:
    with started(f"{_ENV}signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{RUN}") as process:
        process.send_signal(signal.SIGHUP)  # nohup
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 130


_BEFORE = """
from offline_data_cli import streams
real = streams.guard_streams
def guard():
    real()
    strike()
streams.guard_streams = guard
"""
_PARSING = """
import typer.core
real = typer.core.TyperGroup.make_context
def make_context(self, *given, **named):
    strike()
    return real(self, *given, **named)
typer.core.TyperGroup.make_context = make_context
"""
_TURNED = """
def fail(settings):
    try:
        strike()
    except KeyboardInterrupt as error:
        raise ImportError("numpy could not be loaded") from error
environment.environment = fail
"""


@pytest.mark.parametrize("how", [_BEFORE, _PARSING, _TURNED], ids=["before", "parsing", "turned"])
def test_an_interrupt_is_told_as_one(how: str) -> None:
    ran = program(code=_ENV + how)
    assert (ran.code, ran.err) == (130, SAID)


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_conversion_leaves_nothing_staged(name: str, tmp_path: Path) -> None:
    raw = write_d4rl_hdf5(tmp_path / "mine.hdf5", TOYS["mujoco-v2"])
    code = f"""
import sys, time
from offline_data.pipeline.ingest.conversion import ConversionProcess
from offline_data.store.writer import DatasetWriter

DatasetWriter.finish = lambda self: time.sleep(60)  # in the child, which is forked
step = ConversionProcess.step
def said(self):
    print("ready", file=sys.stderr, flush=True)
    return step(self)
ConversionProcess.step = said
sys.argv = ["offline-data", "convert", {str(raw)!r}, "mine", "--from", "d4rl"]
"""
    root = tmp_path / "root"
    with started(code + RUN) as process:
        while not list((root / ".staging").glob("*/dataset/**/*.memmap")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.replace("ready\n", "") == SAID
    assert [path for path in (root / ".staging").iterdir() if path.is_dir()] == []
    assert not list(root.rglob("manifest.json"))
