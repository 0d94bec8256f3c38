"""What executors and child processes refuse, with message and hint: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.progress import SILENT
from offline_data.pipeline.jobs.executors import Executor, GivenPool, LocalProcesses
from offline_data.pipeline.jobs.processes import Child
from offline_data.pipeline.jobs.processes.protocol import pack_function
from offline_data.pipeline.jobs.ray import RayExecutor
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def run(executor: Executor, job: Any) -> object:
    return list(executor.run(job, [1], SILENT))


CALLS = (Child, GivenPool, LocalProcesses, RayExecutor, pack_function, run)


@REFUSALS.cases
def test_refusals(kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "without ray":
        monkeypatch.setitem(sys.modules, "ray", None)
    lock = threading.Lock()
    with ThreadPoolExecutor(1) as closed, ThreadPool(1) as other:
        pass
    names: dict[str, object] = {call.__name__: call for call in CALLS}
    names |= {"LOCK": lock, "LOCKED": lambda _: lock, "CLOSED": closed, "OTHER": other}
    words: dict[object, str] = {repr(lock): "LOCK", repr(other): "OTHER"}
    REFUSALS.check(kind, text, lambda: eval(text, names), words)  # noqa: S307 - of the table
