"""Slices from cached files: this package and TorchRL, which caches episode boundaries.

Rows drawn by this package are compared with TorchRL's at the same positions, except for the flags that
both set at the ends of slices, and must be consecutive in one episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.sampling import rows_of, setting
from benchmarks.sampling_data import (
    D4RL,
    OURS,
    assert_same,
    calls_for,
    load_ted,
    torchrl,
    touch,
    write,
)
from benchmarks.timing import Row, interleaved
from offline_data import open_dataset
from offline_data.rows.samplers import SliceSampler

SHAPES = ((8, 32), (64, 64))
"""Number of slices in a batch, and of rows in a slice."""
FLAGS = ("index", ("next", "truncated"), ("next", "done"))


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure every shape; `scale` shrinks the data for a quick look."""
    from torchrl.data import SliceSampler as TorchRLs

    print(f"slices: {setting()}")
    rows = write(folder, D4RL, int(1_000_000 * scale))
    ted = load_ted(folder)
    for count, length in SHAPES:
        size = count * length
        given = {"slice_len": length, "traj_key": "episode"}
        cached = TorchRLs(**given, cache_values=True)
        buffers: dict[str, Any] = {
            OURS: open_dataset(folder / "compact", size, sampler=SliceSampler(slice_len=length)),
            "TorchRL": torchrl(ted, sampler=cached, batch_size=size),
            "TorchRL, without its cache": torchrl(ted, sampler=TorchRLs(**given), batch_size=size),
        }
        for buffer in (buffers[OURS], buffers["TorchRL"]):
            touch(buffer, rows)
        _compare(buffers, length)
        jobs = {name: buffer.sample for name, buffer in buffers.items()}
        seconds = interleaved(jobs, repeats=repeats, calls=calls_for(jobs["TorchRL"]))
        yield from rows_of(f"{D4RL.title}, slices {count} × {length}", seconds, "≥ 8× TorchRL")


def _compare(buffers: dict[str, Any], length: int) -> None:
    for buffer in buffers.values():
        batch = buffer.sample()
        index = batch["index"].reshape(-1)
        steps = index.view(-1, length)
        episodes = batch["episode"].reshape(-1, length)
        if (steps.diff(dim=1) != 1).any() or (episodes != episodes[:, :1]).any():
            raise AssertionError("a slice that is none")
        ends = torch.zeros(len(steps), length, dtype=torch.bool)
        ends[:, -1] = True
        if (batch["next", "truncated"].reshape(-1, length) != ends).any():
            raise AssertionError("ends of slices are not marked")
    mine = buffers[OURS].sample()
    assert_same(mine, buffers["TorchRL"][mine["index"]], ignore=FLAGS)
