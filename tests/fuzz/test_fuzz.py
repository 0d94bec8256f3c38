"""The fuzzer's fixed seeds: what `make fuzz` does with thousands of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CASES = (
    {"d4rl": 10, "d4rl-bytes": 6, "hdf5": 5, "http": 3},
    {"minari": 10, "archive": 40, "rlds": 5, "webdataset": 3, "atari": 3, "gendgrl": 5, "vd4rl": 3}
    | {"roboset": 3, "openml": 5},
    {"manifest": 6, "settings": 5, "plan": 2, "buffer": 12, "derived": 8},
)
"""Cases of each kind; each line is a process, which imports everything once."""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
@pytest.mark.parametrize("kinds", CASES, ids="+".join)
def test_no_hostile_input_breaks_the_promise(kinds: dict[str, int]) -> None:
    asked = [f"{kind}={count}" for kind, count in kinds.items()]
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", *asked, "--keep"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
