"""Ways to bring files to this disk: ours, curl with and without what makes it the same work, others."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.file_server import COMMIT
from offline_data.config import Settings
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.run import run_fetch

Fetch = Callable[[str, Sequence[Path], Path], list[Path]]
"""From a server's URL, the files it serves and an empty folder to where the copies are."""


def ours(url: str, files: Sequence[Path], out: Path, *, published: bool = True) -> list[Path]:
    """What every download of this package does: hashed, compared, synced, recorded."""
    settings = Settings(root=out)
    wanted = [
        RemoteFile(
            file.name,
            (f"{url}/{file.name}",),
            file.stat().st_size if published else None,
            f"sha256:{sha256_of(file)}" if published else None,
        )
        for file in files
    ]
    return [found.path for found in run_fetch(plan_fetch(wanted, settings), settings)]


def curl(url: str, files: Sequence[Path], out: Path, *options: str) -> list[Path]:
    """One process for all files; connections stay open."""
    urls = [f"{url}/{file.name}" for file in files]
    command = ["curl", "--no-progress-meter", *options, "--remote-name-all", *urls]
    subprocess.run(command, check=True, cwd=out)
    return [out / file.name for file in files]


def parallel_curl(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """Up to 50 transfers at a time, which is curl's own choice."""
    return curl(url, files, out, "--parallel")


def curl_to_nowhere(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """Nothing is kept: what the server and the loopback can do at most."""
    for file in files:
        curl(url, [file], out, "--output", "/dev/null")
        (out / file.name).unlink(missing_ok=True)
    return []


def then(first: Fetch, *commands: Sequence[str]) -> Fetch:
    """Run programs over what `first` has brought, one after the other."""

    def job(url: str, files: Sequence[Path], out: Path) -> list[Path]:
        made = first(url, files, out)
        for command in commands:
            subprocess.run([*command, *made], check=True, stdout=subprocess.DEVNULL)
        return made

    return job


def httpx_stream(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """The loop of httpx's documentation: one file after the other, nothing verified."""
    import httpx

    with httpx.Client() as client:
        for file in files:
            with (
                client.stream("GET", f"{url}/{file.name}") as response,
                (out / file.name).open("wb") as copy,
            ):
                for block in response.iter_bytes():
                    copy.write(block)
    return [out / file.name for file in files]


def hub_download(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """`hf_hub_download`, one file after the other; it compares the size."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    where: dict[str, Any] = {"repo_type": "dataset", "revision": COMMIT, "cache_dir": out}
    return [
        Path(hf_hub_download("bench/set", file.name, endpoint=url, token=False, **where))
        for file in files
    ]


unpublished = partial(ours, published=False)
openssl = ("openssl", "dgst", "-sha256")


@cache
def sha256_of(path: Path) -> str:
    """Digest of a file that is served; computed once, outside of what is timed."""
    running = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            running.update(block)
    return running.hexdigest()
