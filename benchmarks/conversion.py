"""Converting Minari and D4RL files: time compared with peers and limits, memory, correctness.

All jobs of a case read the same file from a warm page cache and write to the same disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks import converters
from benchmarks.memory import added_mib
from benchmarks.timing import Row, interleaved
from tests.toys.minari import write_minari_hdf5


@dataclass(frozen=True)
class Case:
    """One file and the ways to convert it, this package's first."""

    title: str
    path: Path
    jobs: dict[str, tuple[str | int, ...]]
    """Arguments of `converters.make` by name of the job."""
    target: str


def cases(folder: Path, scale: float) -> Iterator[Case]:
    episodes = int(1000 * scale)
    yield Case(
        f"Minari HDF5, {episodes} episodes × 1000 steps",
        write_minari_hdf5(folder / "long-v0", episodes, 1000),
        {
            "offline-data": ("ours", "minari"),
            "offline-data, 1 process": ("ours", "minari", "compact", 1),
            "offline-data, layout ted": ("ours", "minari", "ted"),
            "h5py reads all, bytes written once": ("limit",),
            "the bytes written, nothing read": ("written",),
            "Minari's reader + write": ("minari_reader",),
            "TorchRL": ("torchrl_minari",),
        },
        "≥ 10× TorchRL, ≤ 2× writing the bytes",
    )
    episodes = int(20_000 * scale)
    yield Case(
        f"Minari HDF5, {episodes} episodes × 25 steps, dict",
        write_minari_hdf5(folder / "short-v0", episodes, 25, dict_observations=True),
        {
            "offline-data": ("ours", "minari"),
            "offline-data, 1 process": ("ours", "minari", "compact", 1),
            "Minari's reader + write": ("minari_reader",),
        },
        "≥ 5× Minari's reader",
    )
    rows = int(1_000_000 * scale)
    yield Case(
        f"D4RL gzip HDF5, {rows:,} steps",
        converters.write_d4rl(folder / "hopper_medium-v2.hdf5", rows),
        {
            "offline-data": ("ours", "d4rl"),
            "offline-data, 1 process": ("ours", "d4rl", "compact", 1),
            "h5py reads all, bytes written once": ("limit",),
            "the bytes written, nothing read": ("written",),
            "TorchRL": ("torchrl_d4rl",),
        },
        "≥ 3× TorchRL",
    )


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure every case; `scale` shrinks the data for a quick look."""
    for case in cases(folder, scale):
        out = folder / "out"
        made = {name: converters.make(job) for name, job in case.jobs.items()}
        verdicts = {name: verdict(case.path, job(case.path, out)) for name, job in made.items()}
        jobs = {name: partial(job, case.path, out) for name, job in made.items()}
        # Pending writes of one job must not be charged to the next.
        seconds = interleaved(jobs, repeats=repeats, before=os.sync)
        mine = seconds["offline-data"]
        for name in jobs:
            memory = peak_memory(case.jobs[name], case.path, out)
            note = f"{seconds[name]:.2f} s, peak +{memory} MiB" + verdicts[name]
            target = case.target if name == "offline-data" else ""
            yield Row(case.title, name, f"{seconds[name] / mine:.2f}×", note, target)


def verdict(path: Path, made: Any) -> str:
    """Return a warning if the first converted observations differ from the source."""
    if made is None:
        return ""
    expected = first_observations(path)
    key = ("observation",) if ("observation",) in made else ("observation", "observation")
    found = np.asarray(made[key])[: len(expected)]
    return "" if np.array_equal(found, expected) else ", WRONG VALUES"


def first_observations(path: Path) -> Any:
    with h5py.File(converters.hdf5_of(path)) as file:
        if "observations" in file:
            return file["observations"][:2000]
        group = file["episode_0"]
        seen = group["observations"]
        leaf = seen if isinstance(seen, h5py.Dataset) else seen["observation"]
        return leaf[: len(group["rewards"])]


def peak_memory(job: tuple[str | int, ...], path: Path, out: Path) -> int:
    """Return the MiB that a job adds to a fresh process with its imports done."""
    setup = (
        "from benchmarks import converters\n"
        f"job = converters.make({job!r}); path, out = map(Path, sys.argv[1:])\n"
        + ("import torchrl.data.datasets\n" if "torchrl" in str(job) else "")
    )
    return added_mib(setup, "job(path, out)", path, out)
