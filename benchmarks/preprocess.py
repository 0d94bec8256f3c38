"""Preprocessing a dataset on disk, compared with TorchRL's `preprocess` and `datasets.map`.

All jobs of a case read the same rows from a warm page cache, produce the same values (compared), and
write to the same disk. This package also syncs its files, hashes them, audits rows and writes the
manifest; the peers do none of that. Row-by-row work is measured on fewer rows, as time per row.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import preprocessors as by
from benchmarks.timing import Row, interleaved

OURS = "offline-data, fn of a row"
ROWS_OURS, ROWS_TORCHRL = 20_000, 1000
"""Number of rows that are preprocessed one by one; time is per row."""


@dataclass(frozen=True)
class Case:
    """One dataset, one function, and the jobs that apply it."""

    title: str
    source: Path
    work: by.Work
    jobs: dict[str, Callable[[Path], Any]]
    """Maps a new folder to a leaf `[n, …]` for checking values."""
    alone: bool = True
    """Whether to measure row-by-row work."""
    targets: dict[str, str] = field(default_factory=dict)


def cases(folder: Path, scale: float) -> Iterator[Case]:
    rows = int(1_000_000 * scale)
    for work in (by.CAT, by.REWARD, by.NORMALIZE):
        source = by.write(folder / work.data.title, work.data, rows)
        yield Case(
            f"{work.title}, {rows:,} rows", source, work, jobs_of(source, work), targets=_TARGETS
        )
    frames = max(1000, int(10_000 * scale))
    source = by.write(folder / "images", by.RESIZE.data, frames)
    title = f"{by.RESIZE.title}, {frames:,} rows"
    yield Case(title, source, by.RESIZE, jobs_of(source, by.RESIZE), alone=False)


_TARGETS = {
    "TorchRL preprocess, its chunks, 2 processes": "≥ 2×",
    "TorchRL preprocess, row by row": "≥ 1,000× where it vectorises",
}


def jobs_of(source: Path, work: by.Work) -> dict[str, Callable[[Path], Any]]:
    jobs = {
        OURS: partial(by.ours, source, [work.row], work.leaf),
        "offline-data, fn of blocks": partial(
            by.ours, source, [work.block], work.leaf, batched=4096
        ),
        "TorchRL preprocess, its chunks, 2 processes": partial(
            by.torchrl, source, work.block, work.leaf
        ),
    }
    if work.steps:
        jobs["offline-data, its step"] = partial(by.ours, source, list(work.steps), work.leaf)
    if by.has_datasets() and work.columns is not None:
        jobs["datasets.map, batched, 2 processes"] = partial(by.mapped, source, work)
    return jobs


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure every case; `scale` shrinks the data for a quick look."""
    for case in cases(folder, scale):
        expected = case.work.expected(case.source)
        size = sum(f.stat().st_size for f in (case.source / "compact").rglob("*") if f.is_file())
        verdicts = {name: verdict(job(folder / "out"), expected) for name, job in case.jobs.items()}
        jobs = {name: partial(_fresh, job, folder / "out") for name, job in case.jobs.items()}
        jobs["the parent's files copied and synced"] = partial(
            _copied, case.source, folder / "copy"
        )
        seconds = interleaved(jobs, repeats=repeats, before=os.sync)
        mine = seconds[OURS]
        for name, took in seconds.items():
            note = f"{took:.2f} s{verdicts.get(name, '')}"
            yield Row(case.title, name, f"{took / mine:.2f}×", note, case.targets.get(name, ""))
        yield Row(case.title, "(bytes of the parent)", "", f"{size / 1e6:.0f} MB")
        if case.alone:
            yield from row_by_row(case, folder, mine, repeats)
        shutil.rmtree(case.source)


def row_by_row(case: Case, folder: Path, vectorized: float, repeats: int) -> Iterator[Row]:
    """Compare time per row: TorchRL's only per-sample mode, and ours when it cannot vectorise."""
    counts = {
        "offline-data, row by row": ROWS_OURS,
        "TorchRL preprocess, row by row": ROWS_TORCHRL,
    }
    options: dict[str, Any] = {"vectorize": False, "num_frames": ROWS_OURS, "num_workers": 1}
    ours = partial(by.ours, case.source, [case.work.row], case.work.leaf, **options)
    theirs = partial(by.torchrl_rows, case.source, case.work.row, case.work.leaf, ROWS_TORCHRL)
    made = dict(zip(counts, (ours, theirs), strict=True))
    expected = case.work.expected(case.source)
    verdicts = {
        name: verdict(job(folder / "out"), expected[: counts[name]]) for name, job in made.items()
    }
    jobs = {name: partial(_fresh, job, folder / "out") for name, job in made.items()}
    seconds = interleaved(jobs, repeats=min(3, repeats), before=os.sync)
    each = {name: took / counts[name] for name, took in seconds.items()}
    rows = len(expected)
    for name, took in each.items():
        against = took / (vectorized / rows)
        rowwise = took / each["offline-data, row by row"]
        note = f"{took * 1e6:.0f} µs a row, {rowwise:.1f}× ours row by row{verdicts[name]}"
        target = f"{case.targets[name]}, ≥ 15× where not" if name in case.targets else ""
        yield Row(case.title, name, f"{against:,.0f}× a row", note, target)


def verdict(found: Any, expected: Any) -> str:
    """Return a warning if values differ; vectorised reductions may round differently."""
    same = np.allclose(np.asarray(found, np.float64), expected, rtol=1e-5, atol=1e-5)
    return "" if same else ", WRONG VALUES"


def _fresh(job: Callable[[Path], Any], out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    job(out)


def _copied(source: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(source / "compact", out)
    for path in out.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
