"""Ends that no error handler sees: kill -9, Ctrl-C, two processes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import offline_data.fetch
from offline_data.base.config import Settings
from offline_data.base.errors import NetworkError
from offline_data.base.files import boot_id
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.toys.servers import Answer, Fault, FileServer

PATH = "/door.hdf5"
CODE = """
import sys, time
from pathlib import Path
from offline_data.base.config import Settings
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.run import run_fetch

root, url, gate = sys.argv[1:]
settings = Settings(root=Path(root))
plan = plan_fetch([RemoteFile("door.hdf5", (url,))], settings)
print("planned", flush=True)
while not Path(gate).exists():
    time.sleep(0.01)
print(run_fetch(plan, settings)[0].sha256)
"""


def start(settings: Settings, url: str, gate: Path) -> subprocess.Popen[str]:
    """Start a process that plans, waits for `gate` to exist, and fetches."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(settings.root), url, str(gate)],
        cwd=Path(offline_data.fetch.__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "planned\n"
    return process


def wait_for_bytes(settings: Settings, count: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for part in (settings.downloads / "partial").glob("*.part"):
            if part.stat().st_size >= count:
                return
        time.sleep(0.01)
    pytest.fail(f"{count} bytes did not arrive")


@pytest.mark.slow
@pytest.mark.skipif(boot_id() is None, reason="the running system has no name here")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_process_leaves_a_part_that_the_next_goes_on_with(
    end: signal.Signals, online: Settings, content: bytes, tmp_path: Path
) -> None:
    with FileServer({PATH: content}) as server:
        server.script(PATH, Fault(stall_after=150_000))
        process = start(online, server.at(PATH), tmp_path)
        wait_for_bytes(online, 150_000)
        process.send_signal(end)
        _, errors = process.communicate(timeout=20)  # a host that stalls is waited for longer
        assert process.returncode in {-end, 130}
        assert "Exception in thread" not in errors
        assert not (online.downloads / "sha256").exists()

        file = RemoteFile("door.hdf5", (server.at(PATH),))
        plan = plan_fetch([file], online)
        assert (plan.steps[0].action, plan.steps[0].reason) == ("resume", "146.5 KiB are here")
        (found,) = run_fetch(plan, online)
        assert found.path.read_bytes() == content
        asked = server.requests[-1].headers
        assert (asked["range"], "if-range" in asked) == ("bytes=150000-", True)


def leave_a_part(settings: Settings, server: FileServer) -> None:
    """Fetch the first 150,000 bytes, and lose the connection for good."""
    server.script(PATH, Fault(cut_after=150_000), *[Fault(Answer(b"", 503))] * 9)
    limits = FetchLimits(tries=2, first_wait=0.001, longest_wait=0.002)
    with pytest.raises(NetworkError):
        run_fetch(plan_fetch([file_at(server)], settings), settings, limits=limits)
    server.clear_script()


def file_at(server: FileServer) -> RemoteFile:
    return RemoteFile("door.hdf5", (server.at(PATH),))


def test_a_file_that_changed_meanwhile_starts_over(
    online: Settings, content: bytes, tally: Any
) -> None:
    with FileServer({PATH: content}) as server:
        leave_a_part(online, server)
        server.files[PATH] = changed = content[::-1]
        (found,) = run_fetch(plan_fetch([file_at(server)], online), online, tally)
    assert found.path.read_bytes() == changed
    assert tally.seen == len(changed)


@pytest.mark.skipif(boot_id() is None, reason="the running system has no name here")
def test_bytes_that_were_here_do_not_count_as_speed(
    online: Settings, content: bytes, tally: Any
) -> None:
    with FileServer({PATH: content}) as server:
        leave_a_part(online, server)
        run_fetch(plan_fetch([file_at(server)], online), online, tally)
    assert (tally.seen, tally.skipped) == (len(content), 150_000)


def test_without_a_validator_or_a_digest_a_part_is_not_trusted(
    online: Settings, content: bytes
) -> None:
    with FileServer({PATH: content}, validators=False) as server:
        leave_a_part(online, server)
        (found,) = run_fetch(plan_fetch([file_at(server)], online), online)
        assert "range" not in server.requests[-1].headers
    assert found.path.read_bytes() == content


@pytest.mark.slow
def test_two_processes_fetch_a_file_once(online: Settings, content: bytes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with FileServer({PATH: content}) as server:
        server.always(PATH, Fault(pause=0.1))
        processes = [start(online, server.at(PATH), gate) for _ in range(2)]
        gate.touch()
        outputs = [process.communicate(timeout=240) for process in processes]
        assert len(server.requests) == 1
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len({output for output, _ in outputs}) == 1


@pytest.mark.slow
def test_ctrl_c_ends_threads_that_wait_for_a_host(online: Settings, content: bytes) -> None:
    with FileServer({PATH: content}) as server:
        server.always(PATH, Fault(stall_after=100_000))
        plan = plan_fetch([RemoteFile("door.hdf5", (server.at(PATH),))], online)

        def interrupt() -> None:
            wait_for_bytes(online, 100_000)
            os.kill(os.getpid(), signal.SIGINT)

        waiting = threading.Thread(target=interrupt)
        begun = time.monotonic()
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            run_fetch(plan, online, limits=FetchLimits(read=300.0))
        waiting.join()
    assert time.monotonic() - begun < 250
    (part,) = (online.downloads / "partial").glob("*.part")
    assert part.read_bytes() == content[:100_000]
