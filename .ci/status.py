"""Request the first bytes of a sample of datasets from their hosts, and write a status page.

Writes `status.md` and `status.json`. A dataset is available if its source resolves it,
and a file of it begins and is as long as published. The exit code is 1 if a source has none left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from offline_data.base.config import Settings, TransferLimits, resolve_settings
from offline_data.base.errors import AuthError, NetworkError, OfflineDataError
from offline_data.fetch.client import open_client, open_url
from offline_data.fetch.files import RemoteFile, check_head, check_size
from offline_data.fetch.hub import hub_headers, url_on_hub
from offline_data.fetch.mirrors import host_of, scheme_of
from offline_data.fetch.plan import FileStep, plan_fetch
from offline_data.fetch.retry import FetchLimits, with_retries
from offline_data.formats.registry import get_source, iter_catalogs

HEAD = 1024
"""Bytes requested of a file."""
TRANSFER = TransferLimits(files_at_once=8, timeout=20.0, tries=2)


@dataclass(frozen=True)
class Finding:
    """One dataset of the sample."""

    id: str
    outcome: str
    """`available`, `refused` (a log-in or accepted terms are needed), `failed` or `unanswered`."""
    host: str = ""
    file: str = ""
    seconds: float = 0.0
    message: str = ""


def sample(count: int, seed: int) -> dict[str, list[str]]:
    """Choose datasets of each source by seed: the week's number, so that each week has others."""
    chosen = {}
    for catalog in iter_catalogs():
        names = [entry.name for entry in catalog.catalog()]
        chooser = random.Random(f"{catalog.name} {seed}")  # noqa: S311 - no secret
        chosen[catalog.name] = sorted(chooser.sample(names, min(count, len(names))))
    return chosen


def check(source: str, name: str, settings: Settings, seed: int) -> Finding:
    """Resolve a dataset and read the first bytes of one of its files."""
    started, found = time.monotonic(), Finding(f"{source}:{name}", "failed")
    try:
        release = get_source(source).resolve(name, None, settings)
        if not release.files:
            return replace(found, message=f"it is on this machine: {release.local}")
        file = random.Random(f"{name} {seed}").choice(release.files)  # noqa: S311
        (step,) = plan_fetch([file], settings, force=True).steps
        found = replace(found, file=file.path, host=host_of(step.places[0]))
        read_head(step, settings)
    except AuthError as error:
        found = replace(found, outcome="refused", message=error.message)
    except OfflineDataError as error:
        found = replace(found, message=error.message)
    except Exception as error:  # noqa: BLE001 - a defect of one adapter must not hide the others
        found = replace(found, message=f"{type(error).__name__}: {error}")
    else:
        found = replace(found, outcome="available")
    return replace(found, seconds=round(time.monotonic() - started, 1))


def read_head(step: FileStep, settings: Settings) -> None:
    """Request the beginning of a file from its places in turn; raises the error of the last one."""
    limits = FetchLimits().within(settings.transfer)
    *others, last = step.places
    for place in others:
        try:
            return with_retries(partial(_read, step.file, place, settings), limits, time.sleep)
        except NetworkError:
            continue
    return with_retries(partial(_read, step.file, last, settings), limits, time.sleep)


def _read(file: RemoteFile, place: str, settings: Settings) -> None:
    headers, url = {"Range": f"bytes=0-{HEAD - 1}"}, place
    if scheme_of(place) == "hf":
        headers, url = {**hub_headers(settings), **headers}, url_on_hub(place, settings)
    with (
        open_client(FetchLimits().within(settings.transfer)) as client,
        open_url(client, url, headers) as response,
    ):
        check_head(file, next(response.iter_raw(HEAD), b""), url)
        whole = response.headers.get("Content-Range", "").rpartition("/")[2]
        size = whole if response.status_code == 206 else response.headers.get("Content-Length", "")
        if size.isdecimal():
            check_size(file, int(size), url)


def check_all(
    chosen: dict[str, list[str]],
    seconds: float,
    ask: Callable[[str, str], Finding],
) -> dict[str, list[Finding]]:
    """Check sources at the same time, the datasets of each in turn, within so many seconds."""
    deadline = time.monotonic() + seconds
    found: dict[str, list[Finding]] = {source: [] for source in chosen}
    lock = threading.Lock()

    def check_source(source: str) -> None:
        for name in chosen[source]:
            if time.monotonic() >= deadline:
                return
            finding = ask(source, name)
            with lock:
                found[source].append(finding)

    pool = ThreadPoolExecutor(TRANSFER.files_at_once)
    running: list[Future[None]] = [pool.submit(check_source, source) for source in chosen]
    wait(running, seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    with lock:
        listed = {source: list(some) for source, some in found.items()}
    for source, names in chosen.items():
        late = f"no answer within {seconds / 60:g} minutes"
        answered = len(listed[source])
        listed[source] += [
            Finding(f"{source}:{name}", "unanswered", message=late) for name in names[answered:]
        ]
    return listed


def page(found: dict[str, list[Finding]], when: str) -> str:
    """Write the page: a row for each source, then a line for each dataset that is not available."""
    lines = [
        "# Status of the sources",
        "",
        f"First bytes of a sample of each source's datasets, requested {when}. Each week has other",
        "datasets. `refused` means that the host asks for a log-in or accepted terms.",
        "",
        "| source | available | hosts | slowest |",
        "|---|---|---|---|",
    ]
    for source, some in found.items():
        good = sum(one.outcome == "available" for one in some)
        hosts = ", ".join(sorted({one.host for one in some if one.host}))
        slowest = max((one.seconds for one in some), default=0.0)
        lines.append(f"| {source} | {good} of {len(some)} | {hosts} | {slowest:.1f} s |")
    bad = [one for some in found.values() for one in some if one.outcome != "available"]
    if bad:
        lines += ["", "## Not available", ""]
        lines += [f"- `{one.id}` {one.outcome}: {' '.join(one.message.split())}" for one in bad]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files and return the exit code."""
    now = datetime.now(timezone.utc)
    year, week, _ = now.isocalendar()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("status"), help="folder of both files")
    parser.add_argument("--sample", type=int, default=3, help="datasets of each source")
    parser.add_argument("--seed", type=int, default=100 * year + week, help="default: year, week")
    parser.add_argument("--minutes", type=float, default=20.0, help="for all hosts together")
    given = parser.parse_args(arguments)
    when = now.isoformat(" ", "minutes")
    with tempfile.TemporaryDirectory() as root:  # nothing that is on this machine counts
        settings = resolve_settings(root=root, offline=False)
        settings = replace(settings, minari_path=Path(root), transfer=TRANSFER)
        ask = partial(check, settings=settings, seed=given.seed)
        found = check_all(sample(given.sample, given.seed), 60 * given.minutes, ask)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "status.md").write_text(page(found, when), "utf-8")
    facts = {"requested": when, "seed": given.seed, "datasets": []}
    facts["datasets"] = [asdict(one) for some in found.values() for one in some]
    (given.out / "status.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    down = [
        source
        for source, some in found.items()
        if not any(one.outcome in {"available", "refused"} for one in some)
    ]
    if down:
        print("no dataset is available of:", ", ".join(down), file=sys.stderr)  # noqa: T201
    return int(bool(down))


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # without waiting for hosts that still send a byte now and then
