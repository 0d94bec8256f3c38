"""What comparing a new dataset with its source costs: seconds of `convert` by `--audit`.

Rows are read back in a thread while the next ones are read from the source. `none` compares nothing,
and is what the others are measured against.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import offline_data
from benchmarks.timing import Row, interleaved
from offline_data.store.layout import parse_audit
from tests.toys.minari import write_minari_hdf5

AUDITS = ("none", "0.01", "auto", "all")


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Convert Minari files of several sizes; `scale` shrinks the data for a quick look."""
    for thousands in (10, 100, 1000):
        path = write_minari_hdf5(folder / f"n{thousands}-v0", int(thousands * scale) or 1, 1000)
        jobs = {
            audit: partial(
                offline_data.convert,
                path,
                "one",
                audit=parse_audit(audit),
                force=True,
                progress=False,
                root=folder / "root",
            )
            for audit in AUDITS
        }
        stored = {audit: job() for audit, job in jobs.items()}
        seconds = interleaved(jobs, repeats=repeats, before=os.sync)
        for audit, one in stored.items():
            case = f"{one.transitions:,} rows, {one.bytes / 2**20:.0f} MiB"
            compared = f"{one.manifest.audit['rows']:,} rows compared"
            ratio = f"{seconds[audit] / seconds['none']:.2f}×"
            yield Row(case, f"--audit {audit}", ratio, f"{seconds[audit]:.2f} s, {compared}")
