"""Ways to download files: this package's, curl with and without equivalent work, others."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.file_server import COMMIT
from offline_data.base.config import Settings
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.run import run_fetch

Fetch = Callable[[str, Sequence[Path], Path], list[Path]]
"""Downloads a server's files to an empty folder; returns the copies."""


def ours(url: str, files: Sequence[Path], out: Path, *, published: bool = True) -> list[Path]:
    """Download as this package always does: hashed, compared, synced, recorded."""
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
    """Download all files in one process with persistent connections."""
    urls = [f"{url}/{file.name}" for file in files]
    command = ["curl", "--no-progress-meter", *options, "--remote-name-all", *urls]
    subprocess.run(command, check=True, cwd=out)
    return [out / file.name for file in files]


def parallel_curl(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """Download with up to 50 concurrent transfers, curl's default."""
    return curl(url, files, out, "--parallel")


def curl_to_nowhere(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """Discard everything: the maximum of the server and the loopback."""
    for file in files:
        curl(url, [file], out, "--output", "/dev/null")
        (out / file.name).unlink(missing_ok=True)
    return []


def then(first: Fetch, *commands: Sequence[str]) -> Fetch:
    """Run programs one by one on the files downloaded by `first`."""

    def job(url: str, files: Sequence[Path], out: Path) -> list[Path]:
        made = first(url, files, out)
        for command in commands:
            subprocess.run([*command, *made], check=True, stdout=subprocess.DEVNULL)
        return made

    return job


def httpx_stream(url: str, files: Sequence[Path], out: Path) -> list[Path]:
    """Run the loop of httpx's documentation: one file at a time, nothing verified."""
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
    """Run `hf_hub_download`, one file at a time; it compares the size."""
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
    """Return the digest of a served file; computed once, outside the timing."""
    running = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            running.update(block)
    return running.hexdigest()
