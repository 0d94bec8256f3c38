"""Tasks and passes handed to an executor, with what they answer, and the choice of the executor."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar, cast

from offline_data.preprocess.executors.local import InProcess, LocalProcesses, choose_workers
from offline_data.preprocess.recipe import Revised
from offline_data.preprocess.tasks import MeasureJob, WriteJob

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from offline_data.preprocess.executors.base import Executor
    from offline_data.preprocess.options import Options
    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.steps.base import MeasuredStep, Selection
    from offline_data.progress import Progress

START = {False: 1.0, True: 5.0}
"""Seconds until worker processes have started, by whether they need torch."""

A = TypeVar("A")


def executor_for(
    plan: Plan, seconds: float, tasks: int, options: Options, workers: int
) -> Executor:
    """Choose who runs tasks: who was asked for, else processes where they are worth their start.

    Args:
        plan: What is done.
        seconds: How long all of it takes one process.
        tasks: How many tasks there are to do.
        options: May name an executor, or a number of processes.
        workers: Processes where nothing is said.
    """
    if options.executor is not None:
        return options.executor
    heavy = any(step.brings_torch for step in plan.recipe.steps)
    most = min(options.workers or workers, tasks)
    count = choose_workers(seconds, most, START[heavy]) if most > 1 else 1
    if count == 1:
        return InProcess(options.worker_threads)
    return LocalProcesses(
        count,
        worker_threads=options.worker_threads,
        max_tasks_per_child=options.max_tasks_per_child,
    )


def write(
    job: WriteJob,
    executor: Executor,
    tasks: Sequence[int],
    progress: Progress,
    label: str,
    finished: Callable[[int], object] = lambda _: None,
) -> None:
    """Run the tasks that are to be done.

    Args:
        job: What is done with each.
        executor: Who does it.
        tasks: Their numbers.
        progress: Where to tell of it.
        label: What to call it.
        finished: Told the number of every task whose rows are written.

    Raises:
        Revised: A task found that a step must be done otherwise.
        OfflineDataError: See `Executor.run`.
    """
    total = sum(job.plan.rows_of(task) for task in tasks)
    with (
        progress.task(label, total, "transitions") as bar,
        closing(_answers(job, executor, tasks, progress)) as answers,
    ):
        for _, answer in answers:
            finished(answer.task)
            bar.advance(answer.transitions)


def measure(
    plan: Plan, step: MeasuredStep | Selection, executor: Executor, progress: Progress
) -> list[Any]:
    """Run a first pass; returns the measures of all groups, in order.

    Raises:
        Revised: A group shows that a step before must be done otherwise.
        OfflineDataError: See `Executor.run`.
    """
    tasks = range(plan.count)
    found: dict[int, list[Any]] = {}
    with (
        progress.task(f"measure for {step.name}", plan.chosen.transitions, "transitions") as bar,
        closing(_answers(MeasureJob(plan, step), executor, tasks, progress)) as answers,
    ):
        for number, answer in answers:
            found[number] = answer
            bar.advance(plan.rows_of(number))
    return [one for number in tasks for one in found[number]]


def _answers(
    job: Callable[[int], A | Revised],
    executor: Executor,
    tasks: Sequence[int],
    progress: Progress,
) -> Generator[tuple[int, A], None, None]:
    """Yield answers as they come; a revision ends everything."""
    with closing(cast("Generator[Any, None, None]", executor.run(job, tasks, progress))) as answers:
        for number, answer in answers:
            if isinstance(answer, Revised):
                raise answer
            yield number, answer
