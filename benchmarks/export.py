"""Exports to Minari and Parquet, compared with those projects' own writers of the same arrays in memory.

Our time includes reading the dataset from the page cache, reading all files back and comparing every value,
and their digests; the peers only write. `datasets` is compared where it is installed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import offline_data
from benchmarks.timing import Row, interleaved
from offline_data.base.config import Settings
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.testing.toy import write_toy

STEPS = 1000
"""Rows of an episode."""
SEEN, ACTED = 17, 6
"""Values of an observation and an action, as of HalfCheetah."""


def make(episodes: int) -> EpisodeBatch:
    """Return episodes of random values."""
    rng = np.random.default_rng(0)
    lengths = np.full(episodes, STEPS)
    rows = episodes * STEPS
    last = np.zeros((rows, 1), bool)
    last[STEPS - 1 :: STEPS] = True
    return EpisodeBatch(
        lengths,
        {
            ("action",): rng.standard_normal((rows, ACTED), np.float32),
            REWARD: rng.standard_normal((rows, 1)),
            TERMINATED: np.zeros_like(last),
            TRUNCATED: last,
        },
        {("observation",): rng.standard_normal((rows + episodes, SEEN))},
        np.ones(episodes, bool),
    )


def ours(dataset: Path, out: Path, to: str) -> None:
    """Export the dataset to a new place."""
    dest = out / f"ours-{to}-v0"
    shutil.rmtree(dest, ignore_errors=True)
    settings = Settings(out / "root")
    offline_data.export(dataset, dest, to=to, settings=settings, progress=False)


def by_minari(batch: EpisodeBatch, out: Path) -> None:
    """Write the arrays with `minari.create_dataset_from_buffers`."""
    import minari
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    shutil.rmtree(out / "minari", ignore_errors=True)
    (out / "minari").mkdir()
    os.environ["MINARI_DATASETS_PATH"] = str(out / "minari")
    flags = [batch.steps[key].reshape(-1, STEPS) for key in (REWARD, TERMINATED, TRUNCATED)]
    seen = batch.observations["observation",].reshape(-1, STEPS + 1, SEEN)
    acted = batch.steps["action",].reshape(-1, STEPS, ACTED)
    buffers: list[Any] = [
        EpisodeBuffer(number, None, None, *columns)
        for number, columns in enumerate(zip(seen, acted, *flags, strict=True))
    ]
    minari.create_dataset_from_buffers(
        "bench/peer-v0",
        buffers,
        observation_space=Box(-np.inf, np.inf, (SEEN,), np.float64),
        action_space=Box(-np.inf, np.inf, (ACTED,), np.float32),
        jpeg_encoding=False,
    )


def by_pyarrow(batch: EpisodeBatch, out: Path) -> None:
    """Write one row a step with pyarrow, compressed as ours."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = np.delete(batch.observations["observation",], slice(STEPS, None, STEPS + 1), axis=0)
    columns = {
        "observation": pa.FixedSizeListArray.from_arrays(pa.array(before.ravel()), SEEN),
        "action": pa.FixedSizeListArray.from_arrays(
            pa.array(batch.steps["action",].ravel()), ACTED
        ),
        **{"/".join(k): pa.array(batch.steps[k][:, 0]) for k in (REWARD, TERMINATED, TRUNCATED)},
    }
    pq.write_table(pa.table(columns), out / "peer.parquet", compression="zstd")


def by_datasets(batch: EpisodeBatch, out: Path) -> None:
    """Write one row a step with `datasets.Dataset.to_parquet`, from arrays."""
    import datasets

    before = np.delete(batch.observations["observation",], slice(STEPS, None, STEPS + 1), axis=0)
    columns = {
        "observation": before,
        "action": batch.steps["action",],
        **{"/".join(k): batch.steps[k][:, 0] for k in (REWARD, TERMINATED, TRUNCATED)},
    }
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns).to_parquet(out / "datasets.parquet")


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure both formats; `scale` shrinks the data for a quick look."""
    batch = make(max(2, int(1000 * scale)))
    dataset = folder / "dataset"
    write_toy(dataset, [batch], audit="none")
    peers = {"minari": {"minari": partial(by_minari, batch, folder)}}
    peers["parquet"] = {"pyarrow": partial(by_pyarrow, batch, folder)}
    if find_spec("datasets"):
        peers["parquet"]["datasets"] = partial(by_datasets, batch, folder)
    else:
        yield Row("export to parquet", "datasets", "", "not installed: pip install datasets")
    for to, others in peers.items():
        jobs = {"offline-data": partial(ours, dataset, folder, to), **others}
        times = interleaved(jobs, repeats=repeats)
        for name, seconds in times.items():
            ratio = f"{seconds / times['offline-data']:.2f}×"
            rate = f"{batch.transitions / seconds / 1e6:.2f} M rows/s"
            case = f"export of {batch.transitions:,} rows to {to}"
            yield Row(case, name, ratio, f"{seconds:.2f} s, {rate}")
