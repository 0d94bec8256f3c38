"""Ways to convert a file: this package's, other libraries', and lower bounds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offline_data.base.config import resolve_settings
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import open_reader

Convert = Callable[[Path, Path], object]
"""Converts a dataset's folder (Minari) or file (D4RL) into an output folder."""

CHUNK = 4 << 20


def make(spec: tuple[str | int, ...]) -> Convert:
    """Return a job of this module by its name and arguments."""
    name, *arguments = spec
    found = globals()[str(name)]
    return found(*arguments) if arguments else found


def ours(source: str, layout: str = "compact", workers: int | None = None) -> Convert:
    """Run `offline-data convert`, including audit and digests; returns the first observations."""

    def job(path: Path, out: Path) -> Any:
        settings = resolve_settings(root=out / "ours", workers=workers)
        options = Options(layout=layout, force=True)  # type: ignore[arg-type]
        reader = open_reader(convert(path, "bench", settings, options, source=source).path)
        rows = np.arange(2000)
        return dict(reader.transitions_at(rows).items())

    return job


def limit(path: Path, out: Path) -> None:
    """Read every array whole with h5py, then do what `written` does."""
    with h5py.File(hdf5_of(path)) as file:
        file.visititems(_read)
    written(path, out)


def written(_: Path, out: Path) -> None:
    """Write as many bytes as `ours`, once, and sync; read nothing."""
    size = sum(p.stat().st_size for p in (out / "ours").rglob("*") if p.is_file())
    write(out / "limit", iter([memoryview(bytes(size))]))


def _read(_: str, node: Any) -> None:
    """Read an array; returns None, since anything else would end the visit."""
    if isinstance(node, h5py.Dataset):
        node[()]


def minari_reader(path: Path, out: Path) -> None:
    """Iterate with Minari's own reader; write each array once, without shifts or checks."""
    from minari.dataset.minari_dataset import MinariDataset

    write(out / "minari", _arrays(MinariDataset(path / "data").iterate_episodes()))


def _arrays(episodes: Any) -> Iterator[memoryview]:
    for episode in episodes:
        tree = (episode.observations, episode.actions, episode.infos)
        flags = (episode.rewards, episode.terminations, episode.truncations)
        for array in (*_leaves(tree), *flags):
            yield memoryview(np.ascontiguousarray(array)).cast("B")


def _leaves(value: object) -> Iterator[np.ndarray]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, np.ndarray):
        yield value


def write(path: Path, blocks: Iterator[memoryview]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=CHUNK) as file:
        for block in blocks:
            for begin in range(0, len(block), CHUNK):
                file.write(block[begin : begin + CHUNK])
        file.flush()
        os.fsync(file.fileno())


def torchrl_minari(path: Path, out: Path) -> Any:
    """Run TorchRL's `MinariExperienceReplay` on a local dataset."""
    from torchrl import logger
    from torchrl.data.datasets import MinariExperienceReplay

    logger.setLevel("ERROR")

    shutil.rmtree(out / "torchrl", ignore_errors=True)
    with _environ("MINARI_DATASETS_PATH", str(path.parent)), redirect_stderr(StringIO()):
        return MinariExperienceReplay(
            path.name,
            batch_size=32,
            root=out / "torchrl",
            download=False,
            load_from_local_minari=True,
        )[:2000]


def torchrl_d4rl(path: Path, out: Path) -> Any:
    """Run TorchRL's `D4RLExperienceReplay` with the file in place of its download."""
    from torchrl.data.datasets import D4RLExperienceReplay, d4rl

    shutil.rmtree(out / "torchrl", ignore_errors=True)
    download = d4rl._download_dataset_from_url
    d4rl._download_dataset_from_url = lambda _url, _folder: path
    try:
        name = "hopper-medium-v2"
        return D4RLExperienceReplay(name, 32, direct_download=True, root=out / "torchrl")[:2000]
    finally:
        d4rl._download_dataset_from_url = download


def hdf5_of(path: Path) -> Path:
    return path / "data" / "main_data.hdf5" if path.is_dir() else path


def write_d4rl(path: Path, rows: int) -> Path:
    """Write a file like `hopper-medium-v2`: gzip, 17 values per observation, infos, next observations."""
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((rows + 1, 17)).astype(np.float32)
    ends = np.arange(1, rows + 1) % 1000 == 0
    columns = {
        "observations": seen[:-1],
        "next_observations": seen[1:],
        "actions": rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": ends,
        "infos/qpos": rng.standard_normal((rows, 9)),
        "infos/qvel": rng.standard_normal((rows, 9)),
    }
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file.create_dataset(name, data=values, compression="gzip")
    return path


@contextmanager
def _environ(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
