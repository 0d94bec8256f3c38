"""Hostile listings of hosts: answers of the hub and of a bucket, and folders of tokenizers."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.cases import ROOT, generator, loopback_only, only_dataset, plan_of_case
from tests.fuzz.disk import read_dataset
from tests.fuzz.harness import Kind, Plan, run_command
from tests.fuzz.manifest_variants import variants
from tests.fuzz.mutations import spoil_bytes, spoil_json
from tests.fuzz.source_kinds import Truth, compare, rlds_leaves, without_encoded
from tests.toys.minari import toy_episode, write_minari
from tests.toys.rlds import toy_record, write_rlds
from tests.toys.servers import Answer, FileServer, GcsServer, HubServer, Request

CODES = frozenset({0, 2, 3, 5, 6, 7})
_WEB = "http://pushed.example"
BUCKET_FOLDER = "robotics/viola/0.1.0/"


def spoiled(random: Random, answer: Answer) -> Answer:
    """Return an answer of JSON with changed values, bytes, status or link to a next page."""
    kind = random.randrange(8)
    headers = dict(answer.headers)
    if kind < 4:
        try:
            body = json.dumps(spoil_json(random, json.loads(answer.body)))
        except ValueError:
            return answer
        return Answer(body.encode(errors="surrogatepass"), answer.status, headers)
    if kind == 4:
        return Answer(spoil_bytes(random, answer.body), answer.status, headers)
    if kind == 5:
        odd = (b"", b"<html>log in", b"null", b"[]", b"{}", b'"x"', b"[null]", b"[[]]", b"1e999")
        return Answer(random.choice(odd), answer.status, headers)
    if kind == 6:
        links = ('<http://[::1>; rel="next"', '<>; rel="next"', '<file:///etc/passwd>; rel="next"',
                 '<?cursor=0>; rel="next"', 'rel="next"', '<%00>; rel=next', ";" * 999)  # fmt: skip
        return Answer(answer.body, answer.status, {**headers, "Link": random.choice(links)})
    status = random.choice((204, 301, 304, 400, 404, 410, 416, 451, 500, 599))
    return Answer(answer.body, status, {**headers, "X-Error-Code": "x\x9bJ", "Retry-After": "0"})


def _hostile(server: type[Any], random: Random, listing: str) -> type[Any]:
    """Return a server of which one to three answers about `listing` are changed."""
    left = [random.randint(1, 3)]

    class Hostile(server):  # type: ignore[misc]
        def answer(self, request: Request) -> Answer:
            right = super().answer(request)
            assert isinstance(right, Answer)
            if listing not in request.path or left[0] <= 0 or random.random() < 0.3:
                return right
            left[0] -= 1
            return spoiled(random, right)

    return Hostile


def _twice(seed: int, name: str) -> Plan:
    """The command, first while the host is hostile, then after it has become right."""
    line = ("download", name, *ROOT)
    verify = ("verify", "--all", *ROOT)
    codes = (CODES, frozenset({0}), frozenset({0}))
    return Plan((line, line, verify), codes, publishes=False, facts={"seed": seed})


def _impatient() -> None:
    """Wait for a host for milliseconds, not for seconds."""
    from offline_data.fetch.retry import FetchLimits

    given = {"connect": 2.0, "read": 0.3, "tries": 2, "first_wait": 0.001, "longest_wait": 0.002,
             "longest_retry_after": 0.01}  # fmt: skip
    names = FetchLimits.__dataclass_fields__
    FetchLimits.__init__.__defaults__ = tuple(given.get(n, f.default) for n, f in names.items())


# ---- the hub ---------------------------------------------------------------------------------


def prepare_hub(seed: int, folder: Path) -> Plan:
    """A dataset on a hub of this machine."""
    random = generator("hub", seed)
    episodes = [toy_episode(number, random.randint(1, 5)) for number in range(3)]
    write_minari(folder / "in" / "run-v0", episodes)
    return _twice(seed, "minari:big/run-v0")


def run_hub(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Download from it; its API is hostile to the first command."""
    _impatient()
    random = generator("hub-answers", plan_of_case(folder).facts["seed"])
    kind = _hostile(HubServer, random, "/api/") if number == 0 else HubServer
    with kind({"farama-minari/big": folder / "case/in"}, page_size=random.choice((2, 1000))) as hub:
        os.environ |= {"HF_ENDPOINT": hub.url, "MINARI_DATASETS_PATH": "case/none"}
        with loopback_only():
            return run_command(folder, number, line)


def check_hub(folder: Path, _plan: Plan, _codes: list[int | None]) -> str | None:
    """Compare every episode with the oracle's."""
    from tests.fuzz.kinds import compare_minari
    from tests.oracles_minari import minari_episodes

    dataset = only_dataset(folder)
    truth = minari_episodes(folder / "case/in/run-v0")
    return compare_minari(truth, read_dataset(dataset), set(), "")


# ---- a bucket --------------------------------------------------------------------------------


def prepare_bucket(seed: int, folder: Path) -> Plan:
    """A dataset in a bucket of this machine."""
    random = generator("bucket", seed)
    records = [toy_record(e, random.randint(1, 3)) for e in range(4)]
    write_rlds(folder / "in", {"train": [records[:2], records[2:]]}, name="viola")
    return _twice(seed, "openx:viola")


def run_bucket(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Download from it; its listing is hostile to the first command."""
    from offline_data.fetch import gcs
    from offline_data.pipeline.ingest import shards
    from offline_data.pipeline.jobs.executors import InProcess

    _impatient()
    shards.__dict__["LocalProcesses"] = lambda *_, **__: InProcess()
    random = generator("bucket-answers", plan_of_case(folder).facts["seed"])
    kind = _hostile(GcsServer, random, "/storage/v1/") if number == 0 else GcsServer
    files = {BUCKET_FOLDER + p.name: p.read_bytes() for p in (folder / "case/in").iterdir()}
    with kind({"gresearch": files}, page_size=random.choice((2, 1000))) as bucket:
        gcs.HOST = bucket.url
        with loopback_only():
            return run_command(folder, number, line)


def check_bucket(folder: Path, _plan: Plan, _codes: list[int | None]) -> str | None:
    """Compare every episode with its record."""
    random = generator("bucket", _plan.facts["seed"])
    records = [toy_record(e, random.randint(1, 3)) for e in range(4)]
    truth = Truth([(rlds_leaves(record), False) for record in records])
    return compare(truth, without_encoded(only_dataset(folder)), skip=False)


# ---- datasets that were pushed ---------------------------------------------------------------


def prepare_pull(seed: int, folder: Path) -> Plan:
    """A dataset that was pushed to a hub or to a web server of this machine, and a hostile variant."""
    rng = np.random.default_rng([seed, 26])
    write_toy(folder / "in/toy", [toy_batch([3, 1, 2], text=True)], dataset="local:toy@1")
    shutil.copytree(folder / "in/toy", folder / "in/bad")
    with suppress(OSError):  # a file that is larger than a process here may write
        next(variants(rng))[1](folder / "in/bad")
    return _twice(seed, "hf://big/toy" if seed % 2 else f"{_WEB}/toy")


def run_pull(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Download it, the first time the hostile variant."""
    _impatient()
    source = folder / "case/in" / ("bad" if number == 0 else "toy")
    found = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20
    }
    with HubServer() as hub, FileServer({f"/toy/{k}": v for k, v in found.items()}) as web:
        hub.keep("big/toy", found)
        os.environ |= {"HF_ENDPOINT": hub.url, "OFFLINE_DATA_MIRRORS": f"{_WEB}={web.url}"}
        with loopback_only():
            return run_command(folder, number, line)


def check_pull(folder: Path, _plan: Plan, _codes: list[int | None]) -> str | None:
    """Compare every file with the one that was served."""
    dataset, served = only_dataset(folder), folder / "case/in"
    for name in json.loads((dataset / "manifest.json").read_bytes())["digests"]:
        both = [served / which / name for which in ("toy", "bad")]
        if (dataset / name).read_bytes() not in [
            p.read_bytes() for p in both if p.is_file() and not p.is_symlink()
        ]:
            return f"{name} is not what was served"
    return None


HOSTED_KINDS = (
    Kind("pull", prepare_pull, check_pull, run_pull),
    Kind("hub", prepare_hub, check_hub, run_hub),
    Kind("bucket", prepare_bucket, check_bucket, run_bucket),
)
