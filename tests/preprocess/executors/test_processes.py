"""Children run every task once, are replaced when they die, and are gone when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from offline_data.errors import FormatError, UsageError
from offline_data.preprocess.errors import WorkerDiedError
from offline_data.preprocess.executors.base import Executor
from offline_data.preprocess.executors.local import LocalProcesses
from offline_data.progress import SILENT
from tests.preprocess.executors.jobs import (
    EXPECTED,
    TASKS,
    Notes,
    deaths,
    pids,
    quadrupled,
    sleepers,
)
from tests.processes.waiting import ended, wait_until


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No test leaves a process or a thread."""
    processes, threads = _alive(), set(threading.enumerate())
    yield
    assert _alive() <= processes
    assert set(threading.enumerate()) <= threads


def _alive() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_answers_do_not_depend_on_workers(workers: int) -> None:
    executor: Executor = LocalProcesses(workers)
    answers = list(executor.run(quadrupled(), TASKS, SILENT))
    assert sorted(answers) == EXPECTED


def test_what_it_is_called() -> None:
    assert [LocalProcesses(n).name for n in (1, 2)] == ["1 process", "2 processes"]
    assert not LocalProcesses(2).shards


def test_tasks_run_elsewhere_at_the_same_time(tmp_path: Path) -> None:
    def meet(task: int) -> int:
        (tmp_path / str(task)).touch()
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        return os.getpid()

    found = dict(LocalProcesses(2).run(meet, [4, 5], SILENT))
    assert len({found[0], found[1], os.getpid()}) == 3


def test_no_more_processes_than_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def counted(*arguments: object, **options: object) -> object:
        started.append(1)
        return popen(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", counted)
    assert list(LocalProcesses(7).run(quadrupled(), [], SILENT)) == []
    assert started == []
    assert len(list(LocalProcesses(7).run(quadrupled(), [5, 6], SILENT))) == 2
    assert len(started) <= 2


def test_big_answers_are_whole() -> None:
    def make(task: int) -> np.ndarray:
        return np.arange(task, task + 500_000)

    for number, rows in LocalProcesses(2).run(make, [100, 200, 300], SILENT):
        first = 100 * (number + 1)
        assert rows.shape == (500_000,)
        assert (rows[0], rows[-1], rows.sum()) == (
            first,
            first + 499_999,
            sum(range(first, first + 500_000)),
        )


def test_a_task_whose_process_was_killed_is_run_again(tmp_path: Path) -> None:
    progress = Notes()
    answers = LocalProcesses(2).run(deaths(tmp_path, 1, task=35), TASKS, progress)
    assert sorted(answers) == list(enumerate(TASKS))
    assert progress.notes == [
        "a process was ended by SIGKILL while it ran task 9 of 11; running it again"
    ]


def test_a_task_that_kills_twice_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    progress = Notes()
    answers: list[tuple[int, int]] = []
    running = LocalProcesses(2).run(deaths(tmp_path, 2, task=35), TASKS, progress)
    with pytest.raises(WorkerDiedError, match=r"SIGKILL while it ran task 9 of 11") as caught:
        answers.extend(running)
    assert set(answers) <= set(enumerate(TASKS)) - {(8, 35)}
    assert "fewer workers" in str(caught.value.hint)
    assert "--resume" in str(caught.value.hint)
    assert len(progress.notes) == 1


def test_each_task_may_lose_a_process(tmp_path: Path) -> None:
    """The second chance is the task's, not the run's."""

    def die_once(task: int) -> int:
        mark = tmp_path / str(task)
        if not mark.exists():
            mark.touch()
            os._exit(5)
        return -task

    progress = Notes()
    found = dict(LocalProcesses(2).run(die_once, [7, 8, 9], progress))
    assert found == {0: -7, 1: -8, 2: -9}
    assert sorted(progress.notes) == [
        f"a process ended with status 5 while it ran task {n} of 3; running it again"
        for n in (1, 2, 3)
    ]


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (None, 6)])
def test_processes_are_replaced_after_so_many_tasks(limit: int | None, most: int) -> None:
    executor = LocalProcesses(1, max_tasks_per_child=limit)
    found = Counter(pid for _, pid in executor.run(lambda _: os.getpid(), range(6), SILENT))
    assert set(found.values()) == {most}


def test_errors_of_the_job() -> None:
    def fail(task: int) -> int:
        if task == 4:
            raise FormatError("row 4 is broken", hint="look at it")
        return task

    with pytest.raises(FormatError, match="row 4 is broken") as caught:
        list(LocalProcesses(2).run(fail, TASKS, SILENT))
    assert caught.value.hint == "look at it"


@pytest.mark.parametrize("error", [ValueError, IndexError, StopIteration])
def test_unexpected_errors_have_their_traceback(error: type[Exception]) -> None:
    def refuse(task: int) -> int:
        raise error(f"not {task}")

    with pytest.raises((error, RuntimeError)) as caught:
        list(LocalProcesses(1).run(refuse, [5], SILENT))
    raised = caught.value if isinstance(caught.value, error) else caught.value.__cause__
    assert isinstance(raised, error)
    assert str(raised) == "not 5"
    assert "in refuse" in str(raised.__cause__)


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    answers = LocalProcesses(2).run(sleepers(tmp_path), [0, 1, 2, 3], SILENT)
    assert next(answers) == (0, 0)
    answers.close()  # type: ignore[attr-defined]
    assert len(pids(tmp_path)) >= 2
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


def test_an_error_ends_what_is_under_way(tmp_path: Path) -> None:
    sleep = sleepers(tmp_path)

    def fail(task: int) -> int:
        if sleep(task) == 0:
            raise FormatError("task 0 is broken")
        return task

    with pytest.raises(FormatError):
        list(LocalProcesses(2).run(fail, [0, 1, 2, 3], SILENT))
    assert len(pids(tmp_path)) >= 2
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


def test_an_interrupt_of_who_takes_answers_ends_it(tmp_path: Path) -> None:
    def take() -> None:
        for _ in LocalProcesses(2).run(sleepers(tmp_path), [0, 1, 2, 3], SILENT):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take()
    assert len(pids(tmp_path)) >= 2
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


SCRIPT = """
import os, pathlib, sys, time
from offline_data.preprocess.executors.local import LocalProcesses
from offline_data.progress import SILENT
folder = pathlib.Path(sys.argv[1])
def sleep(task):
    (folder / f"{task}.part").write_text(str(os.getpid()))
    (folder / f"{task}.part").rename(folder / f"{task}.pid")
    time.sleep(600)
answers = LocalProcesses(2).run(sleep, [0, 1, 2], SILENT)
"""


@pytest.mark.parametrize("last", ["next(answers)\n", "for answer in answers: pass\n"])
def test_ctrl_c_leaves_no_process_and_one_traceback(tmp_path: Path, last: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + last)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        wait_until(lambda: len(pids(tmp_path)) == 2)
        os.killpg(program.pid, signal.SIGINT)
        _, err = program.communicate(timeout=30)
    assert program.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.strip().endswith("KeyboardInterrupt")
    wait_until(lambda: all(ended(pid) for pid in pids(tmp_path)))


def test_a_script_that_never_closes_it_can_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    waits = "while len(list(folder.glob('*.pid'))) < 2: time.sleep(0.01)\n"
    script.write_text(
        SCRIPT + "import threading\nthreading.Thread(target=next, args=(answers,), daemon=True)"
        f".start()\n{waits}print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr
    wait_until(lambda: all(ended(pid) for pid in pids(tmp_path)))


def test_functions_of_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "from offline_data.preprocess.executors.local import LocalProcesses\n"
        "from offline_data.progress import SILENT\n"
        "@dataclass\n"
        "class Rows:\n"
        "    first: int\n"
        "FACTOR = 3\n"
        "def scale(rows):\n"
        "    print('printed')\n"
        "    return Rows(FACTOR * rows.first)\n"
        "two = LocalProcesses(2)\n"
        "print(sorted(two.run(lambda x: x + FACTOR, [10, 20], SILENT)))\n"
        "print(sorted((n, r.first) for n, r in two.run(scale, [Rows(5), Rows(6)], SILENT)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[(0, 13), (1, 23)]\n[(0, 15), (1, 18)]\n", 0), (
        done.stderr
    )
    assert done.stderr.count("printed") == 2  # two processes may print into each other


def test_threads_in_a_worker() -> None:
    executor = LocalProcesses(1, worker_threads=1)
    name = "OMP_NUM_THREADS"
    assert list(executor.run(lambda _: os.environ[name], [3], SILENT)) == [(0, "1")]


def test_a_job_that_cannot_be_sent_starts_nothing() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent"):
        list(LocalProcesses(2).run(lambda x: (lock, x), [1], SILENT))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 2, "worker_threads": 0}, "worker_threads"),
        ({"workers": 2, "max_tasks_per_child": 0}, "max_tasks_per_child"),
    ],
)
def test_numbers_that_cannot_be_meant(arguments: dict[str, int], name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is 0; expected at least 1"):
        LocalProcesses(**arguments)
