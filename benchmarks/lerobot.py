"""Converting LeRobot datasets without images: time compared with reading them into numpy arrays.

All jobs read the same files from a warm page cache. `datasets` is compared where it is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.converters import ours
from benchmarks.timing import Row, interleaved
from tests.toys.lerobot import FPS, write_lerobot

STEPS = 400
"""Rows of an episode."""
_FEATURES = {
    "observation.state": {"dtype": "float32", "shape": [14], "names": None},
    "action": {"dtype": "float32", "shape": [14], "names": None},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}


def write(folder: Path, version: str, episodes: int) -> Path:
    """Write a dataset of 14 joints, whose rows are random; one data file, or one of each episode."""
    rng = np.random.default_rng(0)
    names = iter(_FEATURES)
    whole = episodes * STEPS
    numbers = np.arange(whole)

    def vectors() -> pa.Array:
        values = rng.standard_normal(whole * 14).astype(np.float32)
        return pa.FixedSizeListArray.from_arrays(pa.array(values), 14)

    step = numbers % STEPS
    columns = (
        vectors(),
        vectors(),
        pa.array(rng.random(whole).astype(np.float32)),
        pa.array(step == STEPS - 1),
        pa.array((step / FPS).astype(np.float32)),
        pa.array(step),
        pa.array(numbers // STEPS),
        pa.array(numbers),
        pa.array(numbers // STEPS % 2),
    )
    table = pa.table(dict(zip(names, columns, strict=True)))
    return write_lerobot(
        folder,
        version,
        [STEPS] * episodes,
        files=(),
        images=False,
        edit=lambda rows: table.slice(rows["index"][0].as_py(), len(rows)),
        features=_FEATURES,
    )


def by_pyarrow(path: Path) -> dict[str, np.ndarray]:
    """Read all columns by pyarrow alone, rows of vectors as `[N, 14]`."""
    table = pq.read_table(sorted(path.glob("data/*/*.parquet")))
    found = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            found[name] = column.flatten().to_numpy().reshape(len(table), -1)
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found


def by_datasets(path: Path, out: Path) -> dict[str, np.ndarray]:
    """Read all columns as LeRobot does, by `datasets`, whose files of Arrow are made anew."""
    import datasets

    shutil.rmtree(out / "datasets", ignore_errors=True)
    files = [str(one) for one in sorted(path.glob("data/*/*.parquet"))]
    datasets.disable_progress_bars()
    loaded = datasets.Dataset.from_parquet(files, cache_dir=str(out / "datasets"))
    found: dict[str, np.ndarray] = loaded.with_format("numpy")[:]
    return found


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure both versions; `scale` shrinks the data for a quick look."""
    episodes = max(2, int(2500 * scale))
    for version in ("v3.0", "v2.1"):
        path = write(folder / version, version, episodes)
        jobs = {
            "offline-data": partial(ours("lerobot"), path, folder),
            "offline-data, 1 process": partial(ours("lerobot", "compact", 1), path, folder),
            "pyarrow to numpy": partial(by_pyarrow, path),
        }
        if find_spec("datasets"):
            jobs["datasets to numpy"] = partial(by_datasets, path, folder)
        else:
            yield Row(f"LeRobot {version}", "datasets", "", "not installed: pip install datasets")
        _check(path, folder)
        times = interleaved(jobs, repeats=repeats)
        mine, rows = times["offline-data"], episodes * STEPS
        for name, seconds in times.items():
            yield Row(
                f"LeRobot {version}, {rows:,} frames without images",
                name,
                f"{seconds / mine:.2f}×",
                f"{seconds:.2f} s, {rows / seconds / 1e6:.2f} M frames/s",
                "≤ 2× datasets" if name == "offline-data" else "",
            )


def _check(path: Path, out: Path) -> None:
    """Fail unless the dataset has what pyarrow reads."""
    from offline_data.store.library import entry_at
    from offline_data.store.reader import open_reader

    ours("lerobot")(path, out)
    (manifest,) = (out / "ours").glob("local/bench/*/manifest.json")
    reader, truth = open_reader(entry_at(manifest.parent).path), by_pyarrow(path)
    np.testing.assert_array_equal(reader.step(("action",)), truth["action"])
