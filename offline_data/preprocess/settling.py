"""A run's plan: as often as the data ask for something else, and nothing is written meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offline_data.preprocess.preparing import Prepared, prepare
from offline_data.preprocess.probing import probe, seconds_each
from offline_data.preprocess.recipe import Revised
from offline_data.preprocess.running import executor_for, measure

if TYPE_CHECKING:
    from offline_data.preprocess.engine import Run
    from offline_data.preprocess.executors.base import Executor
    from offline_data.preprocess.plan import Plan


def settled(run: Run, *, in_place: bool) -> tuple[Run, Prepared]:
    """Plan until the plan holds.

    Returns:
        The run, its recipe as it was asked for but for what had to be done otherwise, and the plan.

    Raises:
        StepError: See `prepare`.
    """
    while True:
        try:
            return run, decided(run, in_place=in_place)
        except Revised as found:
            run = revised(run, found)


def revised(run: Run, found: Revised) -> Run:
    """Return the run with a step done otherwise, and say so."""
    run.progress.note(f"starting over: {found.reason}")
    return replace(run, recipe=run.recipe.revised(found))


def decided(run: Run, *, in_place: bool) -> Prepared:
    """Plan once, first passes over the data included; raises what `prepare` raises."""

    def first_pass(plan: Plan, step: Any) -> list[Any]:
        seconds = seconds_each(plan.recipe, probe(run.reader, plan.chosen, plan.recipe))
        executor = executor_of(run, plan, seconds * plan.chosen.transitions, plan.count)
        return measure(plan, step, executor, run.progress)

    return prepare(run.reader, run.recipe, run.options, first_pass, in_place=in_place)


def executor_of(run: Run, plan: Plan, seconds: float, tasks: int) -> Executor:
    """Return who runs the tasks of a run; see `executor_for`."""
    return executor_for(plan, seconds, tasks, run.options, run.settings.workers)
