"""Every way to write files, on a disk that is full and killed at any time: nothing of it stays, and it can be repeated."""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import NoSpaceError, OfflineDataError
from offline_data.base.progress import SilentProgress
from offline_data.formats.robomimic.writer import RobomimicTarget
from offline_data.formats.writing.base import TARGETS, ExportTarget, get_target
from offline_data.pipeline.export.writing import write_files
from offline_data.testing.toy import toy_batch, write_toy
from tests.forks import FORKS

FULL = 7
PARTS = (0.02, 0.3, 0.6, 0.9, 0.99)
"""Parts of what is needed that the disk has room for; and of its time, after which it is killed."""

Limit = Literal["disk", "file"]
"""A disk of a size, or the maximum size of a file (`ulimit -f`)."""


def export_to(to: str, data: Path, out: Path) -> None:
    target = get_target(to)
    offline_data.export(
        data,
        out / f"toy-v0{target.suffix}",
        to=to,
        observation=None if target.holds.nested else "observation/state",
        fps=10 if to == "lerobot" else None,
        root=data.parent / "root",
        progress=False,
    )


def merge(data: Path, out: Path) -> None:
    other = data.with_name("other")
    offline_data.merge(data, other, name="both", force=True, root=out, progress=False)


def push(data: Path, out: Path) -> None:
    settings = Settings(data.parent / "root")
    offline_data.push(data, str(out / "toy"), settings=settings, progress=False)


def record(data: Path, out: Path) -> None:
    del data
    game: Any = gymnasium.Env()
    game.observation_space = gymnasium.spaces.Box(-1, 1, (400,))
    game.action_space = gymnasium.spaces.Discrete(3)
    seen = np.zeros(400, np.float32)
    game.reset = lambda **_: (seen, {})
    game.step = lambda _: (seen, 1.0, False, False, {})
    with offline_data.Recorder(game, "mine", resume=True, root=out, progress=False) as env:
        for _ in range(20):
            env.reset()
            for _ in range(30):
                env.step(0)


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    **{f"export {to}": partial(export_to, to) for to in TARGETS},
    "merge": merge,
    "push": push,
    "record": record,
}
QUICK = {("export d3rlpy", "file")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of many small episodes with images, beside a second one, `other`."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("other", "toy"):
        write_toy(folder / name, [toy_batch([6] * 60, images=True)], dataset=f"local:{name}@1")
    return folder / "toy"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return what makes a disk of a number of bytes, or changes its size; skip where none can be made."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def sized(size: int) -> Path:
        how = f"remount,size={size}" if folder.is_mount() else f"size={size}"
        command = ["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no disk can be mounted here")
        return folder

    yield sized
    if folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)


def work(name: str, data: Path, out: Path, limit: int | None, said: Path) -> None:
    """Write, in a process of its own; files may have `limit` bytes."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        WRITERS[name](data, out)
    except NoSpaceError:
        os._exit(FULL)


def start(name: str, data: Path, out: Path, limit: int | None = None) -> Any:
    process = FORKS.Process(target=work, args=(name, data, out, limit, data.with_name("said")))
    process.start()
    return process


def run(name: str, data: Path, out: Path, limit: int | None = None) -> int:
    """Return the exit status; raise `AssertionError` for what HDF5 prints."""
    process = start(name, data, out, limit)
    process.join(120)
    said = data.with_name("said").read_bytes()
    assert b"Traceback" not in said, said[-2000:]
    return int(process.exitcode)


def sizes(out: Path) -> dict[str, int]:
    """Return the files that have bytes: locks have none; of recordings, what the log keeps is meant to stay."""
    files = [one for one in out.rglob("*") if one.is_file() and ".recordings" not in one.parts]
    return {str(one.relative_to(out)): one.stat().st_size for one in files if one.stat().st_size}


def names(out: Path) -> set[str]:
    """Return the names of files, without those of folders, which may depend on the time."""
    return {Path(one).name for one in sizes(out)}


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        pytest.param(name, limit, marks=() if (name, limit) in QUICK else pytest.mark.slow)
        for name in WRITERS
        for limit in ("file", "disk")
    ],
)
def test_a_full_disk(
    name: str, limit: Limit, data: Path, tmp_path: Path, disk: Callable[[int], Path]
) -> None:
    whole = tmp_path / "whole"
    assert run(name, data, whole) == 0
    needed = max(sizes(whole).values()) if limit == "file" else sum(sizes(whole).values())
    ends = []
    out = tmp_path / "out" if limit == "file" else disk(1 << 30)
    for part in PARTS[1:4:2] if (name, limit) in QUICK else PARTS:
        size = max(4096, int(part * needed))
        if limit == "disk":
            disk(size)
        ends.append(run(name, data, out, size if limit == "file" else None))
        assert ends[-1] in {0, FULL}, (part, ends)
        if ends[-1] == FULL:
            assert sizes(out) == {}, part
    assert ends.count(FULL) > len(ends) // 2, ends
    if limit == "disk":
        disk(1 << 30)
    assert run(name, data, out) == 0
    assert name == "record" or sizes(out).keys() == sizes(whole).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_killed_at_any_time(name: str, data: Path, tmp_path: Path) -> None:
    whole, took = tmp_path / "whole", math.inf
    for _ in range(
        3
    ):  # a first run, or one on a busy machine, takes longer than those that are killed
        shutil.rmtree(whole, ignore_errors=True)
        begin = time.monotonic()
        assert run(name, data, whole) == 0
        took = min(took, time.monotonic() - begin)
    out, killed = tmp_path / "out", 0
    for part in PARTS:
        process = start(name, data, out)
        time.sleep(part * took)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert run(name, data, out) == 0, part
        assert names(out) == names(whole), part
        shutil.rmtree(out)
    assert killed > 1


class Crashing(RobomimicTarget):
    """A format whose library crashes for another reason."""

    def write(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_of_the_library_is_an_error(data: Path, tmp_path: Path) -> None:
    target: ExportTarget = Crashing()
    with SilentProgress().task("", 1, "") as bar, pytest.raises(OfflineDataError) as caught:
        write_files(target, tmp_path / "x.hdf5", None, bar)  # type: ignore[arg-type]
    assert "x.hdf5 could not be written" in str(caught.value)
    assert "ended by SIGSEGV" in str(caught.value)
