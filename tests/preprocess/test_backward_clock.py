"""The lock of a plan on a machine whose clock runs backwards: nobody waits for ever."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.preprocess.shared import plan_lock
from offline_data.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clock_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count()
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: 1e9 - 10.0 * next(steps))


def in_a_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    return thread, found


def test_a_plan_that_is_being_changed_is_waited_for(tmp_path: Path) -> None:
    told: list[str] = []
    progress: Any = SimpleNamespace(note=told.append)

    def change() -> str:
        with plan_lock(tmp_path / "plan.json", progress):
            return "changed"

    with plan_lock(tmp_path / "plan.json", SILENT):
        thread, found = in_a_thread(change)
        thread.join(1)
        assert told == ["another process is changing plan.json; waiting for it"]
    thread.join(10)
    assert found == ["changed"]
