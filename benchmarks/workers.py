"""The number of processes that `preprocess` chooses, compared with one and two, for kinds of work."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import offline_data
from benchmarks import preprocessors as by
from benchmarks.sampling_data import D4RL, Data
from benchmarks.timing import Row, interleaved
from offline_data.pipeline.jobs.executors import InProcess, LocalProcesses

CHOSEN = "as chosen"
WEIGHTS = torch.linspace(-1, 1, 17 * 512).reshape(17, 512) / 17
EXECUTORS: dict[str, Any] = {
    CHOSEN: "local",
    "1 process": InProcess(1),
    "2 processes": LocalProcesses(2),
}


def light(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] * 0.1
    return td


def heavy(td: Any) -> Any:
    hidden = td["observation"] @ WEIGHTS
    for _ in range(6):
        hidden = torch.tanh(hidden)
    td["feature"] = hidden.mean(-1, keepdim=True)
    return td


def branching(td: Any) -> Any:
    if float(td["next", "reward"]) > 0:  # a value decides: it runs row by row
        td["next", "reward"] = td["next", "reward"] * 0.1
    return td


def waiting(td: Any) -> Any:
    time.sleep(0.002)
    if float(td["next", "reward"]) > 0:
        td["next", "reward"] = td["next", "reward"] * 0.1
    return td


KINDS: dict[str, tuple[Callable[[Any], Any], Data, int]] = {
    "reward scaling, vectorised": (light, D4RL, 4_000_000),
    "a wide layer for each row, vectorised": (heavy, D4RL, 1_000_000),
    "a condition on a value, row by row": (branching, D4RL, 100_000),
    "2 ms of waiting for each row": (waiting, D4RL, 6_000),
    by.RESIZE.title: (by.RESIZE.row, by.RESIZE.data, 20_000),
}


def run(folder: Path, *, repeats: int = 3, scale: float = 1.0) -> Iterator[Row]:
    """Measure every kind; the results of all choices have the same digest."""
    for title, (fn, data, whole) in KINDS.items():
        rows = max(1000, int(whole * scale))
        source, out = by.write(folder / "source", data, rows), folder / "out"
        jobs = {name: partial(make, source, fn, engine, out) for name, engine in EXECUTORS.items()}
        contents = {name: job() for name, job in jobs.items()}
        seconds = interleaved(jobs, repeats=repeats, warmup=0, before=os.sync)
        best = min(took for name, took in seconds.items() if name != CHOSEN)
        for name, took in seconds.items():
            wrong = "" if contents[name] == contents[CHOSEN] else ", ANOTHER RESULT"
            target = "≤ 1.05× the best" if name == CHOSEN else ""
            yield Row(
                f"{title}, {rows:,} rows",
                name,
                f"{took / best:.2f}×",
                f"{took:.2f} s{wrong}",
                target,
            )
        shutil.rmtree(source)


def make(source: Path, fn: Callable[[Any], Any], engine: Any, out: Path) -> dict[str, Any]:
    """Preprocess anew; returns the digests of all files of rows."""
    shutil.rmtree(out, ignore_errors=True)
    dataset = offline_data.open_dataset(source / "compact")
    dataset.preprocess(fn, engine=engine, dest=out, progress=False)
    digests = offline_data.open_dataset(out).manifest.digests
    return {name: entry for name, entry in digests.items() if not name.startswith("episodes")}
