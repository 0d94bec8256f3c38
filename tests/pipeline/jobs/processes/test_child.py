"""A child answers in order, says how it failed or died, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from offline_data.base.errors import OfflineDataError
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from offline_data.pipeline.jobs.processes.child import how_ended, limit_resources
from offline_data.pipeline.jobs.processes.protocol import pack_function
from tests.pipeline.jobs.executors.jobs import only_here
from tests.pipeline.jobs.processes.waiting import ended, wait_until


def test_answers_come_in_order_whatever_is_queued() -> None:
    def double(rows: np.ndarray) -> np.ndarray:
        return rows * 2

    requests = [np.arange(i, i + 50_000) for i in range(8)]
    with Child(double) as child:
        for request in requests:  # 3 MB, and as much of answers, before one is taken
            child.send(request)
        for request in requests:
            np.testing.assert_array_equal(child.receive(), request + request)


def test_bytes_of_a_function_serve_processes_that_stay() -> None:
    factor = 7
    function = pack_function(lambda x: (os.getpid(), factor * x))
    with Child(function) as one, Child(function) as other:
        pids = one.pid, other.pid
        assert [one.ask(2), other.ask(3), one.ask(4)] == [
            (pids[0], 14),
            (pids[1], 21),
            (pids[0], 28),
        ]
    assert len({*pids, os.getpid()}) == 3
    assert not any(map(psutil.pid_exists, pids))


def test_a_child_goes_on_after_an_error() -> None:
    with Child(lambda x: 10 // x) as child:
        with pytest.raises(ZeroDivisionError):
            child.ask(0)
        assert child.ask(5) == 2


def test_a_function_that_cannot_be_imported_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = only_here(monkeypatch, "only_in_this", "def double(x): return 2 * x")
    child = Child(module.double, threads=1)  # not forked, which would have the module
    with child, pytest.raises(ModuleNotFoundError, match="only_in_this"):
        child.ask(1)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
        (lambda _: os._exit(7), "ended with status 7"),
    ],
)
def test_a_death_says_how(end: object, words: str) -> None:
    with Child(end) as child:  # type: ignore[arg-type]
        child.send("x")
        child.send("y" * 1_000_000)  # into a pipe that nobody reads any more
        with pytest.raises(ChildDiedError, match=f"^A process {words}$"):
            child.receive()
        assert child.ending == words


def test_a_death_in_the_middle_of_an_answer() -> None:
    with Child(lambda _: np.ones(1_000_000)) as child:
        child.send(1)
        stdout: Any = child._running_process.stdout
        assert stdout.peek(1)  # it has begun to write what no pipe holds
        child.kill()
        with pytest.raises(ChildDiedError, match="SIGKILL"):
            child.receive()


def test_kill_wakes_a_thread_that_waits() -> None:
    with Child(lambda _: time.sleep(600)) as child, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(child.ask, 1)
        child.kill()
        with pytest.raises(ChildDiedError, match="SIGKILL"):
            asked.result()


def test_what_a_function_prints_goes_to_stderr_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def loud(x: int) -> tuple[int, str]:
        print("print it")  # noqa: T201
        os.write(1, b"write it\n")
        subprocess.run(["echo", "echo it"], check=True)
        return x, sys.stdin.read()

    with Child(loud, threads=1) as child:  # not forked: pytest has put streams of its own there
        assert child.ask(3) == (3, "")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "print it\nwrite it\necho it\n"


def test_a_signal_without_a_name() -> None:
    assert how_ended(-63) == "was ended by signal 63"
    assert how_ended(0) == "ended with status 0"


def test_ctrl_c_is_for_the_parent() -> None:
    with Child(lambda x: x + 1, threads=1) as child:
        assert child.ask(1) == 2
        os.kill(child.pid, signal.SIGINT)
        assert child.ask(2) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
def test_ctrl_c_is_for_the_parent_of_a_forked_one() -> None:
    code = (
        "import os, signal\n"
        "from offline_data.pipeline.jobs.processes import Child\n"
        "with Child(lambda x: x + 1) as child:\n"
        "    said = [child.ask(1), os.kill(child.pid, signal.SIGINT), child.ask(2)]\n"
        "    print(said, type(child._running_process).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[2, None, 3] ForkedProcess\n", "")


def test_ctrl_c_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "def interrupt(event, arguments):\n"
        "    if event == 'import' and arguments[0] == 'offline_data':\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "sys.addaudithook(interrupt)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child(lambda x: x + 1, threads=1) as child:
        assert child.ask(1) == 2


def test_closing_ends_it_in_the_middle_and_twice_is_once() -> None:
    def wait(_: int) -> None:
        time.sleep(600)

    child = Child(wait).start()
    pid = child.pid
    child.send(1)
    child.send("x" * 1_000_000)
    child.close()
    assert not psutil.pid_exists(pid)
    child.close()
    with pytest.raises(OfflineDataError, match="not started, or was closed"):
        child.receive()


def test_threads_of_torch_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

    def threads(_: int) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    for name in names:
        monkeypatch.setenv(name, "2")
    with Child(threads, threads=1) as child:
        assert child.ask(1) == ["1"] * 3
    assert threads(0) == ["2"] * 3
    with Child(threads) as child:
        assert child.ask(1) == ["2"] * 3


@pytest.mark.parametrize(("own", "expected"), [(None, "20"), ("26", "26")])
def test_idle_threads_of_blas_sleep_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    name = "OPENBLAS_THREAD_TIMEOUT"
    monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv(name, own)
    with Child(lambda one: os.environ.get(one)) as child:
        assert child.ask(name) == expected
    assert os.environ.get(name) == own


def test_a_process_that_the_function_forks_does_not_hold_the_pipe(tmp_path: Path) -> None:
    def fork(path: Path) -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        path.write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)

    forked = tmp_path / "pid"
    try:
        with Child(fork) as child, pytest.raises(ChildDiedError, match="SIGKILL"):
            child.ask(forked)
        assert psutil.pid_exists(int(forked.read_text()))
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)


def test_it_ends_with_its_parent_in_the_middle_of_a_call(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "from offline_data.pipeline.jobs.processes import Child\n"
        "def wait(path):\n"
        "    pathlib.Path(path).touch()\n"
        "    time.sleep(600)\n"
        "child = Child(wait).start()\n"
        "print(child.pid, flush=True)\n"
        "child.ask(sys.argv[1])\n"
    )
    begun = tmp_path / "begun"
    command = [sys.executable, str(script), str(begun)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(begun.exists)
        assert not ended(pid)
        parent.kill()
    wait_until(lambda: ended(pid))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much is allocated")
def test_limits_of_a_block_hold_in_a_child_only() -> None:
    def allocate(sizes: tuple[int, int]) -> tuple[int, int]:
        within, after = sizes
        with limit_resources(64 << 20, 60):
            found = len(bytearray(within))
        return found, len(bytearray(after))

    large = 256 << 20
    assert allocate((large, large)) == (large, large)
    with Child(allocate) as child:
        assert child.ask((1, large)) == (1, large)
        with pytest.raises(MemoryError):
            child.ask((large, 1))
        assert child.ask((1, large)) == (1, large)


def test_a_block_that_computes_too_long_ends_its_process() -> None:
    def spin(forever: bool) -> None:
        with limit_resources(1 << 30, 0.2):
            while forever:
                pass

    with Child(spin) as child:
        assert child.ask(False) is None
        with pytest.raises(ChildDiedError, match=r"too much processor time .* SIGPROF"):
            child.ask(True)


def test_functions_and_classes_of_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "from offline_data.pipeline.jobs.processes import Child\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "class OwnError(Exception):\n"
        "    pass\n"
        "def move(point):\n"
        "    if point.x < 0:\n"
        "        raise OwnError('left')\n"
        "    return Point(point.x + STEP)\n"
        "STEP = 4\n"
        "with Child(move) as child:\n"
        "    moved = child.ask(Point(3))\n"
        "    print(moved, type(moved) is Point)\n"
        "    try:\n"
        "        child.ask(Point(-1))\n"
        "    except OwnError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.stdout, done.returncode) == ("Point(x=7) True\nleft\n", 0), done.stderr
