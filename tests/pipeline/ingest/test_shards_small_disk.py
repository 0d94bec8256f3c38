"""A download whose raw files are larger together than the disk, killed and resumed, on a disk of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from offline_data.pipeline.ingest import Stored
from offline_data.store.library import entry_at, list_datasets
from tests.pipeline.ingest.test_shards import check
from tests.pipeline.jobs.processes.waiting import wait_for_end
from tests.toys.servers import Answer, Fault, FileServer, Request
from tests.toys.sharded import PUBLISHED, install, served, shard_file

RUN = "from offline_data_cli.main import run; run()"
SHARDS = 40
NAME = f"sharded-{SHARDS}x3-pad120000"
DISK = 6 << 20
"""Bytes of the disk: the raw files have twice as many, the dataset some hundred thousand."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="mounting a small disk needs root"
    ),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this system mounts nothing for tests")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class HoldingServer(FileServer):
    """Does not answer for the last shards until it is told to: nothing ends before it is killed."""

    LAST = 10

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.go_on = threading.Event()
        self.held = {f"/{NAME}/{shard_file(n, SHARDS)}" for n in range(SHARDS)[-self.LAST :]}

    def answer(self, request: Request) -> Answer:
        if request.path in self.held:
            while not self.go_on.is_set() and not self.closing.wait(0.05):
                pass
        return super().answer(request)


def raw_bytes(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root / ".downloads" / "sha256"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # freed by the program meanwhile
                total += (Path(folder) / name).stat().st_size * (len(name) == 64)
    return total


def shards_finished(root: Path) -> int:
    """Count the records of shards; 0 once the program clears them away."""
    with contextlib.suppress(FileNotFoundError):
        return len(list(root.glob(".staging/*.shards/*/finished/[0-9]*.record")))
    return 0


def test_it_is_downloaded_all_the_same(disk: Path, tmp_path: Path) -> None:
    files, random = served(NAME), np.random.default_rng(0)
    assert sum(map(len, files.values())) > 2 * DISK
    root = disk / "root"
    with HoldingServer(files) as server:
        for path in files:
            server.always(path, Fault(pause=0.03))
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(install(tmp_path / "plugin")), *sys.path]),
            "OFFLINE_DATA_HOME": str(root),
            "OFFLINE_DATA_MIRRORS": f"{PUBLISHED}={server.url}",
        }
        command = [sys.executable, "-c", RUN, "download", f"shardtoy:{NAME}", "--workers", "2"]
        largest, stop = 0, 0
        for kill in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, None):
            if kill is None:
                server.go_on.set()
            started, before = time.monotonic(), len(server.requests)
            stop += int(random.integers(3, 10))  # after three kills, no more than are answered
            program = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE)
            while program.poll() is None:
                largest = max(largest, raw_bytes(root))
                asked = any("/data-" in one.path for one in server.requests[before:])
                if kill and asked and shards_finished(root) >= stop:
                    time.sleep(float(random.uniform(0, 0.3)))
                    family = psutil.Process(program.pid).children(recursive=True)
                    os.kill(program.pid, kill)
                    program.wait(500)
                    wait_for_end([one.pid for one in family])
                assert time.monotonic() - started < 500
                time.sleep(0.01)
            said = program.communicate()[1].decode()
            expected = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 130, None: 0}
            assert program.returncode == expected[kill], said
            assert (kill == signal.SIGTERM) == (
                "shards are finished and kept: run the same" in said
            )
        one = len(files[f"/{NAME}/{shard_file(1, SHARDS)}"])
        assert largest <= 6 * one  # three at a time, and as many of those that a kill left
        gets = [request.path for request in server.requests if request.method == "GET"]
    (entry,) = list_datasets(root)
    check(Stored(entry.id, entry.path, entry.manifest, False, 0.0), range(3 * SHARDS))
    assert [path for path in (root / ".staging").iterdir() if path.is_dir()] == []
    assert raw_bytes(root) == 0
    assert len(entry_at(entry.path).manifest.files) == 1 + SHARDS
    assert len(gets) < 1 + SHARDS + 3 * 6  # a kill costs no more than what was under way
