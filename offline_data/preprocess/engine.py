"""A job in, a new dataset out: plan, run the tasks, plan again if the data ask for it, publish."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from offline_data.errors import UsageError
from offline_data.executors.local import InProcess, LocalProcesses, choose_workers
from offline_data.files import free_bytes, require_bytes
from offline_data.ingest.options import Stored
from offline_data.preprocess.finish import IncrementalHasher, finish, header_of, recipe_json
from offline_data.preprocess.job import Target
from offline_data.preprocess.plan import Plan, fingerprint, load_plan, prepare, save_plan
from offline_data.preprocess.recipe import recipe_of
from offline_data.preprocess.steps.base import Revised
from offline_data.preprocess.task import measure_task, write_task
from offline_data.preprocess.workdir import WorkDir, allocate
from offline_data.progress import SILENT
from offline_data.store.library import Entry, entry_at, foreign_files, remove
from offline_data.store.publish import dataset_lock, publish, recover
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.writer import with_margin

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.executors.base import Executor
    from offline_data.ids import DatasetId
    from offline_data.preprocess.job import Job, RunOptions
    from offline_data.preprocess.recipe import Recipe
    from offline_data.preprocess.steps.base import MeasuredStep, Selection
    from offline_data.progress import Progress, Task
    from offline_data.store.manifest import Manifest
    from offline_data.store.writer import FileDigest

_REVISION_DIGITS = 12
"""Digits of the fingerprint that are the revision of a dataset that was made here."""

_START_SECONDS = {False: 1.0, True: 5.0}
"""Seconds until worker processes have started, by whether they need torch."""

_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""What has to wait until a dataset is in its place."""


@dataclass(frozen=True)
class Run:
    """One dataset that is being made."""

    reader: DatasetReader
    recipe: Recipe
    """As it was asked for."""
    target: Target
    fingerprint: str
    """What tells it apart from others."""
    options: RunOptions
    settings: Settings
    progress: Progress

    @classmethod
    def of(cls, job: Job, settings: Settings, progress: Progress) -> Run:
        """Look the parent, functions and steps up; raises `UsageError`, `NotFoundError`, `ManifestError`."""
        reader = open_reader(job.parent.absolute())
        recipe = recipe_of(job.stages, job.calling)
        made_of = fingerprint(reader, recipe, job.options.num_frames, job.options.view)
        target = Target.of(job.name, job.dest, made_of[:_REVISION_DIGITS], settings)
        return cls(reader, recipe, target, made_of, job.options, settings, progress)

    @property
    def work(self) -> WorkDir:
        """The folder in which it is made."""
        return WorkDir(self.target.work)

    @property
    def shares_files(self) -> bool:
        """Whether all tasks run where the files of the new dataset can be written in place."""
        return self.options.executor is None or not self.options.executor.shards

    def header(self, plan: Plan) -> Manifest:
        """Return what the manifest says of the parent and the recipe."""
        return header_of(self.target.id, plan, self.reader, self.fingerprint, self.options)

    def existed(self) -> bool:
        """Return True if the dataset is there and need not be made; see `Target.existing`."""
        options = self.options
        return not options.force and self.target.existing(self.fingerprint, options.layout)

    def older(self) -> Entry | None:
        """Return the dataset of the same name that goes; see `Target.older`."""
        return self.target.older(self.settings.root, force=self.options.force)

    def revised(self, found: Revised) -> Run:
        """Return the run with a step done otherwise, and say so."""
        self.progress.note(f"starting over: {found.reason}")
        return replace(self, recipe=self.recipe.revised(found))

    def settled(self, *, in_place: bool) -> tuple[Run, Plan]:
        """Plan until the plan holds; also returns the run with the steps done as the data ask."""
        run = self
        while True:
            try:
                plan = prepare(run.reader, run.recipe, run.options, run.measure, in_place=in_place)
            except Revised as found:
                run = run.revised(found)
            else:
                return run, plan

    def measure(self, plan: Plan, step: MeasuredStep | Selection) -> list[Any]:
        """Run a first pass; returns the measures of all groups, in order; raises what tasks raise."""
        tasks, label = range(plan.count), f"measure for {step.name}"
        job = partial(measure_task, plan, step)
        found: dict[int, list[Any]] = {}
        with self._answers(plan, job, tasks, label) as (bar, answers):
            for number, measures in answers:
                found[number] = measures
                bar.advance(plan.rows_of(number))
        return [measure for task in tasks for measure in found[task]]

    def run_tasks(self, plan: Plan) -> dict[str, FileDigest] | None:
        """Run the tasks that are not finished; returns the digests of files written in place."""
        work, header = self.work, self.header(plan)
        if plan.in_place:
            allocate(work.dataset, plan.sizes)
        finished = work.sound(plan.count, in_place=plan.in_place)
        tasks = sorted(set(range(plan.count)).difference(finished))
        if finished:
            self.progress.note(f"{len(finished)} of {plan.count} tasks are finished; going on")
        durable = not plan.in_place
        job = partial(write_task, plan, work, header, self.options.audit, durable=durable)
        label = f"preprocess {self.target.id.name}"
        with IncrementalHasher(plan, work) as hasher:
            for task in finished if plan.in_place else ():
                hasher.add(task)
            with self._answers(plan, job, tasks, label) as (bar, answers):
                for number, transitions in answers:
                    if plan.in_place:
                        hasher.add(tasks[number])
                    bar.advance(transitions)
            return hasher.digests() if plan.in_place else None

    def executor(self, plan: Plan, tasks: int) -> Executor:
        """Choose who runs so many tasks: who was asked for, else processes where they pay."""
        options = self.options
        if options.executor is not None:
            return options.executor
        heavy = any(step.brings_torch for step in plan.recipe.steps)
        most = min(options.workers or self.settings.workers, tasks)
        seconds = plan.seconds * tasks / plan.count
        if most <= 1 or choose_workers(seconds, most, _START_SECONDS[heavy]) == 1:
            return InProcess(options.worker_threads)
        return LocalProcesses(
            most,
            worker_threads=options.worker_threads,
            max_tasks_per_child=options.max_tasks_per_child,
        )

    @contextmanager
    def _answers(
        self, plan: Plan, job: Callable[[int], Any], tasks: Sequence[int], label: str
    ) -> Iterator[tuple[Task, Iterator[tuple[int, Any]]]]:
        """Have tasks run; gives the bar to advance and what `Executor.run` yields, and closes both."""
        executor, total = self.executor(plan, len(tasks)), sum(map(plan.rows_of, tasks))
        answers = cast("Generator[Any, None, None]", executor.run(job, tasks, self.progress))
        with self.progress.task(label, total, "transitions") as bar, closing(answers):
            yield bar, answers


@dataclass(frozen=True)
class DryRun:
    """What `preprocess` would do; nothing has been touched.

    Attributes:
        existed: Whether the dataset is there already; then nothing would be done: there is no plan.
        replaces: Datasets that would go.
        free_bytes: Free bytes on the disk that it is made on.
        recipe: Every step with what it learnt, as JSON values.
        finished: Tasks that an interrupted run has finished already.
        seconds: Estimate of what is left to compute, in one process.
        executor: Who would run the tasks.
    """

    id: DatasetId
    parent: DatasetId
    destination: Path
    existed: bool
    replaces: tuple[DatasetId, ...]
    free_bytes: int
    plan: Plan | None = None
    recipe: Sequence[dict[str, Any]] = ()
    finished: int = 0
    seconds: float = 0.0
    executor: str = ""


def preprocess(job: Job, settings: Settings, progress: Progress = SILENT) -> Stored:
    """Make a dataset out of another one, here and now.

    What is made of the same parent by the same recipe and is there already is not made again.
    Where anything fails, or is interrupted, finished tasks are kept for `resume`.

    Args:
        job: What is made of what, how, and where it goes.
        settings: Workers, root.
        progress: Where to tell of long work.

    Raises:
        UsageError: Another dataset is there already, or what an interrupted run left;
            `options.force` replaces both. Also what `Run.of` raises.
        StepError: A step or a function failed, or does not fit the data.
        WorkerDiedError: A process was ended from outside, twice with the same task.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    begin = time.perf_counter()
    run = Run.of(job, settings, progress)
    target = run.target
    target.check(entry_at(run.reader.path))
    with dataset_lock(settings.staging, target.lock, progress), _explained(run.recipe):
        recover(run.work.dataset, target.destination)
        existed = run.existed()
        if existed:
            saved = run.work.read_plan()  # of a run that was interrupted after it had published
            if saved is not None and saved.get("fingerprint") == run.fingerprint:
                run.work.clear()
        else:
            replaced = run.older()
            plan = interrupted_plan(run)
            with _says_what_is_kept(run):
                while True:
                    try:
                        plan = plan or _new_plan(run)
                        digests = run.run_tasks(plan)
                        break
                    except Revised as found:
                        run.work.clear()
                        run, plan = run.revised(found), None
                put_together(run, plan, run.work, digests, replaced)
    entry = entry_at(target.destination)
    seconds = time.perf_counter() - begin
    return Stored(entry.id, target.destination, entry.manifest, existed, seconds)


def dry_run(job: Job, settings: Settings, progress: Progress = SILENT) -> DryRun:
    """Plan as `preprocess` does, first passes over the data included, and write nothing.

    Raises:
        UsageError, StepError: What `preprocess` would raise before it writes.
    """
    run = Run.of(job, settings, progress)
    target, parent = run.target, entry_at(run.reader.path)
    target.check(parent)
    existed = run.existed()
    replaced = None if existed else run.older()
    gone = () if replaced is None else (replaced.id,)
    free = free_bytes(target.work)
    found = DryRun(target.id, parent.id, target.destination, existed, gone, free)
    if existed:
        return found
    plan = interrupted_plan(run)
    finished = 0 if plan is None else len(run.work.finished(plan.count))
    if plan is None:
        _, plan = run.settled(in_place=run.shares_files)
    left = plan.count - finished
    return replace(
        found,
        plan=plan,
        recipe=recipe_json(plan.recipe),
        finished=finished,
        seconds=plan.seconds * left / plan.count,
        executor=run.executor(plan, left).name,
    )


def interrupted_plan(run: Run) -> Plan | None:
    """Return the plan of an interrupted run that is to be resumed; `UsageError` where it cannot be."""
    saved = run.work.read_plan()
    if saved is None or run.options.force:
        return None
    if saved.get("fingerprint") != run.fingerprint:
        if not run.options.resume:
            run.progress.note("what an interrupted run of another recipe left here is deleted")
            return None
        raise UsageError(
            f"What an interrupted run left in {run.work.path} was made by another recipe, or of other data",
            hint="use --force to start over",
        )
    if not run.options.resume:
        raise UsageError(
            f"This recipe was interrupted before ({run.work.path})",
            hint="use --resume to continue or --force to start over",
        )
    layout = saved["layout"]
    if run.options.layout not in {None, layout}:
        raise UsageError(
            f"An interrupted run of the same recipe writes layout {layout!r}, not "
            f"{run.options.layout!r}",
            hint="use --resume without --layout to continue, or --force to start over",
        )
    if saved["in_place"] and not run.shares_files:
        raise UsageError(
            "An interrupted run of the same recipe was made on one machine, and cannot be resumed "
            "on several",
            hint="use --resume with the same engine to continue, or --force to start over",
        )
    return load_plan(run.work, run.recipe, run.reader)


def put_together(
    run: Run,
    plan: Plan,
    work: WorkDir,
    digests: dict[str, FileDigest] | None = None,
    replaced: Entry | None = None,
) -> None:
    """Make a dataset of what the tasks have written, all of them finished, and publish it.

    The work folder goes, but for that of a `JobPlan`, and so does the dataset that is `replaced`.
    `digests` are of files written in place; None: every task wrote files of its own.
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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back what Python's handlers do with SIGINT, SIGTERM and SIGHUP until the end.

    In the main thread, where handlers run; what kills the process by default still does.
    """
    waiting: list[tuple[int, Any]] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        handlers = {number: one for number, one in handlers.items() if callable(one)}
    for number in handlers:
        signal.signal(number, lambda *args: waiting.append(args))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if waiting:
        number, frame = waiting[0]
        handlers[number](number, frame)


def _new_plan(run: Run) -> Plan:
    """Plan, take the room on the disk, and put the plan into the work folder."""
    run.work.clear()
    shares = run.shares_files
    plan = prepare(run.reader, run.recipe, run.options, run.measure, in_place=shares)
    needed = plan.bytes * (1 if plan.in_place else 2)
    require_bytes(run.work.path, with_margin(needed), str(run.target.id))
    if plan.in_place:
        allocate(run.work.dataset, plan.sizes)
    save_plan(run.work, plan, run.fingerprint)
    return plan


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
def _says_what_is_kept(run: Run) -> Iterator[None]:
    """Leave what can be resumed, or nothing, when something fails, and say which."""
    try:
        yield
    except BaseException as error:
        unknown, work = run.recipe.unknown, run.work
        with uninterrupted():
            count = work.recorded()
            if lost := unknown or work.read_plan() is None:
                kept = f"nothing is kept: {unknown or 'run the same command again'}"
                work.clear()
            elif count:
                kept = f"{count} finished task{' is' if count == 1 else 's are'} kept: add --resume to go on"
            else:
                kept = "the plan is kept: add --resume to go on"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {kept}") from None
        if unknown or not lost:
            run.progress.note(kept)
        raise
