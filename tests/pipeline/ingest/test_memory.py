"""Memory is bounded by a few parts, whatever the size of the set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.toys.minari import write_minari_hdf5

LIMIT = 540 << 20
"""Bytes of private memory a process of the conversion may have: less than the data alone.

Imported modules, parts and buffers reach 430 to 470 MiB, by how threads take turns.
"""

CODE = """
import os, resource, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it reserves 32 MiB for each core of the machine
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
from offline_data_cli.main import main
sys.exit(main(["convert", sys.argv[2], "big", "--root", sys.argv[3], "--layout", sys.argv[4]]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set that is larger than the limit; not to be written."""
    folder = write_minari_hdf5(tmp_path_factory.mktemp("large") / "big-v0", 3200, 1000)
    assert sum(p.stat().st_size for p in folder.rglob("*.hdf5")) > LIMIT
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts maps on Linux only")
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_a_set_larger_than_the_limit_converts(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str, layout: str
) -> None:
    monkeypatch.setenv("OFFLINE_DATA_WORKERS", workers)
    command = [sys.executable, "-c", CODE, str(LIMIT), str(large), str(tmp_path / "root"), layout]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts maps on Linux only")
def test_many_small_episodes_do_not_pile_up(tmp_path: Path) -> None:
    folder = write_minari_hdf5(tmp_path / "small-v0", 6000, 5, dict_observations=True)
    limit = str(270 << 20)
    command = [sys.executable, "-c", CODE, limit, str(folder), str(tmp_path / "root"), "compact"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
