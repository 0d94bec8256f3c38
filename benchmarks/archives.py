"""Converting compressed archives, compared with decompressing them only."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.converters import make
from benchmarks.timing import Row, interleaved
from offline_data.formats.atari_dqn.log import file_of
from tests.toys.atari import write_gz
from tests.toys.gen_dgrl import packed, toy_name


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure both kinds; one file of frames of Atari DQN is published with 1M rows."""
    rows = int(150_000 * scale)
    log = write_log(folder / "replay_logs", 2, rows)
    frames = [log / file_of("observation", number) for number in range(2)]
    title = f"Atari DQN, 2 checkpoints of {rows:,} rows of 84 × 84"
    yield from measured(title, log, "atari_dqn", {"gzip -dc": program("gzip", frames)}, repeats)
    episodes = int(100 * scale)
    for kind in ("pickle", "npz"):
        path = write_procgen(folder / f"bigfish-{kind}.tar.xz", episodes, kind)
        raw, size = 300 * episodes * 3 * 64 * 64 * 4, path.stat().st_size
        title = (
            f"Gen-DGRL tar.xz, {episodes} episodes × 300 steps of 3 × 64 × 64, {kind}: "
            f"{raw / 1e9:.1f} GB in {size / 1e6:.0f} MB"
        )
        alone: dict[str, Any] = {"xz -dc": program("xz", [path])}
        if kind == "npz":  # compressed twice: xz has little to do
            alone = {"xz, and zlib for each member": partial(inflate_members, path), **alone}
        yield from measured(title, path, "gen_dgrl", alone, repeats)


def program(name: str, files: list[Path]) -> Any:
    """Return a job that runs a decompressor on files one by one, discarding the output."""
    return partial(subprocess.run, [name, "-dc", *map(str, files)], stdout=subprocess.DEVNULL)


def inflate_members(path: Path) -> None:
    """Decompress an archive by `xz` and its npz members by zipfile, discarding the output."""
    with (
        subprocess.Popen(["xz", "-dc", str(path)], stdout=subprocess.PIPE) as xz,
        tarfile.open(fileobj=xz.stdout, mode="r|") as archive,
    ):
        for member in archive:
            content: Any = archive.extractfile(member)
            with zipfile.ZipFile(io.BytesIO(content.read())) as arrays:
                for name in arrays.namelist():
                    arrays.read(name)


def measured(
    title: str, path: Path, source: str, alone: dict[str, Any], repeats: int
) -> Iterator[Row]:
    """Time a conversion together with decompression only; the first of the latter is its target."""
    out = path.parent / "out"
    cpu: dict[str, list[float]] = defaultdict(list)

    def metered(name: str, job: Any) -> None:
        begin = _cpu_seconds()
        job()
        cpu[name].append(_cpu_seconds() - begin)

    jobs = {"offline-data": partial(make(("ours", source)), path, out), **alone}
    timed = {name: partial(metered, name, job) for name, job in jobs.items()}
    seconds = interleaved(timed, repeats=repeats, before=os.sync)
    for name, took in seconds.items():
        ratio = f"{took / seconds['offline-data']:.2f}×"
        target = f"≤ 1.3 × {next(iter(alone))}" if name == "offline-data" else ""
        note = f"{took:.2f} s, CPU {median(cpu[name][1:]):.2f} s, load {os.getloadavg()[0]:.0f}"
        yield Row(title, name, ratio, note, target)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def play(random: np.random.Generator, count: int, *shape: int) -> NDArray[np.uint8]:
    """Return frames like those of a game: a static background, moving objects, and noise."""
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
    """Write checkpoints whose episodes have about 1,000 steps."""
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


def scroll(random: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return frames `[count, 3, 64, 64]` of a textured ground with sub-pixel motion.

    A PNG of one has 5 of 12 kB, like those of Procgen's games.
    """
    ground = random.integers(0, 250, (3, 24, 24)).astype(np.float32)
    ground = np.kron(ground, np.ones((1, 8, 8), np.float32))  # patches of eight pixels
    ground += random.integers(0, 6, ground.shape)
    ys, xs = (np.abs(np.cumsum(random.normal(0, 0.4, count))) % 100 for _ in range(2))
    frames = np.empty((count, 3, 64, 64), np.float32)
    for frame, y, x in zip(frames, ys, xs, strict=True):
        part = ground[:, int(y) : int(y) + 65, int(x) : int(x) + 65]
        down, right = np.float32(y % 1), np.float32(x % 1)
        rows = part[:, :-1] * (1 - down) + part[:, 1:] * down
        frame[:] = rows[:, :, :-1] * (1 - right) + rows[:, :, 1:] * right
    return np.minimum(np.rint(frames), 255)


def write_procgen(path: Path, episodes: int, kind: Any) -> Path:
    """Write episodes of 300 steps, frames float32."""
    random = np.random.default_rng(0)
    with tarfile.open(path, "w:xz", preset=1) as archive:
        for episode in range(episodes):
            name, content = procgen_episode(random, episode, kind)
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path


def procgen_episode(random: np.random.Generator, episode: int, kind: Any) -> tuple[str, bytes]:
    """Return an episode of 300 steps: name and content of its file."""
    reward = random.integers(0, 2, (300, 1)).astype(np.float32)
    arrays = {
        "observations": scroll(random, 301),
        "actions": random.integers(0, 15, (300, 1)),
        "rewards": reward,
        "dones": (np.arange(300) == 299).astype(np.float32),
    }
    suffix = "npz" if kind == "npz" else "npy"
    return f"bigfish/{toy_name(episode, 300, float(reward.sum()), suffix)}", packed(arrays, kind)
