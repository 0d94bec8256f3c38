"""What needs neither torch nor tensordict works without them; what needs them says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.install import tour
from tests.install.conftest import ROOT, Tour
from tests.install.test_metadata import PROJECT

FILE = ROOT / "docs" / "requirements-without-torch.txt"
HIDDEN = """import sys
sys.modules.update(dict.fromkeys(("torch", "tensordict", "torchrl")))
"""
"""A `sitecustomize.py` with which importing these fails, as if they were not installed."""


@pytest.mark.slow
def test_the_tour_where_torch_cannot_be_imported(tmp_path: Path, take_tour: Tour) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDDEN)
    check_tour(take_tour(PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}:{ROOT / 'cli'}"))


def check_tour(done: dict[str, Any]) -> None:
    """Assert that all of the tour works but what needs torch, which says so."""
    said = "error: Buffers, saved views and functions of rows need torch and tensordict; "
    hint = "pip install torch tensordict; `load_arrays` in Python needs neither"
    for command in tour.WITHOUT_TORCH.split("\n")[1:-1]:
        ran = done["commands"][command]
        assert ran["code"] == 0, (command, ran["err"])
        assert "Traceback" not in ran["err"]
    for command in tour.NEED_TORCH.split("\n")[1:-1]:
        ran = done["commands"][command]
        assert (ran["code"], ran["err"].startswith(said)) == (1, True), (command, ran["err"])
        assert ran["err"].endswith(f" is not installed\nhint: {hint}\n")
    ran = done["commands"][tour.NEEDS_PILLOW]
    if "No module named 'PIL'" in ran["err"]:
        assert ran["err"].endswith("hint: pip install 'offline-data[minari]'\n")
    assert ran["code"] == ("hint" in ran["err"])
    failed = {name: error for name, error in done["names"].items() if error is not None}
    assert {error.rpartition("; ")[2] for error in failed.values()} == {hint.rpartition("; ")[2]}
    assert all(error.startswith("MissingDependencyError: Buffers,") for error in failed.values())
    assert {"load_dataset", "ReplayBuffer", "Documents", "n_step"} <= failed.keys()
    assert not {"load_arrays", "convert", "export", "Recorder", "TextOptions"} & failed.keys()
    assert done["resize"] == "MissingDependencyError"
    assert done["arrays"]["observations"] == [12, 5]
    assert len(done["compiled"]) == 3
    assert done["loaded"] == []


def test_the_requirements_are_the_others_of_the_project() -> None:
    needed = {line for line in PROJECT["dependencies"] if not re.match("torch|tensordict", line)}
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert sorted(lines) == sorted(needed)
    assert len(PROJECT["dependencies"]) == len(lines) + 2
