"""What making a dataset would do: how, how much, how long; found out without writing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.disk import free_bytes
from offline_data.preprocess.engine import begun
from offline_data.preprocess.existing import is_there, older, refuse_itself
from offline_data.preprocess.header import recipe_json
from offline_data.preprocess.settling import executor_of, settled
from offline_data.progress import SILENT
from offline_data.store.library import entry_at

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.ids import DatasetId
    from offline_data.preprocess.engine import Run
    from offline_data.preprocess.order import Order
    from offline_data.preprocess.plan import Plan
    from offline_data.progress import Progress


@dataclass(frozen=True)
class Outlook:
    """What `carry_out` would do; nothing has been touched."""

    id: DatasetId
    """Of the new dataset."""
    parent: DatasetId
    """Of the dataset it is made of."""
    destination: Path
    """Where it would lie."""
    existed: bool
    """Whether it is there already; then nothing would be done, and there is no work."""
    replaces: tuple[DatasetId, ...]
    """Datasets that would go."""
    free_bytes: int
    """Free bytes on the disk that it is made on."""
    work: Work | None
    """What is to be done; None where it is there already."""


@dataclass(frozen=True)
class Work:
    """What is to be done."""

    plan: Plan
    recipe: list[dict[str, Any]]
    """Every step with what it learnt, as JSON values."""
    finished: int
    """Tasks that a stopped run has finished already."""
    seconds: float
    """Estimate of what is left to compute, in one process."""
    executor: str
    """Who would run the tasks."""


def foresee(order: Order, settings: Settings, progress: Progress = SILENT) -> Outlook:
    """Plan as `carry_out` does, first passes over the data included, and write nothing.

    Raises:
        UsageError, StepError: What `carry_out` would raise before it writes.
    """
    run = order.run(settings, progress)
    parent = entry_at(run.reader.path)
    refuse_itself(parent, run.target)
    existed = not run.options.force and is_there(run.target, run.fingerprint, run.options.layout)
    replaced = None if existed else older(run.target, settings.root, force=run.options.force)
    return Outlook(
        run.target.id,
        parent.id,
        run.target.destination,
        existed,
        () if replaced is None else (replaced.id,),
        free_bytes(run.target.work),
        None if existed else _work(run),
    )


def _work(run: Run) -> Work:
    prepared = begun(run)
    finished = 0 if prepared is None else len(run.work.finished(prepared.plan.count))
    if prepared is None:
        _, prepared = settled(run, in_place=run.shares_files)
    plan = prepared.plan
    left = plan.count - finished
    seconds = prepared.seconds * left / plan.count
    executor = executor_of(run, plan, seconds, left)
    return Work(plan, recipe_json(plan.recipe), finished, seconds, executor.name)
