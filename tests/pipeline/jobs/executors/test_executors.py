"""Executors on one machine: in this process, in child processes, in a pool of the caller."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch

from offline_data.base.errors import FormatError, WorkerDiedError
from offline_data.base.progress import SILENT
from offline_data.pipeline.jobs.executors import (
    Cost,
    Executor,
    GivenPool,
    InProcess,
    LocalProcesses,
    choose_workers,
)
from tests.pipeline.jobs.executors.jobs import (
    EXPECTED,
    TASKS,
    deaths,
    pids,
    quadrupled,
    sleepers,
)
from tests.pipeline.jobs.processes.waiting import wait_for_end, wait_until
from tests.pipeline.preprocess.runs import Notes

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def pool() -> Iterator[FuturesExecutor]:
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a process or a thread, but for the pool that serves several."""
    if "pool" in request.fixturenames:
        yield
        return
    ensure_running()  # of the pools' resource tracker, which lives as long as this process
    processes, threads = _alive(), set(threading.enumerate())
    yield
    assert _alive() <= processes
    assert set(threading.enumerate()) <= threads


def _alive() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def check_answers_and_errors(executor: Executor, name: str) -> None:
    """Check what every executor does with a job that ends well, and with one that raises."""
    error = FormatError("row 4 is broken", hint="look at it")

    def fail(task: int) -> int:
        if task == 4:
            raise error
        return task

    for _ in range(2):
        assert sorted(executor.run(quadrupled(), TASKS, SILENT)) == EXPECTED
        with pytest.raises(FormatError) as caught:
            list(executor.run(fail, TASKS, SILENT))
        assert (caught.value.message, caught.value.hint) == (error.message, error.hint)
        assert caught.value is error or "in fail" in str(caught.value.__cause__)
    assert list(executor.run(quadrupled(), [], SILENT)) == []
    assert (executor.name, executor.shards) == (name, False)


def test_in_process() -> None:
    check_answers_and_errors(InProcess(), "in process")
    assert list(InProcess().run(quadrupled(), TASKS, SILENT)) == EXPECTED  # in order


def test_a_job_may_run_its_tasks_in_order_itself() -> None:
    events: list[object] = []

    class Job:
        def __call__(self, _: int) -> int:
            raise AssertionError

        def in_order(self, tasks: Sequence[int]) -> Iterator[int]:
            try:
                for task in tasks:
                    events.append(task)
                    yield 10 * task
            finally:
                events.append("closed")

    answers = InProcess().run(Job(), [3, 4, 5], SILENT)
    assert [next(answers), next(answers)] == [(0, 30), (1, 40)]
    cast("Generator[object]", answers).close()
    assert events == [3, 4, "closed"]


def test_processes() -> None:
    check_answers_and_errors(LocalProcesses(2), "2 processes")


def test_a_pool(pool: Any) -> None:
    check_answers_and_errors(GivenPool(pool), "given pool")


@pytest.mark.parametrize(
    ("workers", "cores", "cost", "expected"),
    [
        (1, 8, Cost(100.0, 100.0, 0.0, 0.5), 1),  # one process saves nothing
        (8, 8, Cost(100.0, 100.0, 0.0, 3.0), 8),
        (2, 2, Cost(4.0, 4.0, 0.0, 1.9), 2),  # saves 2 s
        (2, 2, Cost(4.0, 4.0, 0.0, 2.1), 1),
        (8, 1, Cost(100.0, 100.0, 0.0, 0.1), 1),  # of one core
        (8, 1, Cost(100.0, 1.0, 0.0, 3.0), 8),  # that wait
        (2, 2, Cost(10.0, 10.0, 10.0, 1.0), 1),  # beside threads that write as much
        (2, 4, Cost(10.0, 10.0, 10.0, 1.0), 2),
        (2, 2, Cost(90.0, 90.0, 10.0, 5.0), 2),
        (4, 4, Cost(0.0, 0.0, 0.0, 0.0), 1),
    ],
)
def test_processes_that_save_less_than_they_cost(
    workers: int, cores: int, cost: Cost, expected: int
) -> None:
    assert choose_workers(workers, cores, cost) == expected


def test_torch_computes_with_as_many_threads_as_said_and_with_its_own_afterwards() -> None:
    before = torch.get_num_threads()
    for threads in (1, 2):
        answers = list(InProcess(threads).run(lambda _: torch.get_num_threads(), [0], SILENT))
        assert answers == [(0, threads)]
        assert torch.get_num_threads() == before


def test_tasks_run_elsewhere_at_the_same_time_in_no_more_processes_than_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def counted(*arguments: object, **options: object) -> object:
        started.append(1)
        return popen(*arguments, **options)  # type: ignore[call-overload]

    def meet(task: int) -> tuple[int, int]:
        (tmp_path / str(task)).touch()
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        return 4 * task, os.getpid()

    monkeypatch.setattr(subprocess, "Popen", counted)
    assert list(LocalProcesses(7).run(meet, [], SILENT)) == []
    assert started == []
    found = dict(LocalProcesses(7).run(meet, [4, 5], SILENT))
    assert len(started) == 2
    assert {number: value for number, (value, _) in found.items()} == {0: 16, 1: 20}
    assert len({*(pid for _, pid in found.values()), os.getpid()}) == 3


def test_a_task_that_kills_twice_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    progress = Notes()
    answers: list[tuple[int, int]] = []
    running = LocalProcesses(2).run(deaths(tmp_path, 2, task=35), TASKS, progress)
    with pytest.raises(WorkerDiedError, match=r"SIGKILL while it ran task 9 of 11") as caught:
        answers.extend(running)
    assert set(answers) <= set(enumerate(TASKS)) - {(8, 35)}
    assert caught.value.task == 8
    assert "fewer workers; finished tasks are kept" in str(caught.value.hint)
    assert len(progress.notes) == 1


def test_each_task_may_lose_a_process(tmp_path: Path) -> None:
    """The second chance is the task's, not the run's."""

    def die_once(task: int) -> int:
        mark = tmp_path / str(task)
        if not mark.exists() and task:
            mark.touch()
            os._exit(5) if task == 7 else os.kill(os.getpid(), signal.SIGKILL)
        return -task

    progress = Notes()
    found = dict(LocalProcesses(2).run(die_once, [7, 0, 9], progress))
    assert found == {0: -7, 1: 0, 2: -9}
    assert sorted(progress.notes) == [
        "a process ended with status 5 while it ran task 1 of 3; running it again",
        "a process was ended by SIGKILL while it ran task 3 of 3; running it again",
    ]


@pytest.mark.parametrize(("limit", "most"), [(2, [2, 2]), (None, [4])])
def test_processes_are_replaced_after_so_many_tasks(limit: int | None, most: list[int]) -> None:
    executor = LocalProcesses(1, max_tasks_per_child=limit)
    found = Counter(pid for _, pid in executor.run(lambda _: os.getpid(), range(4), SILENT))
    assert list(found.values()) == most


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    answers = LocalProcesses(2).run(sleepers(tmp_path), [0, 1, 2, 3], SILENT)
    assert next(answers) == (0, 0)
    answers.close()  # type: ignore[attr-defined]
    assert len(pids(tmp_path)) >= 2
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


SCRIPT = """
import os, pathlib, sys, threading, time
from offline_data.pipeline.jobs.executors import LocalProcesses
from offline_data.base.progress import SILENT
folder = pathlib.Path(sys.argv[1])
def sleep(task):
    (folder / f"{task}.part").write_text(str(os.getpid()))
    (folder / f"{task}.part").rename(folder / f"{task}.pid")
    time.sleep(600)
answers = LocalProcesses(2).run(sleep, [0, 1, 2], SILENT)
"""
WAITS = "for answer in answers: pass\n"
NEVER_CLOSES = """
threading.Thread(target=next, args=(answers,), daemon=True).start()
while len(list(folder.glob('*.pid'))) < 2: time.sleep(0.01)
print('end')
"""


@pytest.mark.parametrize(
    ("rest", "stop", "code", "out", "last"),
    [(WAITS, True, -signal.SIGINT, "", "KeyboardInterrupt"), (NEVER_CLOSES, False, 0, "end\n", "")],
    ids=["interrupted", "never closed"],
)
def test_a_script_leaves_no_process_and_at_most_one_traceback(
    rest: str, stop: bool, code: int, out: str, last: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + rest)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        wait_until(lambda: len(pids(tmp_path)) == 2)
        if stop:
            os.killpg(program.pid, signal.SIGINT)
        found, err = program.communicate(timeout=120)
    assert (program.returncode, found) == (code, out), err
    assert err.count("Traceback") == stop
    assert err.strip().endswith(last)
    wait_for_end(pids(tmp_path))


def test_closing_takes_back_what_has_not_begun_and_waits_for_the_rest(
    pool: Any, tmp_path: Path
) -> None:
    def slow(task: int) -> int:
        (tmp_path / f"{task}.begun").touch()
        time.sleep(0.2 if task else 0.0)
        (tmp_path / f"{task}.ended").touch()
        return task

    answers = GivenPool(pool).run(slow, range(50), SILENT)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    begun, over = (sorted(p.stem for p in tmp_path.glob(end)) for end in ("*.begun", "*.ended"))
    assert begun == over
    assert 1 <= len(begun) < 50
    assert sorted(GivenPool(pool).run(quadrupled(), TASKS, SILENT)) == EXPECTED
    assert sorted(p.stem for p in tmp_path.glob("*.begun")) == begun


def test_a_death_in_an_executor_is_an_error(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        for job in (deaths(tmp_path, 1, task=35), quadrupled()):
            with pytest.raises(WorkerDiedError, match="The pool is broken") as caught:
                list(GivenPool(pool).run(job, TASKS, SILENT))
            assert "are kept" in str(caught.value.hint)


def test_a_pool_of_threads_runs_one_task_at_a_time() -> None:
    def alone(task: int) -> tuple[int, int, bool]:
        import sys as shared

        before = getattr(shared, "_tasks_here", 0)
        shared._tasks_here = before + 1  # type: ignore[attr-defined]
        time.sleep(0.01)
        shared._tasks_here -= 1  # type: ignore[attr-defined]
        return task, os.getpid(), before == 0

    with ThreadPoolExecutor(4) as pool:
        answers = sorted(GivenPool(pool).run(alone, TASKS, SILENT))
    assert answers == [(number, (task, os.getpid(), True)) for number, task in enumerate(TASKS)]
