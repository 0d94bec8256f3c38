"""Tasks run here, in order, one for each answer taken."""

from __future__ import annotations

import os

import pytest
import torch

from offline_data.errors import FormatError
from offline_data.preprocess.executors.base import Executor
from offline_data.preprocess.executors.local import InProcess, choose_workers
from offline_data.progress import SILENT
from tests.preprocess.executors.jobs import EXPECTED, TASKS, quadrupled


def test_answers_in_order() -> None:
    executor: Executor = InProcess()
    assert list(executor.run(quadrupled(), TASKS, SILENT)) == EXPECTED
    assert list(executor.run(quadrupled(), [], SILENT)) == []
    assert (executor.name, executor.shards) == ("in process", False)


def test_here_and_only_as_answers_are_taken() -> None:
    done: list[tuple[int, int]] = []
    answers = InProcess().run(lambda task: done.append((task, os.getpid())), TASKS, SILENT)
    next(answers)
    assert done == [(3, os.getpid())]


def test_an_error_is_as_it_was_raised() -> None:
    raised = FormatError("row 4 is broken", hint="look at it")

    def fail(task: int) -> int:
        if task == 4:
            raise raised
        return task

    with pytest.raises(FormatError) as caught:
        list(InProcess().run(fail, TASKS, SILENT))
    assert caught.value is raised


@pytest.mark.parametrize(
    ("seconds", "workers", "cost", "expected"),
    [
        (100.0, 1, 0.5, 1),  # one process saves nothing
        (100.0, 8, 3.0, 8),
        (4.0, 2, 1.9, 2),  # saves 2 s
        (4.0, 2, 2.1, 1),
        (4.0, 4, 2.9, 4),  # saves 3 s
        (0.0, 4, 0.0, 1),
    ],
)
def test_processes_that_save_less_than_they_cost(
    seconds: float, workers: int, cost: float, expected: int
) -> None:
    assert choose_workers(seconds, workers, cost) == expected


def test_torch_computes_with_as_many_threads_as_said_and_with_its_own_afterwards() -> None:
    before = torch.get_num_threads()
    for threads in (1, 2):
        answers = list(InProcess(threads).run(lambda _: torch.get_num_threads(), [0], SILENT))
        assert answers == [(0, threads)]
        assert torch.get_num_threads() == before
