"""Listing datasets of this machine as a command, compared with Minari's list of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import Row, interleaved
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.minari import write_minari_hdf5

_MINARI = "import minari; print(len(minari.list_local_datasets()))"


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure whole processes, imports included, each over as many datasets; CPU time beside it."""
    count = max(2, int(2000 * scale))
    write_ours(folder / "ours", count)
    places = {"OFFLINE_DATA_HOME": str(folder / "ours"), "MINARI_DATASETS_PATH": str(folder / "m")}
    environment = {**os.environ, **places}
    commands = {
        "offline-data list": [sys.executable, "-m", "offline_data_cli", "list", "--json"],
        "offline-data --help": [sys.executable, "-m", "offline_data_cli", "--help"],
    }
    if find_spec("minari") is not None:
        write_minaris(folder / "m", count)
        commands["minari.list_local_datasets()"] = [sys.executable, "-c", _MINARI]
    outputs = {name: _output(command, environment) for name, command in commands.items()}
    found = {
        "offline-data list": len(json.loads(outputs["offline-data list"])),
        "minari.list_local_datasets()": int(outputs.get("minari.list_local_datasets()", count)),
    }
    jobs = {name: partial(_output, command, environment) for name, command in commands.items()}
    seconds = interleaved(jobs, repeats=repeats)
    for name, took in seconds.items():
        busy = _busy(commands[name], environment)
        wrong = "" if found.get(name, count) == count else f", WRONG: {found[name]} datasets"
        ratio = f"{took / seconds['offline-data list']:.2f}×"
        target = "≤ 0.6 s of CPU" if name == "offline-data list" else ""
        yield Row(
            f"list of {count:,} datasets", name, ratio, f"{took:.2f} s{wrong}, {busy}", target
        )


def write_ours(root: Path, count: int) -> None:
    """Write datasets under a root: one, then copies whose manifests have names of their own."""
    first = root / "local" / "toy-0" / "1"
    write_toy(first, [toy_batch([5, 3])], dataset="local:toy-0@1")
    text = (first / "manifest.json").read_text()
    for number in range(1, count):
        other = root / "local" / f"toy-{number}" / "1"
        shutil.copytree(first, other)
        (other / "manifest.json").write_text(text.replace("toy-0", f"toy-{number}"))


def write_minaris(root: Path, count: int) -> None:
    """Write Minari's datasets: one, then copies whose metadata have names of their own."""
    first = write_minari_hdf5(root / "toy-0-v0", 2, 5)
    place = Path("data") / "metadata.json"
    about = json.loads((first / place).read_text())
    for number in range(1, count):
        other = root / f"toy-{number}-v0"
        shutil.copytree(first, other)
        (other / place).write_text(json.dumps({**about, "dataset_id": other.name}))


def _output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def _busy(command: list[str], environment: dict[str, str]) -> str:
    """Return the CPU time of one run."""
    before = os.times()
    _output(command, environment)
    after = os.times()
    took = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return f"{took:.2f} s of CPU"
