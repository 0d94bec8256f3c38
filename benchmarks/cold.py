"""Uniform sampling from files that are not in the page cache: time, and bytes read per byte sampled.

Each round opens a buffer, evicts its files from the page cache, and draws batches; measured are their
time and the counters of `/proc/self/io`. The disk is described by two figures. Afterwards, values are
compared with those of the other buffer at the same rows.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.sampling import setting
from benchmarks.sampling_data import (
    ANTMAZE,
    IMAGES,
    OURS,
    Data,
    assert_same,
    leaves_of,
    load_ted,
    torchrl,
    write,
)
from benchmarks.timing import Row
from offline_data import open_dataset

SIZE = 256
CASES: tuple[tuple[Data, int, tuple[tuple[int, str], ...]], ...] = (
    (ANTMAZE, 1_000_000, ((20, "≥ 20× TorchRL"), (200, "≤ 5 B"))),
    (IMAGES, 50_000, ((20, "≥ 8× TorchRL, ≤ 1.3 B"),)),
)
"""Data, rows, and targets by number of batches from the first."""


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Run every case; `scale` shrinks the data."""
    for number, (data, rows, windows) in enumerate(CASES):
        here = folder / str(number)
        write(here, data, int(rows * scale))
        os.sync()
        if not number:
            print(f"cold: {setting()}; {disk(here)}")
        opens: dict[str, Callable[[], Any]] = {
            OURS: lambda here=here: open_dataset(here / "compact"),
            "TorchRL": lambda here=here: torchrl(load_ted(here)),
        }
        for batches, goal in windows:
            yield from _rows(
                f"{data.title}, first {batches} batches", here, opens, batches, goal, repeats
            )
        drawn = opens[OURS]().sample(SIZE)
        assert_same(drawn, opens["TorchRL"]()[drawn["index"]])


def _rows(
    case: str,
    folder: Path,
    opens: dict[str, Callable[[], Any]],
    batches: int,
    goal: str,
    repeats: int,
) -> Iterator[Row]:
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in opens}
    for _ in range(repeats):
        for name, open_one in opens.items():
            seen[name].append(_measure(folder, open_one, batches))
    mine = median(seconds for seconds, _ in seen[OURS])
    for name, found in seen.items():
        seconds, ratio = (median(column) for column in zip(*found, strict=True))
        note = f"{seconds * 1e3:.1f} ms a batch, {ratio:.1f} B read for one sampled"
        yield Row(case, name, f"{seconds / mine:.1f}×", note, goal if name == OURS else "")


def _measure(folder: Path, open_one: Callable[[], Any], batches: int) -> tuple[float, float]:
    """Return seconds per batch, and bytes read per byte sampled."""
    gc.collect()  # remaining maps keep their pages
    buffer = open_one()
    forget(folder)
    before, begin = _read_bytes(), time.perf_counter()
    sampled = sum(_nbytes(buffer.sample(SIZE)) for _ in range(batches))
    seconds = time.perf_counter() - begin
    return seconds / batches, (_read_bytes() - before) / sampled


def forget(folder: Path) -> None:
    """Evict all pages of a folder's files from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk(folder: Path) -> str:
    """Describe the disk: latency of a single page, and sequential read rate."""
    forget(folder)
    file = max((each for each in folder.rglob("*.memmap")), key=lambda each: each.stat().st_size)
    pages = np.random.default_rng(0).integers(0, file.stat().st_size // 4096, 100)
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        alone = median(
            _seconds(lambda page=page: os.pread(opened.fileno(), 4096, page * 4096))
            for page in pages.tolist()
        )
    forget(folder)
    size = min(file.stat().st_size, 256 << 20)
    with file.open("rb") as opened:
        rate = size / _seconds(lambda: opened.read(size)) / 1e6
    return f"the disk takes {alone * 1e6:.0f} µs for a page by itself and reads {rate:.0f} MB/s in order"


def _seconds(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def _nbytes(batch: Any) -> int:
    return sum(leaf.numel() * leaf.itemsize for leaf in leaves_of(batch).values())


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
