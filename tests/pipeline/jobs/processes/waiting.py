"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

LONG = 120.0
"""Seconds after which waiting is a failure."""


def wait_until(happened: Callable[[], bool]) -> None:
    """Return when it has happened."""
    end = time.monotonic() + LONG
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def wait_for_end(pids: Iterable[int]) -> None:
    """Return when none of these processes runs any more."""
    wait_until(lambda: all(map(ended, pids)))


def ended(pid: int) -> bool:
    """Tell whether a process runs no more; one whose parent died may not be waited for."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
