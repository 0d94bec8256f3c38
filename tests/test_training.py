"""`python -m benchmarks training`: every loader trains every algorithm, and wrong batches are found."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchrl.data")

from benchmarks import training

ROOT = Path(__file__).resolve().parents[1]
LOADERS = ["offline-data", "TorchRL", "Minari", "rows, as LeRobot's", "no loader"]


@pytest.mark.slow
def test_every_loader_trains_every_algorithm() -> None:
    options = ["--scale", "1e-4", "--repeats", "1", "--threads", "1"]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks", "training", *options]
    printed = subprocess.check_output(command, cwd=ROOT, text=True, timeout=600)
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip("| ") for row in rows if row[0] != "| "] == [
        task.title for task in training.TASKS
    ]
    assert sorted(row[1] for row in rows) == sorted(LOADERS * len(training.TASKS))
    for row in rows:
        if find_spec("minari") or row[1] != "Minari":
            assert re.fullmatch(r"[\d,.]+ updates/s, \d+\.\d% waiting", row[3])


def small(number: int, folder: Path, rows: int) -> tuple[training.Task, Any]:
    """Write a small dataset; returns its task and arrays."""
    one = training.TASKS[number]
    task = replace(one, batch=8, rows=rows, shape=(*one.shape[:-1], 2), longest=100)
    training.write(folder / "x", task)
    return task, training._read(folder / "x")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "WORKERS", {"shuffle": True})


@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_wrong_value_of_any_leaf_is_found(number: int, tmp_path: Path) -> None:
    task, arrays = small(number, tmp_path, 1000)
    for loader in training.loaders(tmp_path / "x", task).values():
        batches = loader()
        for _ in range(5):
            batch = next(batches)
            training.check(task, batch, arrays)
        for name in task.leaves:
            leaf = batch[name].clone()
            first = leaf[:1]
            leaf[:1] = ~first if leaf.dtype == torch.bool else first + 1
            with pytest.raises(AssertionError, match=name):
                training.check(task, {**batch, name: leaf}, arrays)


def test_a_group_of_minaris_episodes_holds_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    task, _ = small(0, tmp_path, 160)  # one group
    batches = training.loaders(tmp_path / "x", task)["Minari"]()
    drawn = torch.cat([next(batches)["index"] for _ in range(160 // task.batch)])
    assert sorted(drawn.tolist()) == list(range(160))
