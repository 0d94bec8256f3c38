"""All rules of `offline-data check` and the quality of episodes, compared with reading the files once.

Minari 0.5 and LeRobot 0.4 have no command that checks a dataset, so the other lines are what a user
has instead: checksums of the files, and the usual numpy figures of each leaf.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sampling_data import D4RL, IMAGES, Data, write
from benchmarks.timing import Row, interleaved
from offline_data.analysis.checks.block import all_leaves
from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.analysis.episodes import episode_quality
from offline_data.store.reader import DatasetReader

TARGET = "twice the time of reading the files once"
_BLOCK = 4 << 20
_CASES: tuple[tuple[Data, int], ...] = ((D4RL, 2_000_000), (IMAGES, 20_000))
"""Kinds of data, and their transitions at scale 1."""


def run(folder: Path, *, repeats: int, scale: float) -> list[Row]:
    """Check the same files in each way, from the disk and from the page cache; see `Row`."""
    rows = []
    for number, (data, count) in enumerate(_CASES):
        write(folder / str(number), data, int(count * scale))
        path = folder / str(number) / "compact"
        for cold in (True, False):
            rows += _case(path, data, cold=cold, repeats=repeats)
    return rows


def _case(path: Path, data: Data, *, cold: bool, repeats: int) -> list[Row]:
    files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rules = select_rules()
    jobs: dict[str, Callable[[], Any]] = {
        "reading the files once": lambda: _read(files),
        f"{len(rules)} rules (default set), {threads} threads": lambda: run_checks(
            [path], rules, workers=threads or 1
        ),
        "the same in one thread": lambda: run_checks([path], rules),
        f"with RL008 (SHA-256), {threads} threads": lambda: run_checks(
            [path], select_rules(["RL"]), workers=threads or 1
        ),
        "sha256 of the files": lambda: _read(files, hashlib.sha256()),
        "numpy: finite, min, max, std": lambda: _numpy_figures(path),
        "quality of episodes": lambda: episode_quality(DatasetReader(path)),
    }
    forget = (lambda: _forget(files)) if cold else None
    seconds = interleaved(jobs, repeats=repeats, before=forget)
    once = seconds["reading the files once"]
    state = "from the disk" if cold else "from the page cache"
    case = f"{data.title}: {size / 1e6:,.0f} MB {state}"
    return [
        Row(
            case,
            name,
            f"{took / once:.2f}×",
            f"{1000 * took:,.0f} ms, {size / took / 1e9:.2f} GB/s",
            TARGET if "default" in name else "",
        )
        for name, took in seconds.items()
    ]


def _read(files: list[Path], digest: Any = None) -> None:
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while block := stream.read(_BLOCK):
                if digest is not None:
                    digest.update(block)


def _numpy_figures(path: Path) -> None:
    """Compute what most notebooks compute first, a leaf at a time."""
    reader = DatasetReader(path)
    for key, leaf in all_leaves(reader).items():
        observed = key in reader.observation_leaves
        values = reader.leaf("observations" if observed else "steps", key)
        if leaf.dtype.startswith("float"):
            np.isfinite(values).all()
        values.min(0), values.max(0), values.std(0)


def _forget(files: list[Path]) -> None:
    """Drop the files from the page cache."""
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
