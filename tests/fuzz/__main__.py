"""Run fuzz cases: `python -m tests.fuzz [KIND[=N] …] [--first SEED] [--count N] [--keep]`.

Prints a line for every broken promise and a table at the end; exits with 1 if any was broken.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import io
import os
import pkgutil
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.fuzz.harness import Kind, Verdict, adopt_orphans, run_batch, run_case
from tests.fuzz.kinds import KINDS
from tests.fuzz.lerobot_kinds import LEROBOT_KINDS
from tests.fuzz.robot_kinds import ROBOT_KINDS
from tests.fuzz.source_kinds import SOURCE_KINDS

MOST = 20
"""Broken promises after which no more are looked for."""


WITHOUT_TORCH = frozenset(
    {
        *("d4rl", "d4rl-bytes", "hdf5", "minari", "http", "archive", "hub", "bucket", "shards"),
        *("pull", *(kind.name for kind in (*SOURCE_KINDS, *LEROBOT_KINDS, *ROBOT_KINDS))),
    }
    - {"torchrl"}  # torch writes its files
)
"""Kinds whose commands do not import torch; a process without it is forked in half the time."""


def main(arguments: list[str]) -> int:
    """Run what the command line asks for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", type=_kind, metavar="KIND[=N]", help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=50, help="cases of a kind that says no N")
    parser.add_argument("--keep", action="store_true", help="keep the folders of broken cases")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after")
    asked = parser.parse_args(arguments)
    kinds = asked.kinds or [(name, None) for name in KINDS]
    counts = {name: asked.count if count is None else count for name, count in kinds}
    verdicts = run(counts, asked.first, keep=asked.keep, seconds=asked.seconds)
    for line in table(verdicts):
        print(line)
    return int(any(verdict.problem for verdict in verdicts))


def _kind(text: str) -> tuple[str, int | None]:
    name, equals, count = text.partition("=")
    if name not in KINDS:
        raise argparse.ArgumentTypeError(f"{name!r}; expected one of {', '.join(KINDS)}")
    return name, int(count) if equals else None


def run(
    counts: dict[str, int], first: int, *, keep: bool = False, seconds: float = float("inf")
) -> list[Verdict]:
    """Run so many cases of each kind, in turn, printing broken promises as they come."""
    verdicts = []
    end = time.perf_counter() + seconds
    work = Path(tempfile.mkdtemp(prefix="offline-data-fuzz-"))
    isolate(work)
    adopt_orphans()
    import_all(counts)
    gc.collect()
    gc.freeze()  # else the collector writes to every page that children share
    waiting = {name: list(range(first, first + count)) for name, count in counts.items()}
    while any(waiting.values()) and time.perf_counter() < end:
        for name in [name for name, seeds in waiting.items() if seeds]:
            kind = KINDS[name]
            seeds = [waiting[name].pop(0) for _ in range(min(kind.batch, len(waiting[name])))]
            verdicts += _run_cases(kind, seeds, work, keep=keep)
            if sum(v.problem is not None for v in verdicts) >= MOST:
                return verdicts
    os.chdir("/")
    if not (keep and any(verdict.problem for verdict in verdicts)):
        shutil.rmtree(work, ignore_errors=True)
    return verdicts


def _run_cases(kind: Kind, seeds: list[int], work: Path, *, keep: bool) -> list[Verdict]:
    """Run some cases of a kind in a batch, and if that goes wrong, one by one."""
    folder = work / "batch"
    found = None
    if len(seeds) > 1:
        folder.mkdir()
        found = run_batch(kind, seeds, folder)
        shutil.rmtree(folder, ignore_errors=True)
    return found or [_run_alone(kind, seed, work, keep=keep) for seed in seeds]


def _run_alone(kind: Kind, seed: int, work: Path, *, keep: bool) -> Verdict:
    folder = work / f"{kind.name}-{seed}"
    folder.mkdir()
    os.chdir(folder)
    verdict = run_case(kind, seed, folder)
    if verdict.problem:
        print(f"{kind.name} {seed} {verdict.codes}: {verdict.problem:.700}")
        print(f"  again: python -m tests.fuzz {kind.name}=1 --first {seed} --keep", flush=True)
        if keep:
            print(f"  in {folder}", flush=True)
    if not (keep and verdict.problem):
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def import_all(kinds: Iterable[str]) -> None:
    """Import what commands import, once: children are forked, and no thread has been started."""
    modules = [
        "h5py",
        "PIL.PngImagePlugin",
        "PIL.JpegImagePlugin",
        "pyarrow.parquet",
        "rich.console",
    ]
    modules += ["numpy.testing", "tests.oracles", "tests.oracles_minari"]
    if not WITHOUT_TORCH.issuperset(kinds):
        modules += ["offline_data.buffers.load", "tests.oracles_derived", "tests.fuzz.buffer_ops"]
        modules += ["tests.buffers.test_damaged_checkpoints"]
    if "tokenizer" in kinds:
        modules.append("transformers.models.auto.tokenization_auto")
    for module in modules:
        importlib.import_module(module)
    if "tests.buffers.test_damaged_checkpoints" in modules:
        sys.modules["tests.buffers.test_damaged_checkpoints"].toy()  # a dataset of all children
    for name in (
        "fetch",
        "pipeline.ingest",
        "raw",
        "formats",
        "store",
        "analysis",
        "reports",
        "project",
    ):
        import_below(f"offline_data.{name}")
    import_below("offline_data_cli")
    import typer

    from offline_data_cli.main import main

    typer.main.get_command = functools.cache(typer.main.get_command)  # children have it built
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        main(["list", "--offline", "--root", os.environ["HOME"]])


def import_below(package: str) -> None:
    """Import a package and every module in it."""
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        importlib.import_module(module.name)


def isolate(work: Path) -> None:
    """Point caches and settings of this process and its children below `work`."""
    for name in list(os.environ):
        if name.startswith(("OFFLINE_DATA_", "HF_", "MINARI_")):
            del os.environ[name]
    os.environ |= {
        "HOME": str(work),
        "XDG_CONFIG_HOME": str(work / "config"),
        "XDG_CACHE_HOME": str(work / "cache"),
        "MINARI_DATASETS_PATH": str(work / "minari"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OFFLINE_DATA_WORKERS": "1",
        "COLUMNS": "80",
        "RUST_BACKTRACE": "0",
    }


def table(verdicts: list[Verdict]) -> list[str]:
    """Return a line for each kind: cases that gave the right data, an error, or a broken promise.

    Those with an error are all of which a command has refused its input.
    """
    lines = [f"{'kind':14} {'cases':>6} {'right':>6} {'error':>6} {'broken':>6} {'ms a case':>9}"]
    for name in dict.fromkeys(verdict.kind for verdict in verdicts):
        of = [verdict for verdict in verdicts if verdict.kind == name]
        broken = sum(verdict.problem is not None for verdict in of)
        right = sum(verdict.right for verdict in of)
        each = 1000 * sum(verdict.seconds for verdict in of) / len(of)
        error = len(of) - right - broken
        lines.append(f"{name:14} {len(of):6} {right:6} {error:6} {broken:6} {each:9.0f}")
    return lines


if __name__ == "__main__":
    begin = time.perf_counter()
    code = main(sys.argv[1:])
    print(f"{time.perf_counter() - begin:.1f} s")
    sys.exit(code)
