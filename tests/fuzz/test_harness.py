"""The harness notices broken promises: each of these drivers breaks one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.harness import Kind, Plan, adopt_orphans, run_batch, run_case

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")


def crashes() -> None:
    sys.stderr.write("error: x is damaged: the process that read it was ended by SIGSEGV")


def runs_too_long() -> None:
    sys.stderr.write("error: x took too much processor time and was ended by SIGPROF")


def leaves_a_temporary_file() -> None:
    (Path(os.environ["TMPDIR"]) / "x").touch()


def leaves_one_in_the_root() -> None:
    Path("root").mkdir(exist_ok=True)
    Path("root/.manifest.json.0a1b.tmp").touch()


def leaves_a_process() -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)


def prints(text: str) -> Callable[[], None]:
    return lambda: print(text)


ACTS: dict[str, tuple[Callable[[], None], tuple[str, ...], str | None]] = {
    "nothing": (prints("[1, 2]"), ("--root", "--json"), None),
    "NaN": (prints("[1, NaN]"), ("--root", "--json"), "prints no JSON"),
    "two": (prints("note\n[1]"), ("--root", "--json"), "prints no JSON"),
    "C1": (prints("a\x9bJ"), ("x",), "control character '\\x9b'"),
    "bidirectional": (prints("a\u202eb"), ("x",), "control character"),
    "crash": (crashes, ("x",), "a reader crashed"),
    "limit": (runs_too_long, ("x",), None),
    "temporary": (leaves_a_temporary_file, ("x",), "leaves temporary files"),
    "root": (leaves_one_in_the_root, ("x",), "temporary files left"),
    "process": (leaves_a_process, ("x",), "leaves a process"),
}
"""What a driver does for a command line, and what is said of it."""


def case(name: str, folder: Path) -> str | None:
    """Run one of `ACTS`; return its problem."""
    act, line, _ = ACTS[name]

    def run(folder: Path, _number: int, _line: tuple[str, ...]) -> int:
        os.chdir(folder / "case")
        act()
        return 0

    kind = Kind(name, lambda *_: Plan((line,), publishes=False), lambda *_: None, run)
    return run_case(kind, 0, folder / name).problem


def batches(folder: Path) -> dict[str, bool]:
    """Run two batches, in one of which a case breaks a promise; return what was verified."""

    def run(at: Path, _number: int, line: tuple[str, ...]) -> int:
        if line == ("3",):
            (at / "case" / "root").mkdir()
            (at / "case" / "root" / ".x.tmp").touch()
        return 0

    kind = Kind("x", lambda seed, _: Plan(((str(seed),),), (frozenset({0}),)), None, run)
    found = {}
    for last in (3, 4):
        place = folder / f"batch {last}"
        place.mkdir()
        found[str(last)] = run_batch(kind, range(last), place) is not None
    return found


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Problems of all, from a process of its own: the harness waits for any child."""
    command = [sys.executable, "-m", "tests.fuzz.test_harness"]
    command.append(str(tmp_path_factory.mktemp("acts")))
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ACTS)
def test_a_broken_promise_is_noticed(name: str, problems: dict[str, str | None]) -> None:
    _, _, expected = ACTS[name]
    found = problems[name]
    assert found is None if expected is None else found and expected in found, found


def test_a_batch_with_a_broken_promise_is_run_again(problems: dict[str, Any]) -> None:
    assert problems["batches"] == {"3": True, "4": False}


if __name__ == "__main__":
    adopt_orphans()
    here = Path(sys.argv[1])
    print(json.dumps({"batches": batches(here), **{name: case(name, here) for name in ACTS}}))
