"""Uniform sampling of single transitions from cached files: this package and its peers.

All return the same leaves of uniformly drawn rows, which are compared first. This package's and
TorchRL's batches are nested TensorDicts with `index`, numpy's a flat dict. `--threads 1` compares the
libraries without contention for cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.sampling_data import (
    ANTMAZE,
    D4RL,
    IMAGES,
    OURS,
    Columns,
    Data,
    assert_same,
    calls_for,
    load_ted,
    torchrl,
    touch,
    write,
)
from benchmarks.timing import Row, interleaved
from offline_data import open_dataset
from offline_data.rows.gather import native

CASES: tuple[tuple[Data, int, dict[int, float]], ...] = (
    (D4RL, 1_000_000, {1: 0, 32: 10, 256: 10, 1024: 9, 4096: 9}),
    (ANTMAZE, 300_000, {256: 8, 4096: 8}),
    (IMAGES, 10_000, {256: 6}),
)
"""Data, rows, and target speed-ups over TorchRL by batch size."""


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure every case; `scale` shrinks the data for a quick look."""
    print(f"sampling: {setting()}")
    for number, (data, rows, targets) in enumerate(CASES):
        rows = write(folder / str(number), data, int(rows * scale))
        buffers = _open(folder / str(number))
        _compare(buffers, rows)
        for size, target in targets.items():
            jobs = {name: partial(buffer.sample, size) for name, buffer in buffers.items()}
            seconds = interleaved(jobs, repeats=repeats, calls=calls_for(jobs["TorchRL"]))
            case = (
                f"{data.title}, batch {size}" if size > 1 else f"{data.title}, a call for one row"
            )
            goal = f"≥ {target:g}× TorchRL" if target else ""
            yield from rows_of(case, seconds, goal)


def rows_of(case: str, seconds: dict[str, float], goal: str) -> Iterator[Row]:
    """Yield the jobs' times relative to this package's."""
    for name, each in seconds.items():
        ratio = f"{each / seconds[OURS]:.1f}×"
        yield Row(case, name, ratio, f"{each * 1e6:.1f} µs", goal if name == OURS else "")


def setting() -> str:
    """Return the versions and settings that results depend on."""
    gather = "compiled" if native.compiled else "by torch alone: the extension was not built"
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, gather {gather}"


def _open(folder: Path) -> dict[str, Any]:
    ted = load_ted(folder)
    buffers = {OURS: open_dataset(folder / "compact"), "TorchRL": torchrl(ted)}
    if native.compiled is not None:
        buffers["offline-data, by torch alone"] = _without_extension(folder / "compact")
    buffers["numpy, a take for each column"] = Columns(ted)
    buffers["TorchRL, all in RAM"] = torchrl(ted.clone())
    return buffers


def _without_extension(folder: Path) -> Any:
    """Open a dataset as if the extension was not built, which the first batch determines."""
    compiled, native.compiled = native.compiled, None
    try:
        buffer = open_dataset(folder)
        buffer.sample(1)
    finally:
        native.compiled = compiled
    return buffer


def _compare(buffers: dict[str, Any], rows: int) -> None:
    """Touch all rows, and compare batches of the same rows."""
    drawn = buffers[OURS].sample(500)
    for buffer in buffers.values():
        touch(buffer, rows)
        assert_same(buffer[drawn["index"]], drawn)
