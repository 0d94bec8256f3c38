"""A dataset and a recipe in, a new dataset out: plan, run, revise if the data ask for it, publish."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.disk import require_bytes
from offline_data.errors import UsageError
from offline_data.ingest.options import Result
from offline_data.preprocess.digesting import Digesting
from offline_data.preprocess.existing import check_same, is_there, older, refuse_itself
from offline_data.preprocess.finishing import finish
from offline_data.preprocess.header import header_of
from offline_data.preprocess.interrupts import uninterrupted
from offline_data.preprocess.placed import allocate
from offline_data.preprocess.plan import Plan, fingerprint
from offline_data.preprocess.preparing import Prepared
from offline_data.preprocess.probing import probe, seconds_each
from offline_data.preprocess.recipe import Revised
from offline_data.preprocess.running import write
from offline_data.preprocess.saved import load_plan, save_plan
from offline_data.preprocess.settling import decided, executor_of, revised
from offline_data.preprocess.tasks import WriteJob
from offline_data.preprocess.work import Work
from offline_data.progress import SILENT
from offline_data.store.library import Entry, entry_at, foreign_files, remove
from offline_data.store.locks import dataset_lock
from offline_data.store.publish import publish, recover
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.writer import with_margin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.config import Settings
    from offline_data.preprocess.options import Options, Target
    from offline_data.preprocess.recipe import Recipe
    from offline_data.progress import Progress
    from offline_data.store.manifest import Manifest
    from offline_data.store.writer import FileDigest


@dataclass(frozen=True)
class Run:
    """One dataset to be made."""

    reader: DatasetReader
    """The parent."""
    recipe: Recipe
    """As it was asked for."""
    target: Target
    """Where it goes."""
    fingerprint: str
    """What tells it apart from others."""
    options: Options
    settings: Settings
    progress: Progress

    @property
    def work(self) -> Work:
        """The folder in which it is made."""
        return Work(self.target.work)

    @property
    def shares_files(self) -> bool:
        """Whether all tasks run where the files of the new dataset can be written in place."""
        return self.options.executor is None or not self.options.executor.shards

    def header(self, plan: Plan) -> Manifest:
        """Return what the manifest says of the parent and the recipe."""
        return header_of(self.target.id, plan, self.reader, self.fingerprint, self.options)


def preprocess(
    parent: Entry,
    recipe: Recipe,
    target: Target,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
) -> Result:
    """Make a dataset out of another one.

    What is made of the same parent by the same recipe and is there already is not made again.
    Where anything fails, or is interrupted, finished tasks are kept for `resume`.

    Args:
        parent: The dataset; it is only read.
        recipe: At least one step.
        target: Where the new one goes; its revision comes from `fingerprint`.
        settings: Workers, root.
        options: Everything else.
        progress: Where to tell of long work.

    Raises:
        UsageError: Another dataset is there already, or what a stopped run left; `options.force`
            replaces both.
        StepError: A step or a function failed, or does not fit the data.
        WorkerDiedError: A process was ended from outside, twice with the same task.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    begin = time.perf_counter()
    reader = open_reader(parent.path)
    made_of = fingerprint(reader, recipe, options.num_frames, options.view)
    run = Run(reader, recipe, target, made_of, options, settings, progress)
    refuse_itself(parent, target)
    with dataset_lock(settings.staging, target.lock, progress), _explained(recipe):
        recover(run.work.dataset, target.destination)
        existed = not options.force and is_there(target, made_of, options.layout)
        if existed:
            _clear_leftover(run)
        else:
            make(run, older(target, settings.root, force=options.force))
    entry = entry_at(target.destination)
    seconds = time.perf_counter() - begin
    return Result(entry.id, target.destination, entry.manifest, existed, seconds)


def make(run: Run, replaced: Entry | None = None) -> None:
    """Make and publish the dataset; the caller holds the lock.

    Args:
        run: What is made.
        replaced: A dataset that goes when it is there.
    """
    prepared = begun(run)
    with _told(run):
        while True:
            try:
                prepared = prepared or _prepared(run)
                digests = _written(run, prepared)
                break
            except Revised as found:
                run.work.clear()
                run = revised(run, found)
                prepared = None
        put_together(run, prepared.plan, run.work, digests, replaced)


def _prepared(run: Run) -> Prepared:
    """Plan anew, and put the plan into the work folder."""
    run.work.clear()
    prepared = decided(run, in_place=run.shares_files)
    _take_room(run, prepared.plan)
    save_plan(run.work, prepared.plan, run.fingerprint)
    return prepared


def _written(run: Run, prepared: Prepared) -> dict[str, FileDigest] | None:
    """Run the tasks that are not finished; returns the digests of files written in place."""
    plan, work = prepared.plan, run.work
    if plan.in_place:
        allocate(work.dataset, plan.sizes)
    finished = work.sound(plan.count, in_place=plan.in_place)
    tasks = sorted(set(range(plan.count)).difference(finished))
    if finished:
        run.progress.note(f"{len(finished)} of {plan.count} tasks are finished; going on")
    left = prepared.seconds * len(tasks) / plan.count
    executor = executor_of(run, plan, left, len(tasks))
    job = WriteJob(plan, work, run.header(plan), run.options.audit, durable=not plan.in_place)
    label = f"preprocess {run.target.id.name}"
    if not plan.in_place:
        write(job, executor, tasks, run.progress, label)
        return None
    with Digesting(plan, work) as digesting:
        for task in finished:
            digesting.add(task)
        write(job, executor, tasks, run.progress, label, digesting.add)
        return digesting.digests()


def put_together(
    run: Run,
    plan: Plan,
    work: Work,
    digests: dict[str, FileDigest] | None = None,
    replaced: Entry | None = None,
) -> None:
    """Make a dataset of what the tasks have written, all of them finished, and publish it.

    Args:
        run: What is being made.
        plan: How.
        work: The folder where the tasks have written; it goes, but for a plan that is shared.
        digests: Of files written in place; None: every task wrote files of its own.
        replaced: A dataset that goes when the new one is there.
    """
    finish(plan, work, run.header(plan), run.options.audit, run.reader, digests)
    with uninterrupted():
        kept = publish(work.dataset, run.target.destination)
        if work.apart is None:  # else other programs look into it
            work.clear()
        if replaced is not None:
            kept += tuple(replaced.path / name for name in foreign_files(replaced.path))
            remove(replaced)
    for path in kept:
        run.progress.note(f"{path} is no file of the dataset that was replaced; kept")


def _clear_leftover(run: Run) -> None:
    """Delete what a run left that was stopped after the dataset was published."""
    saved = run.work.read_plan()
    if saved is not None and saved.get("fingerprint") == run.fingerprint:
        run.work.clear()


def _take_room(run: Run, plan: Plan) -> None:
    """Meet a disk that is too small before anything is written to it."""
    needed = plan.bytes * (1 if plan.in_place else 2)
    require_bytes(run.work.path, with_margin(needed), str(run.target.id))
    if plan.in_place:
        allocate(run.work.dataset, plan.sizes)


def begun(run: Run) -> Prepared | None:
    """Return the plan of an interrupted run that is to be resumed.

    Raises:
        UsageError: There is a stopped run, and it was not said what is to become of it; or it is
            of another recipe.
    """
    saved = run.work.read_plan()
    if saved is None or run.options.force:
        return None
    if saved.get("fingerprint") != run.fingerprint:
        if not run.options.resume:
            run.progress.note("what a stopped run of another recipe left here is thrown away")
            return None
        raise UsageError(
            f"What a stopped run left in {run.work.path} was made by another recipe, or of other data",
            hint="--force throws it away and begins anew",
        )
    if not run.options.resume:
        raise UsageError(
            f"This recipe was interrupted before ({run.work.path})",
            hint="use --resume to continue or --force to start over",
        )
    check_same(saved, run.options, shares_files=run.shares_files)
    plan = load_plan(run.work, run.recipe, run.reader)
    each = seconds_each(plan.recipe, probe(run.reader, plan.chosen, plan.recipe))
    return Prepared(plan, each * plan.chosen.transitions)


@contextmanager
def _explained(recipe: Recipe) -> Iterator[None]:
    """Say why what is there is taken for another one, where that is because nobody can tell."""
    try:
        yield
    except UsageError as error:
        if recipe.unknown:
            raise UsageError(f"{error.message}. {recipe.unknown}", hint=error.hint) from error
        raise


@contextmanager
def _told(run: Run) -> Iterator[None]:
    """Leave what can be resumed, or nothing, when something fails, and say which."""
    try:
        yield
    except BaseException as error:
        with uninterrupted():
            kept = _kept(run)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {kept}") from None
        if run.work.plan.exists() or run.recipe.unknown:
            run.progress.note(kept)
        raise


def _kept(run: Run) -> str:
    if run.recipe.unknown:
        run.work.clear()
        return f"nothing is kept: {run.recipe.unknown}"
    if run.work.read_plan() is None:
        run.work.clear()
        return "nothing is kept: run the same command again"
    count = run.work.recorded()
    kept = f"{count} finished tasks are kept" if count != 1 else "1 finished task is kept"
    return f"{kept if count else 'the plan is kept'}: add --resume to go on"
