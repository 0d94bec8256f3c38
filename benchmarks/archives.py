"""Converting compressed archives: time beside their decompressor alone, which only reads."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.converters import make
from benchmarks.timing import Row, interleaved
from offline_data.sources.atari_dqn.log import file_of
from offline_data.testing.atari_toy import write_gz
from offline_data.testing.gen_dgrl_toy import packed, toy_name, write_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure both kinds; one file of frames of Atari DQN is published with 1M rows."""
    rows = int(50_000 * scale)
    log = write_log(folder / "replay_logs", 2, rows)
    frames = [log / file_of("observation", number) for number in range(2)]
    title = f"Atari DQN, 2 checkpoints of {rows:,} rows of 84 × 84"
    yield from measured(title, log, ("ours", "atari_dqn"), ["gzip", "-dc"], frames, repeats)
    episodes = int(60 * scale)
    for kind in ("npz", "pickle"):
        path = write_procgen(folder / f"bigfish-{kind}.tar.xz", episodes, kind)
        title = f"Gen-DGRL tar.xz, {episodes} episodes × 300 steps of 3 × 64 × 64, {kind}"
        job = ("ours", "gen_dgrl")
        yield from measured(title, path, job, ["xz", "-dc"], [path], repeats)


def measured(
    title: str,
    path: Path,
    job: tuple[str, ...],
    command: list[str],
    files: list[Path],
    repeats: int,
) -> Iterator[Row]:
    """Time a conversion in a loop with the program that decompresses its files, one after the other."""
    out = path.parent / "out"
    alone = partial(subprocess.run, [*command, *map(str, files)], stdout=subprocess.DEVNULL)
    jobs: dict[str, Any] = {"offline-data": partial(make(job), path, out), " ".join(command): alone}
    seconds = interleaved(jobs, repeats=repeats, before=os.sync)
    for name, took in seconds.items():
        ours = name == "offline-data"
        ratio = f"{took / seconds['offline-data']:.2f}×"
        target = f"≤ 1.3 × {' '.join(command)}" if ours else ""
        yield Row(title, name, ratio, f"{took:.2f} s", target)


def play(random: np.random.Generator, count: int, *shape: int) -> NDArray[np.uint8]:
    """Make frames like those of a game: a still background, things that move, and some noise."""
    frames = np.zeros((count, *shape), np.uint8)
    frames[..., shape[-2] // 8 :, :] = 87
    times = np.arange(count)
    for thing in range(10):
        ys = (times * (thing + 1) // 3 + thing * 17) % (shape[-2] - 5)
        xs = (times * (thing + 2) // 2 + thing * 29) % (shape[-1] - 4)
        for dy in range(5):
            for dx in range(4):
                frames[times, ..., ys + dy, xs + dx] = (thing * 23 + 7) % 256
    for _ in range(shape[-1] * 2):
        place = (random.integers(0, shape[-2], count), random.integers(0, shape[-1], count))
        values = random.integers(1, 255, (count, *[1] * (len(shape) - 2)))
        frames[times, ..., place[0], place[1]] = values
    return frames


def write_log(folder: Path, checkpoints: int, capacity: int) -> Path:
    """Write checkpoints whose episodes have some 1,000 steps."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    total = checkpoints * capacity
    lengths = random.integers(700, 1300, total // 700 + 1)
    ends = np.cumsum(lengths + 3) - 1
    ends = ends[(ends < total) & ~np.isin(ends % capacity, range(capacity - 6, capacity))]
    zeros = (ends[:, None] + np.arange(1, 4)).reshape(-1)
    zeros = np.concatenate([range(3), zeros[zeros < total]])
    columns = {
        "observation": play(random, total, 84, 84),
        "action": random.integers(1, 6, total).astype(np.int32),
        "reward": random.integers(-1, 2, total).astype(np.float32),
        "terminal": np.zeros(total, np.uint8),
    }
    columns["terminal"][ends] = 1
    for column in columns.values():
        column[zeros] = 0
    for number in range(checkpoints):
        first = number * capacity
        counts = {
            "add_count": np.array(first + capacity - 1),
            "invalid_range": (capacity - 2 + np.arange(5)) % capacity,
        }
        ring = {}
        for name, column in columns.items():
            ring[name] = np.array(column[first : first + capacity])
            ring[name][-1] = column[first - 1] if number else 0
        for name, values in {**ring, **counts}.items():
            write_gz(folder / file_of(name, number), values)
    return folder


def write_procgen(path: Path, episodes: int, kind: Any) -> Path:
    """Write episodes of 300 steps, frames float32."""
    random, files = np.random.default_rng(0), {}
    for episode in range(episodes):
        reward = random.integers(0, 2, (300, 1)).astype(np.float32)
        arrays = {
            "observations": play(random, 301, 3, 64, 64).astype(np.float32),
            "actions": random.integers(0, 15, (300, 1)),
            "rewards": reward,
            "dones": (np.arange(300) == 299).astype(np.float32),
        }
        suffix = "npz" if kind == "npz" else "npy"
        name = toy_name(episode, 300, float(reward.sum()), suffix)
        files[f"bigfish/{name}"] = packed(arrays, kind)
    return write_archive(path, files)
