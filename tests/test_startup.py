"""What loads when: the package and most verbs start without torch, `--help` without numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data.testing.toy import toy_batch
from tests.toys.stored import write_stored

TORCH = {"torch", "tensordict", "torchrl"}
LATER = {
    *TORCH,
    "pydantic",
    "markdown_it",
    "h5py",
    "pyarrow",
    "PIL",
    "minari",
    "gymnasium",
    "httpx",
    "huggingface_hub",
}

_LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
_EACH = """
import json, shlex, sys
from offline_data_cli.main import main
codes = [main(shlex.split(line)) for line in sys.argv[1:]]
assert not any(codes), codes
"""
"""Runs command lines one after the other: what none of them loads, each does without."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the dataset `local:toy`."""
    folder: Path = tmp_path_factory.mktemp("root")
    write_stored(folder, "local:toy@1", toy_batch([3, 2], text=True))
    return folder


def _run(root: Path, code: str, *arguments: str) -> tuple[str, set[str]]:
    """Run Python; returns its output and the top-level names of what it loaded."""
    wide = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    environment = {**os.environ, "OFFLINE_DATA_HOME": str(root), "OFFLINE_DATA_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code + _LOADED, *arguments],
        env=environment | wide,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    modules = json.loads(ended.stderr.splitlines()[-1])
    return ended.stdout, {name.partition(".")[0] for name in modules}


def test_importing_the_package_is_nothing(root: Path) -> None:
    _, loaded = _run(root, "import offline_data\ndir(offline_data), offline_data.__version__\n")
    assert "offline_data" in loaded
    assert not loaded & {*LATER, "numpy", "rich", "typer"}
    settle = "from offline_data.base.config import resolve_settings; resolve_settings(environ={})\n"
    assert not _run(root, settle)[1] & {"tomllib", "tomli", "numpy"}  # there is no config file


def test_help_needs_no_numpy_and_fits_80_columns(root: Path) -> None:
    verbs = ("", "download", "list", "cache", "cache prune", "preprocess", "worker")
    shown, loaded = _run(root, _EACH, *(f"{verb} --help" for verb in verbs), "--version")
    assert not loaded & {*LATER, "numpy"}
    assert shown.count("Usage: offline-data") == shown.count("--root") == len(verbs)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown.replace("preprocess … --plan-only", "")


def test_a_search_needs_no_numpy(root: Path) -> None:
    lines = ("search hopper", "search pen human", "search hoper --json", "search --action discrete")
    shown, loaded = _run(root, _EACH, *lines)
    assert "d4rl:hopper-medium-v2" in shown
    assert "atari_dqn:Pong/1" in shown
    assert not loaded & {*LATER, "numpy"}


def test_verbs_that_need_neither_torch_nor_readers(root: Path) -> None:
    lines = (
        "list", "list --remote", "search pen human", "info local:toy", "info local:toy --json",
        "info d4rl:pen-human-v1", "head local:toy", "stats local:toy", "verify local:toy",
        "rm local:toy --dry-run", "cache dir", "cache ls", "cache prune --dry-run", "sources",
        "env", "preprocess --list-steps", "step clip", "tail local:toy", "sample local:toy",
        "sample local:toy --batch 4 --slices 2", "path toy", "diff toy toy",
        "check toy --fail-on never", "rule", "cp toy copy", "rename copy other",
        "preprocess local:toy --step clip:action,low=1 --out clipped",
    )  # fmt: skip
    _, loaded = _run(root, _EACH, *lines)
    assert "numpy" in loaded
    assert not loaded & LATER


def test_converting_and_downloading_need_no_torch(root: Path, tmp_path: Path) -> None:
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
    without = "import sys; sys.modules['torch'] = None\n"  # importing it would fail
    _, loaded = _run(root, without + _EACH, f"convert {source} made --from d4rl")
    assert not loaded & {"numpy", "h5py"}  # a process of its own reads and writes
    fails = "from offline_data_cli.main import main; assert main(sys.argv[1:]) == 6\n"
    _, loaded = _run(root, f"import sys; {fails}", "download", "d4rl:pen-human-v1")
    assert not loaded & TORCH


def test_a_dataset_that_is_here_opens_without_what_converts(root: Path) -> None:
    opened = (
        "import offline_data, sys\n"
        "offline_data.SliceSampler\n"
        "assert 'torch' in sys.modules and 'torchrl' not in sys.modules\n"
        "offline_data.load_dataset('local:toy', batch_size=2).sample()\n"
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('offline_data.')})\n"
    )
    shown, loaded = _run(root, opened)
    assert {"buffers", "store"} <= {*shown.split()}
    assert not {*shown.split()} & {"ingest", "sources", "fetch", "executors"}
    assert loaded >= {"torch", "tensordict"}  # so the probe sees what is loaded on use
