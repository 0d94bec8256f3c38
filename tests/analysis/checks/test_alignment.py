"""`RL044` and `RL055`: leaves that are stored some rows late or early."""

from __future__ import annotations

from pathlib import Path

import pytest

import offline_data
from tests.analysis.alignment.worlds import shifted, world, write

ACTION, REWARD, CAMERA = ("action",), ("next", "reward"), ("observation", "camera")
SELECTED = ["RL044", "RL055"]


@pytest.mark.parametrize(
    ("leaf", "by", "code", "severity", "message"),
    [
        (ACTION, 1, "RL044", "error", "It is 1 row late: the value of row t is in row t + 1"),
        (REWARD, -2, "RL044", "error", "It is 2 rows early: the value of row t is in row t - 2"),
        (CAMERA, 1, "RL055", "warning", "It is 1 row late: the value of row t is in row t + 1"),
    ],
)  # fmt: skip
def test_a_shifted_leaf_is_reported(
    leaf: tuple[str, ...], by: int, code: str, severity: str, message: str, tmp_path: Path
) -> None:
    batch = world(6, 20, feedback=0.5, camera=leaf == CAMERA)
    folder = write(tmp_path / "a", shifted(batch, leaf, by))
    [found] = offline_data.check(folder, select=SELECTED)
    assert (found.code, found.severity, found.leaf) == (code, severity, "/".join(leaf))
    assert found.message == message


def test_aligned_leaves_are_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", world(6, 20, feedback=0.5, camera=True))
    assert offline_data.check(folder, select=SELECTED) == []


def test_fewer_rows_decide_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", shifted(world(6), ACTION, 1))
    rows = {"RL044": {"rows": 150}}
    assert offline_data.check(folder, select=["RL044"], thresholds=rows) == []
