"""Tasks run in somebody else's pool, which stays open, and whose deaths are noticed."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from typing import Any

import pytest

from offline_data.errors import FormatError, UsageError
from offline_data.preprocess.errors import WorkerDiedError
from offline_data.preprocess.executors.base import Executor
from offline_data.preprocess.executors.pool import GivenPool
from offline_data.processes.calls import RemoteError
from offline_data.progress import SILENT
from tests.preprocess.executors.jobs import EXPECTED, TASKS, deaths, pids, quadrupled

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def futures() -> Iterator[FuturesExecutor]:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        yield pool


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with SPAWN.Pool(2) as pool:
        yield pool


@pytest.fixture(params=["futures", "processes"])
def pool(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_answers_are_those_of_the_job_every_time(pool: Any) -> None:
    executor: Executor = GivenPool(pool)
    for _ in range(2):
        assert sorted(executor.run(quadrupled(), TASKS, SILENT)) == EXPECTED
    assert list(executor.run(quadrupled(), [], SILENT)) == []
    assert (executor.name, executor.shards) == ("given pool", False)


def test_more_tasks_than_the_pool_takes_at_once(pool: Any) -> None:
    answers = list(GivenPool(pool).run(lambda x: (-x, os.getpid()), range(1, 60), SILENT))
    assert sorted((number, value) for number, (value, _) in answers) == [
        (number, -number - 1) for number in range(59)
    ]
    assert os.getpid() not in {pid for _, (_, pid) in answers}


def test_an_error_of_this_package(pool: Any) -> None:
    def fail(task: int) -> int:
        if task == 4:
            raise FormatError("row 4 is broken", hint="look at it")
        return task

    with pytest.raises(FormatError, match="row 4 is broken") as caught:
        list(GivenPool(pool).run(fail, TASKS, SILENT))
    assert caught.value.hint == "look at it"
    assert "in fail" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_sent_does_not_break_the_pool(pool: Any) -> None:
    """One that is raised as it is lets a `multiprocessing.Pool` wait for ever."""

    class TwoWordsError(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} {second}")

    def fail(task: int) -> None:
        raise TwoWordsError("broken", f"task {task}")

    with pytest.raises(RemoteError, match=r"TwoWordsError: broken task 7"):
        list(GivenPool(pool).run(fail, [7], SILENT))
    assert sorted(GivenPool(pool).run(quadrupled(), TASKS, SILENT)) == EXPECTED


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
    assert 1 <= len(begun) < 10
    assert sorted(GivenPool(pool).run(quadrupled(), TASKS, SILENT)) == EXPECTED
    assert sorted(p.stem for p in tmp_path.glob("*.begun")) == begun


def test_a_death_in_an_executor_is_an_error(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        executor = GivenPool(pool)
        with pytest.raises(WorkerDiedError, match="The pool is broken") as caught:
            list(executor.run(deaths(tmp_path, 1, task=35), TASKS, SILENT))
        assert "--resume" in str(caught.value.hint)
        with pytest.raises(WorkerDiedError, match="The pool is broken"):
            list(executor.run(quadrupled(), TASKS, SILENT))


@pytest.mark.parametrize("per_child", [None, 1])
def test_a_death_in_a_multiprocessing_pool_is_an_error(
    tmp_path: Path, per_child: int | None
) -> None:
    """By itself, such a pool would wait for ever."""
    with SPAWN.Pool(1, maxtasksperchild=per_child) as pool:
        executor = GivenPool(pool)
        with pytest.raises(WorkerDiedError, match="of the pool was ended by SIGKILL") as caught:
            list(executor.run(deaths(tmp_path, 1, task=4, after=0.3), [5, 6, 4, 7], SILENT))
        assert "--resume" in str(caught.value.hint)
        answers = list(executor.run(lambda x: 2 * x, [8, 9], SILENT))  # the pool has a new one
        assert sorted(answers) == [(0, 16), (1, 18)]


def test_processes_that_end_as_they_should_are_no_deaths() -> None:
    def slow(task: int) -> int:
        time.sleep(0.3)
        return 3 * task

    with SPAWN.Pool(1, maxtasksperchild=1) as pool:
        assert sorted(GivenPool(pool).run(slow, [5, 6], SILENT)) == [(0, 15), (1, 18)]


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ThreadPool])
def test_a_pool_of_threads_runs_one_task_at_a_time(make: Callable[[int], Any]) -> None:
    def alone(task: int) -> tuple[int, int, bool]:
        import sys as shared

        before = getattr(shared, "_tasks_here", 0)
        shared._tasks_here = before + 1  # type: ignore[attr-defined]
        time.sleep(0.01)
        shared._tasks_here -= 1  # type: ignore[attr-defined]
        return task, os.getpid(), before == 0

    with make(4) as pool:
        answers = sorted(GivenPool(pool).run(alone, TASKS, SILENT))
    assert answers == [(number, (task, os.getpid(), True)) for number, task in enumerate(TASKS)]


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ThreadPool])
def test_a_closed_pool_is_said(make: Callable[[int], Any]) -> None:
    with make(1) as pool:
        pass
    with pytest.raises(UsageError, match="The pool takes no task"):
        list(GivenPool(pool).run(quadrupled(), TASKS, SILENT))


def test_a_pool_that_is_terminated_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    def sleep(task: int) -> int:
        (tmp_path / f"{task}.pid").write_text(str(os.getpid()))
        if task:
            time.sleep(600)
        return task

    with SPAWN.Pool(1) as pool:
        answers = GivenPool(pool).run(sleep, [0, 1], SILENT)
        assert next(answers) == (0, 0)
        while len(pids(tmp_path)) < 2:
            time.sleep(0.01)
    with pytest.raises(WorkerDiedError, match="terminated"):
        next(answers)


def test_an_executor_that_is_shut_down_meanwhile() -> None:
    go = threading.Event()
    executor = ThreadPoolExecutor(1)
    executor.submit(go.wait)
    threading.Timer(0.3, lambda: executor.shutdown(wait=False, cancel_futures=True)).start()
    with pytest.raises(UsageError, match="closed before"):
        list(GivenPool(executor).run(quadrupled(), TASKS, SILENT))
    go.set()


@pytest.mark.parametrize("wrong", [4, "pool", None, threading.Lock()])
def test_what_is_no_pool(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a concurrent\.futures\.Executor or a multi"):
        GivenPool(wrong)
