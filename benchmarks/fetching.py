"""Downloading files over loopback: time compared with curl and other clients, memory, same bytes.

The server is a separate process on the same machine with its files in the page cache, and every job
writes to the same disk without pending writes from before. This package hashes, compares and syncs
files; the names of the other jobs say what they do.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np

from benchmarks import fetchers
from benchmarks.fetchers import Fetch, openssl, then
from benchmarks.file_server import serving
from benchmarks.memory import added_mib
from benchmarks.timing import Row, interleaved

MIB = 1 << 20
OURS = "offline-data"
TOOLS = ("curl", "openssl", "sha256sum", "sync")
"""Programs that jobs are named by; without one its jobs are left out."""
ONE_FILE: dict[str, Fetch] = {
    OURS: fetchers.ours,
    "offline-data, no digest published": fetchers.unpublished,
    "curl, nothing kept: the server's ceiling": fetchers.curl_to_nowhere,
    "curl": fetchers.curl,
    "curl, sha256sum": then(fetchers.curl, ["sha256sum"]),
    "curl, openssl's sha256": then(fetchers.curl, openssl),
    "curl, openssl's sha256, sync": then(fetchers.curl, openssl, ["sync"]),
    "httpx, written": fetchers.httpx_stream,
    "hf_hub_download": fetchers.hub_download,
}
MANY_FILES: dict[str, Fetch] = {
    OURS: fetchers.ours,
    "offline-data, no digest published": fetchers.unpublished,
    "curl, one after the other": fetchers.curl,
    "curl --parallel": fetchers.parallel_curl,
    "curl --parallel, sha256sum": then(fetchers.parallel_curl, ["sha256sum"]),
    "curl --parallel, sha256sum, sync": then(fetchers.parallel_curl, ["sha256sum"], ["sync"]),
    "httpx, written, one after the other": fetchers.httpx_stream,
    "hf_hub_download, one after the other": fetchers.hub_download,
}


@dataclass(frozen=True)
class Case:
    """Some files and the ways to download them, this package's first."""

    title: str
    files: list[Path]
    jobs: dict[str, Fetch]
    target: str


def cases(folder: Path, scale: float) -> Iterator[Case]:
    for name, size in (("middle", 64 * MIB), ("large", 1024 * MIB)):
        file = write(folder / name, int(size * scale))
        title = f"one file of {size * scale / MIB:.0f} MiB"
        yield Case(title, [file], ONE_FILE, "≥ 0.8× of curl, sha256sum")
    count = int(200 * scale)
    files = [write(folder / f"small-{number:03}", 256 << 10) for number in range(count)]
    yield Case(f"{count} files of 256 KiB", files, MANY_FILES, "≥ 0.5× of curl --parallel")


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure every case; `scale` shrinks the data for a quick look."""
    served, out = folder / "served", folder / "out"
    served.mkdir()
    with serving(served) as url:
        for case in cases(served, scale):
            yield from compare(case, url, out, repeats)
            for file in case.files:
                file.unlink()
        yield from memory(served, url, out, scale)


def compare(case: Case, url: str, out: Path, repeats: int) -> Iterator[Row]:
    jobs = {
        name: partial(job, url, case.files, out)
        for name, job in case.jobs.items()
        if all(shutil.which(tool) for tool in TOOLS if tool in name)
    }
    verdicts = {}
    for name, job in jobs.items():
        empty(out)
        verdicts[name] = verdict(case.files, job())
    seconds = interleaved(jobs, repeats=repeats, warmup=0, before=partial(empty, out))
    size = sum(file.stat().st_size for file in case.files)
    for name, taken in seconds.items():
        target = case.target if name == OURS else ""
        note = f"{size / taken / 1e6:.0f} MB/s, {taken:.3f} s{verdicts[name]}"
        yield Row(case.title, name, f"{taken / seconds[OURS]:.2f}×", note, target)
    empty(out)


def memory(served: Path, url: str, out: Path, scale: float) -> Iterator[Row]:
    """Measure the peak memory of downloads of several sizes; the largest file is sparse."""
    setup = (
        "from benchmarks import fetchers; url, small, large, out = sys.argv[1:]\n"
        "fetchers.ours(url, [Path(small)], Path(out) / 'small', published=False)"
    )
    work = "fetchers.ours(url, [Path(large)], Path(out) / 'large', published=False)"
    small = write(served / "small", 256 << 10)
    large = served / "large"
    for size in (64 * MIB, 1024 * MIB, 4096 * MIB):
        with large.open("wb") as file:
            file.truncate(int(size * scale))
        empty(out)
        added = added_mib(setup, work, url, small, large, out)
        title = f"one file of {size * scale / MIB:.0f} MiB, memory"
        yield Row(title, OURS, "", f"peak +{added} MiB", "< 32 MiB")
    empty(out)


def verdict(files: list[Path], made: list[Path]) -> str:
    """Return a warning if the downloaded bytes differ from the served ones."""
    same = all(filecmp.cmp(*pair, shallow=False) for pair in zip(files, made, strict=False))
    return "" if same else ", WRONG BYTES"


def empty(out: Path) -> None:
    """Remove the results of the previous job, and wait for pending writes."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    os.sync()


def write(path: Path, size: int) -> Path:
    """Write a file in which no eight bytes repeat; names make files differ."""
    first = crc32(path.name.encode()) << 30
    with path.open("wb") as file:
        for at in range(0, size, MIB):
            numbers = np.arange(first + at // 8, first + min(at + MIB, size) // 8, dtype="<u8")
            file.write(numbers.tobytes())
    return path
