"""A command whose process is ended by a signal: a sentence, its exit code, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import program

CODE = """
import os, signal, sys, time
from offline_data.base.errors import StepError
from offline_data.pipeline.jobs.processes.child import report_place
from offline_data_cli import watched
watched.may_fork = True
print("once")
try:
    watched.run_watched()
except StepError as error:
    print(error.message)
    sys.exit(1)
"""


def run(rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE + rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("rest", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("print('done')", 0, "done\n"),
        (
            "report_place('the function f on rows 3 to 9'); os.kill(os.getpid(), signal.SIGKILL)",
            1,
            "The process was ended by SIGKILL while it ran the function f on rows 3 to 9\n",
        ),
        (
            "os.abort()",
            1,
            "The process was ended by SIGABRT before it called a function\n",
        ),
    ],
)
def test_it_ends_as_the_command_does(rest: str, code: int, said: str) -> None:
    with run(rest) as ended:
        assert ended.communicate(timeout=120)[0] == f"once\n{said}"
    assert ended.returncode == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_command(number: signal.Signals) -> None:
    handler = "signal.signal(number, lambda *_: sys.exit(9))"
    rest = f"for number in (signal.SIGINT, signal.SIGTERM): {handler}\n"
    with run(f"{rest}print(os.getpid(), flush=True); time.sleep(600)") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "once\n"
        child = int(running.stdout.readline())
        assert child != running.pid
        running.send_signal(number)
        assert running.wait(120) == (-9 if number == signal.SIGKILL else 9)
    end = time.monotonic() + 60
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--batched", "4"), ("--by", "episode"), ("--dry-run",)])
def test_a_function_that_crashes(more: tuple[str, ...], toy: Path, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("import ctypes\ndef crash(td):\n    ctypes.string_at(0)\n")
    command = ("preprocess", "toy", "--fn", f"{tmp_path}/f.py:crash", "--out", "new", *more)
    ran = program(*command, OFFLINE_DATA_HOME=os.fspath(toy.parents[2]))
    assert (ran.code, ran.out) == (1, "")
    said = (
        "error: The process was ended by SIGSEGV while it ran the function crash on rows 0 to 4\n"
    )
    assert ran.err.startswith(said)
    assert ran.err.count("\n") == 2
