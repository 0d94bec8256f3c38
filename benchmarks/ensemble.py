"""A batch of 256 from four cached datasets: this package's and TorchRL's ensembles, and a mixture.

An ensemble returns `[4, 64]`; a mixture `[256]`, with each row's member drawn independently. Every
member's rows are compared with TorchRL's at the same positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sampling import rows_of, setting
from benchmarks.sampling_data import (
    D4RL,
    OURS,
    STEPS,
    assert_same,
    calls_for,
    load_ted,
    torchrl,
    touch,
    write,
)
from benchmarks.timing import Row, interleaved
from offline_data import open_dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble

MEMBERS, SIZE = 4, 256


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure both kinds; `scale` shrinks the data for a quick look."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.data import ReplayBufferEnsemble as TorchRLs

    print(f"ensemble: {setting()}")
    folders = [folder / str(number) for number in range(MEMBERS)]
    rows = [write(each, D4RL, int(250_000 * scale), seed) for seed, each in enumerate(folders)]
    mine = [open_dataset(each / "compact") for each in folders]
    theirs = [torchrl(load_ted(each)) for each in folders]
    for members in (mine, theirs):
        for member, count in zip(members, rows, strict=True):
            touch(member, count)
    buffers: dict[str, Any] = {
        OURS: ReplayBufferEnsemble(*mine, sample_from_all=True, batch_size=SIZE),
        "TorchRL": TorchRLs(*theirs, sample_from_all=True, batch_size=SIZE),
        "offline-data, mixture": DatasetMixture(*mine, weights="equal", batch_size=SIZE),
    }
    _compare(buffers[OURS].sample(), theirs)
    jobs = {name: buffer.sample for name, buffer in buffers.items()}
    seconds = interleaved(jobs, repeats=repeats, calls=calls_for(jobs["TorchRL"]))
    case = f"{D4RL.title}, {MEMBERS} members of {rows[0] // STEPS * STEPS:,} rows, batch {SIZE}"
    yield from rows_of(case, seconds, "≥ 10× TorchRL")


def _compare(batch: Any, members: list[Any]) -> None:
    for number, member in enumerate(members):
        part = batch[number].exclude("index")
        if (batch[number]["index", "buffer_ids"] != number).any():
            raise AssertionError("members are not in order")
        assert_same(part, member[batch[number]["index", "index"]])
