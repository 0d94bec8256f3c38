"""Types as a user's checker sees them: in another folder, of packages on sys.path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import offline_data_cli.main
from offline_data import ReplayBuffer, load_dataset
from offline_data.torchrl import ReplayBuffer as Same, TensorDictReplayBuffer

ds = load_dataset("d4rl:pen-human-v1", batch_size=256)
reveal_type(ds)
reveal_type(ds.sample(256))
reveal_type(ds.sample(256, return_info=True))
reveal_type(ds[3:5])
reveal_type(ds.episode(0))
reveal_type(ds.split(val=0.1)["val"].sample())
for batch in ds:
    reveal_type(batch)
for loaded in ds.dataloader(32):
    reveal_type(loaded)
for episode in ds.iter_episodes():
    reveal_type(episode)
reveal_type(offline_data_cli.main.main)
reveal_type(ds.stats()["action"])
reveal_type(ds.report())
buffers: tuple[ReplayBuffer, Same, TensorDictReplayBuffer] = ds, ds, ds
"""
TENSORDICT = "tensordict._td.TensorDict"
EPISODE = "offline_data.buffers.views.episode.Episode"
TYPES = [
    "offline_data.buffers.dataset.Dataset",
    TENSORDICT,
    f"tuple[{TENSORDICT}, Any]",
    TENSORDICT,
    EPISODE,
    TENSORDICT,
    TENSORDICT,
    TENSORDICT,
    EPISODE,
    "def (arguments: typing.Sequence[str]) -> int",
    "offline_data.analysis.figures.LeafStats | offline_data.analysis.figures.TextStats",
    "offline_data.document.page.ReportPage",
]
CONFIG = """
[mypy]
[mypy-torch.*,torchrl.*,numpy.*,minari.*]
follow_imports = skip
[mypy-tensordict.*]
follow_untyped_imports = True
"""
"""tensordict has no py.typed. Without what the test is not about: torch takes most of the time."""

ROOT = Path(__file__).parents[1]
"""Its packages are named to mypy as sys.path has them, which asks for py.typed: mypy does not run
the import hook of an editable install."""


@pytest.mark.slow
def test_a_checker_in_another_folder_sees_the_types(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert re.findall(r'Revealed type is "(.*)"', checked.stdout) == TYPES
