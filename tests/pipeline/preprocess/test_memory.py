"""Memory does not grow with the dataset: a large one goes through in a small fraction of its size."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter
from offline_data.testing.toy import toy_batch

LIMIT = 250 << 20
"""Bytes of memory of its own that a process may have; pages of mapped files are not among them."""

PROGRAM = """
import sys
from pathlib import Path
from offline_data.base.config import Settings
from offline_data.pipeline.jobs.executors import InProcess, LocalProcesses
from tests.pipeline.preprocess.runs import make

parent, folder, workers, *stages = sys.argv[1:]
executor = LocalProcesses(int(workers)) if int(workers) else InProcess()
settings = Settings(Path(folder, "root"), offline=True)
make(Path(parent), stages, Path(folder, "out"), settings, executor=executor, audit=0.01)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a gigabyte: 72,000 transitions with images."""
    folder = tmp_path_factory.mktemp("large") / "large"
    header = Manifest("local:large@1", "local", "large", "1", "compact", tables={}, counts={})
    with DatasetWriter(folder, header, audit="none") as writer:
        for first in range(0, 720, 36):
            writer.append(toy_batch([100] * 36, first_episode=first, images=True))
        assert writer.finish().bytes > 2 * LIMIT - (20 << 20)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "stages",
    [["normalize:observation.state", "clip:action,low=-5000"], ["cast:observation.image=int16"]],
)
def test_peak(large: Path, tmp_path: Path, workers: int, stages: list[str]) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(large), str(tmp_path), str(workers), *stages]
    )
    peak = 0
    while program.poll() is None:
        peak = max([peak, *map(own_memory, family(program.pid))])
    assert program.returncode == 0
    assert (20 << 20) < peak < LIMIT


def family(pid: int) -> list[int]:
    """List a process and its children."""
    with suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children())]
    return []


def own_memory(pid: int) -> int:
    """Return the bytes that a process has in memory and no file has; 0 where it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
    return 0
