"""Jobs that tests of executors run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TASKS = [3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 97]
"""No two alike, in no order."""

EXPECTED = list(enumerate([16, 8, 20, 64, 40, 12, 28, 24, 144, 36, 392]))
"""Numbers of the tasks, and what `quadrupled` makes of each: 4 · (task + 1)."""


def only_here(monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> Any:
    """Return a module that no other process can import."""
    module = ModuleType(name)
    exec(code, module.__dict__)  # noqa: S102 - as a module's file would be
    monkeypatch.setitem(sys.modules, name, module)
    return module


def quadrupled() -> Callable[[int], int]:
    """Return a job that no other process can import."""
    more = 1

    def plus(x: int) -> int:
        return x + more

    return lambda task: 4 * plus(task)


def deaths(folder: Path, count: int, task: int) -> Callable[[int], int]:
    """Return a job that gives back the task, and is killed with one of them so many times."""

    def job(given: int) -> int:
        import os
        import signal

        if given == task:
            died = len(list(folder.iterdir()))
            if died < count:
                (folder / str(died)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return given

    return job


def sleepers(folder: Path) -> Callable[[int], int]:
    """Return a job that is done with task 0 at once, and with others not for a long time.

    Each leaves a file with the number of its process; task 0 waits until another has begun.
    """

    def job(task: int) -> int:
        import os
        import time

        (folder / f"{task}.part").write_text(str(os.getpid()))
        (folder / f"{task}.part").rename(folder / f"{task}.pid")
        while len(list(folder.glob("*.pid"))) < 2:
            time.sleep(0.01)
        if task:
            time.sleep(600)
        return task

    return job


def pids(folder: Path) -> list[int]:
    """List the processes that `sleepers` ran in."""
    return [int(path.read_text()) for path in folder.glob("*.pid")]
