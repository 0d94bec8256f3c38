"""What loads when: the package and most verbs start without torch, `--help` without numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

TORCH = {"torch", "tensordict", "torchrl"}
LATER = {*TORCH, "h5py", "pyarrow", "PIL", "minari", "gymnasium", "httpx", "huggingface_hub"}

_PROBE = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
"""
_RUN = _PROBE + "from offline_data_cli.main import run; run()"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the dataset `local:toy`."""
    folder: Path = tmp_path_factory.mktemp("root")
    path = folder / "local" / "toy" / "1"
    path.mkdir(parents=True)
    write_toy(path, [toy_batch([3, 2], text=True)])
    return folder


def _loaded(root: Path, *command: str, code: int = 0) -> set[str]:
    """Run Python and return the top-level names of what it loaded."""
    environment = {**os.environ, "OFFLINE_DATA_HOME": str(root), "OFFLINE_DATA_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    modules = json.loads(ended.stderr.splitlines()[-1])
    return {name.partition(".")[0] for name in modules}


def test_importing_the_package_is_nothing(root: Path) -> None:
    loaded = _loaded(root, "-c", _PROBE + "import offline_data")
    assert "offline_data" in loaded
    assert not loaded & {*LATER, "numpy", "rich", "typer"}


@pytest.mark.parametrize("arguments", [("--help",), ("download", "--help"), ("--version",)])
def test_help_needs_no_numpy(root: Path, arguments: tuple[str, ...]) -> None:
    assert not _loaded(root, "-c", _RUN, *arguments) & {*LATER, "numpy"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list", "--remote"),
        ("search", "pen", "human"),
        ("info", "local:toy"),
        ("info", "local:toy", "--json"),
        ("info", "d4rl:pen-human-v1"),
        ("stats", "local:toy"),
        ("verify", "local:toy"),
        ("rm", "local:toy", "--dry-run"),
        ("cache", "dir"),
        ("cache", "ls"),
        ("cache", "prune", "--dry-run"),
        ("sources",),
        ("env",),
        ("head", "local:toy"),
    ],
)
def test_verbs_that_need_neither_torch_nor_readers(root: Path, arguments: tuple[str, ...]) -> None:
    assert not _loaded(root, "-c", _RUN, *arguments) & LATER


def test_converting_needs_no_torch(root: Path, tmp_path: Path) -> None:
    import h5py
    import numpy as np

    source = tmp_path / "source.hdf5"
    with h5py.File(source, "w") as file:
        rows = np.arange(1, 7, dtype=np.float32)
        for name in ("observations", "actions"):
            file[name] = rows[:, None]
        file["rewards"] = rows
        file["terminals"] = rows == 6
        file["timeouts"] = rows == 3
    loaded = _loaded(root, "-c", _RUN, "convert", str(source), "made", "--from", "d4rl")
    assert "numpy" in loaded
    assert not loaded & {*TORCH, "h5py"}  # a process of its own parses


def test_downloading_needs_no_torch(root: Path) -> None:
    loaded = _loaded(root, "-c", _RUN, "download", "d4rl:pen-human-v1", code=6)
    assert not loaded & TORCH


def test_the_probe_sees_torch(root: Path) -> None:
    assert "torch" in _loaded(root, "-c", _RUN, "sample", "local:toy")


@pytest.mark.parametrize("verb", ["", "download", "list", "cache", "cache prune"])
def test_help_fits_80_columns(verb: str) -> None:
    environment = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    shown = subprocess.run(
        [sys.executable, "-c", _RUN, *verb.split(), "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = shown.splitlines()
    assert "Usage: offline-data" in shown
    assert "--root" in shown
    assert max(map(len, lines)) <= 80
    assert "…" not in shown
