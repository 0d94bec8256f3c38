"""The fuzzer's fixed seeds: what `make fuzz` does with thousands of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.file_kinds import FILE_KINDS
from tests.fuzz.lerobot_kinds import LEROBOT_KINDS
from tests.fuzz.robot_kinds import ROBOT_KINDS
from tests.fuzz.source_kinds import SOURCE_KINDS

ROOT = Path(__file__).parents[2]

FORMATS = (*SOURCE_KINDS, *ROBOT_KINDS, *LEROBOT_KINDS, *FILE_KINDS)
CASES = dict.fromkeys(
    ("d4rl", "hdf5", "minari", "archive", "files", "manifest", "settings", "buffer", "recording"), 1
)
"""Cases of each kind in the default run."""
MORE_CASES = (
    {"d4rl": 30, "d4rl-bytes": 20, "hdf5": 10, "http": 8, "minari": 36, "archive": 40}
    | dict.fromkeys((kind.name for kind in FORMATS), 1)
    | {"hub": 8, "bucket": 4, "pull": 24, "shards": 12},
    {"manifest": 22, "settings": 14, "plan": 6, "buffer": 40, "derived": 24, "recipe": 20}
    | {
        "checkpoint": 20,
        "mixture": 10,
        "sampler": 20,
        "recording": 40,
        "label": 40,
        "encoded": 20,
        "film": 40,
        "view": 20,
    }
    | {"lock": 8, "toml": 8, "baseline": 8},
)
"""The same and others; each line is a process, which imports everything once."""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(CASES, id="+".join(CASES)),
        *(
            pytest.param(kinds, id=f"more-{'+'.join(kinds)}", marks=pytest.mark.slow)
            for kinds in MORE_CASES
        ),
    ],
)
def test_no_hostile_input_breaks_the_promise(kinds: dict[str, int]) -> None:
    asked = [f"{kind}={count}" for kind, count in kinds.items()]
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", *asked, "--keep"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
