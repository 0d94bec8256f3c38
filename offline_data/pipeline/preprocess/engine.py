"""Running a job: plan, run the tasks, plan again if a task found it necessary, publish."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from offline_data.base.config import Settings, usable_cores
from offline_data.base.errors import UsageError, WorkerDiedError
from offline_data.base.files import free_bytes, require_bytes
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.pipeline.jobs.executors import (
    BYTES_A_SECOND,
    Cost,
    Executor,
    InProcess,
    LocalProcesses,
    choose_workers,
    run_tasks,
    says_what_is_kept,
    torch_threads,
)
from offline_data.pipeline.jobs.workdir import WorkDir, allocate
from offline_data.pipeline.preprocess.finish import (
    IncrementalHasher,
    finish,
    header_of,
    recipe_json,
)
from offline_data.pipeline.preprocess.job import (
    Job,
    Recipe,
    RunOptions,
    Target,
    recipe_of,
    step_label,
)
from offline_data.pipeline.preprocess.plan import (
    Plan,
    fingerprint,
    load_plan,
    prepare,
    save_plan,
    seconds_of_calls,
)
from offline_data.pipeline.preprocess.shared import SharedFileChanged, place_shared
from offline_data.pipeline.preprocess.steps.base import MeasuredStep, Revision, Selection
from offline_data.pipeline.preprocess.tasks import WriteTasks, measure_task
from offline_data.store.library import Entry, Stored, entry_at, foreign_files, remove
from offline_data.store.manifest import Manifest
from offline_data.store.publish import dataset_lock, publish, recover
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.writer import Digest, with_margin

_REVISION_DIGITS = 12  # of the fingerprint, in the revision

_START_SECONDS = {False: 1.0, True: 5.0}  # of worker processes, by whether they import torch

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # deferred while a dataset is published


@dataclass(frozen=True)
class Run:
    """The making of one dataset."""

    reader: DatasetReader
    recipe: Recipe
    target: Target
    fingerprint: str  # of parent and recipe, see `plan.fingerprint`
    options: RunOptions
    settings: Settings
    progress: Progress

    @classmethod
    def of(cls, job: Job, settings: Settings, progress: Progress) -> Run:
        """Resolve parent, functions and steps; raises `UsageError`, `NotFoundError`, `ManifestError`."""
        reader = open_reader(job.parent.absolute())
        recipe = recipe_of(job.stages, job.options).bind(reader)
        made_of = fingerprint(reader, recipe, job.options.num_frames, job.options.view)
        target = Target.of(job.name, job.dest, made_of[:_REVISION_DIGITS], settings)
        return cls(reader, recipe, target, made_of, job.options, settings, progress)

    @property
    def work(self) -> WorkDir:
        """The work folder."""
        return WorkDir(self.target.work)

    @property
    def shares_files(self) -> bool:
        """Whether all tasks run on this machine and can write into the new dataset's files."""
        return self.options.executor is None or not self.options.executor.shards

    def header(self, plan: Plan) -> Manifest:
        """Return the manifest's fields on the parent and the recipe."""
        return header_of(self.target.id, plan, self.reader, self.fingerprint, self.options)

    def find_existing(self) -> tuple[bool, Entry | None]:
        """Return whether it exists, else one of its name; `UsageError` for that without `force`."""
        options = self.options
        if not options.force and self.target.existing(self.fingerprint, options.layout):
            return True, None
        return False, self.target.older(self.settings.root, force=options.force)

    def revise(self, found: Revision) -> Run:
        """Return the run with a revised step, after a note that says so."""
        self.progress.note(f"starting over: {found.reason}")
        if isinstance(found, SharedFileChanged):
            return replace(self, options=replace(self.options, shares_parent_files=False))
        return replace(self, recipe=self.recipe.revise(found))

    def settle(self, *, in_place: bool) -> tuple[Run, Plan]:
        """Plan until no step asks for a revision; also returns the run with the revised steps."""
        run = self
        while True:
            try:
                plan = prepare(run.reader, run.recipe, run.options, run.measure, in_place=in_place)
            except Revision as found:
                run = run.revise(found)
            else:
                return run, plan

    def measure(self, plan: Plan, step: MeasuredStep | Selection) -> list[Any]:
        """Run a first pass over the data; returns the measures of all groups, in order."""
        tasks, job = range(len(plan.tasks)), partial(measure_task, plan, step)
        found: dict[int, list[Any]] = {}
        measures: list[Any] = []
        done = 0
        label, executor = f"measure for {step.name}", self.executor(plan, len(tasks))
        with self._answers(plan, job, tasks, label, executor) as answers:
            for task, answer in answers:
                found[task] = answer
                while done in found:
                    measures += found.pop(done)
                    done += 1
                if isinstance(step, MeasuredStep) and measures:
                    measures = step.condense(measures)
        return measures

    def run_tasks(self, plan: Plan) -> dict[str, Digest] | None:
        """Run the unfinished tasks; returns the digests of files written in place."""
        work, count = self.work, len(plan.tasks)
        if plan.in_place:
            allocate(work.dataset, plan.written_files)
            place_shared(plan.shared, self.reader, work)
        finished = work.sound(count, in_place=plan.in_place)
        tasks = sorted(set(range(count)).difference(finished))
        if finished:
            self.progress.note(f"resuming: {len(finished)} of {plural(count, 'task')} done")
        with IncrementalHasher(plan.tasks, work.dataset) as hasher:
            for task in finished if plan.in_place else ():
                hasher.add(task)
            with self.write(plan, work, tasks, self.executor(plan, len(tasks))) as answers:
                for task, _ in answers:
                    if plan.in_place:
                        hasher.add(task)
            return hasher.digests() if plan.in_place else None

    def write(
        self, plan: Plan, work: WorkDir, tasks: Sequence[int], executor: Executor
    ) -> AbstractContextManager[Iterator[tuple[int, int]]]:
        """Run tasks; yields an iterator of each finished one and its rows."""
        job = WriteTasks(plan, work, self.header(plan), self.options.audit)
        return self._answers(plan, job, tasks, f"preprocess {self.target.id.name}", executor)

    def executor(self, plan: Plan, tasks: int) -> Executor:
        """Return the requested executor, else processes if the work is worth starting them."""
        options = self.options
        if options.executor is not None:
            return options.executor
        heavy = any(step.brings_torch for step in plan.recipe.steps)
        most = min(options.workers or self.settings.workers, tasks)
        if most <= 1 or not self._is_worth_processes(plan, tasks, most, _START_SECONDS[heavy]):
            return InProcess(options.worker_threads)
        return LocalProcesses(
            most,
            worker_threads=options.worker_threads,
            max_tasks_per_child=options.max_tasks_per_child,
        )

    def _is_worth_processes(self, plan: Plan, tasks: int, workers: int, start: float) -> bool:
        """Return True if processes save time; functions are only timed where they may."""
        share = tasks / len(plan.tasks)
        written = sum(plan.written_files.values()) if plan.in_place else plan.bytes
        rows = written * share / BYTES_A_SECOND

        def worth(calls: float, processor: float) -> bool:
            cost = Cost(calls * share, processor * share, rows, start)
            return choose_workers(workers, usable_cores(), cost) > 1

        return worth(plan.seconds, 0.0) and worth(*seconds_of_calls(self.reader, plan))

    @contextmanager
    def _answers(
        self,
        plan: Plan,
        job: Callable[[int], Any],
        tasks: Sequence[int],
        label: str,
        executor: Executor,
    ) -> Iterator[Iterator[tuple[int, Any]]]:
        """Run tasks; names the rows of one that killed its process twice."""
        sizes, shown = [plan.tasks[task].rows for task in tasks], (label, "steps")
        with run_tasks(executor, job, tasks, self.progress, shown, sizes) as answers:
            try:
                yield answers
            except WorkerDiedError as error:
                if error.task is None:
                    raise
                groups = plan.tasks[tasks[error.task]].groups
                part = plan.chosen[groups[0] : groups[-1]]
                rows = part.rows(self.reader)
                raise WorkerDiedError(
                    f"{error.message}: {' and '.join(map(step_label, plan.recipe.steps))} on rows "
                    f"{rows.min()} to {(rows + part.lengths).max() - 1}",
                    hint=error.shell_hint,
                ) from error


def preprocess(job: Job, settings: Settings, progress: Progress = SILENT) -> Stored:
    """Make a dataset from another one, unless the same recipe made it of the same parent.

    After an error or an interrupt, finished tasks are kept for `resume`.

    Raises:
        UsageError: Another dataset, or the work of an interrupted run, exists there already;
            `options.force` replaces both. Also what `Run.of` raises.
        StepError: A step or a function failed, or does not fit the data.
        WorkerDiedError: A process was killed twice at the same task.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    begin = time.perf_counter()
    run = Run.of(job, settings, progress)
    target = run.target
    target.check(entry_at(run.reader.path))
    with dataset_lock(settings.staging, target.lock, progress), _explain_comparison(run.recipe):
        recover(run.work.dataset, target.destination)
        existed, replaced = run.find_existing()
        if existed:
            saved = run.work.read_plan()  # of a run that was interrupted after it had published
            if saved is None or saved.get("fingerprint") == run.fingerprint:
                run.work.clear()
        else:
            plan = interrupted_plan(run)
            # functions are timed with the threads that they run with
            threads = torch_threads(job.options.worker_threads)
            with says_what_is_kept(lambda: _keep(run), progress), threads:
                while True:
                    try:
                        plan = plan or _new_plan(run)
                        digests = run.run_tasks(plan)
                        break
                    except Revision as found:
                        run, plan = run.revise(found), None
                put_together(run, plan, run.work, digests, replaced)
    return Stored.of(entry_at(target.destination), begin, existed=existed)


def dry_run(job: Job, settings: Settings, progress: Progress = SILENT) -> dict[str, Any]:
    """Plan as `preprocess` does, including first passes over the data, and write nothing.

    Returns the JSON of `preprocess --dry-run`: `replaces` are the datasets that would be deleted,
    `free_bytes` is of the disk of the work folder, `finished` the number of tasks of an interrupted
    run. If the dataset has `existed`, what follows `free_bytes` is missing. Raises `UsageError`,
    `StepError` as `preprocess` before it writes.
    """
    run = Run.of(job, settings, progress)
    target, parent = run.target, entry_at(run.reader.path)
    target.check(parent)
    existed, replaced = run.find_existing()
    result: dict[str, Any] = {
        "id": target.id,
        "parent": parent.id,
        "destination": target.destination,
        "existed": existed,
        "replaces": [] if existed or replaced is None else [replaced.id],
        "free_bytes": free_bytes(target.work),
    }
    if existed:
        return result
    plan, finished = interrupted_plan(run), 0
    if plan is None:
        _, plan = run.settle(in_place=run.shares_files)
    else:
        finished = len(run.work.finished(len(plan.tasks)))
    left = len(plan.tasks) - finished
    return {
        **result,
        "layout": plan.layout,
        "recipe": recipe_json(plan.recipe),
        "transitions": plan.chosen.transitions,
        "episodes": len(plan.chosen.episodes),
        "same_lengths": plan.recipe.keeps_rows,
        "tasks": len(plan.tasks),
        "finished": finished,
        "bytes": plan.bytes,
        "estimated_seconds": round(plan.seconds * left / len(plan.tasks), 1),
        "executor": run.executor(plan, left).name,
    }


def interrupted_plan(run: Run) -> Plan | None:
    """Return the plan of an interrupted run to resume, if any; `UsageError` if it cannot be."""
    saved = run.work.read_plan()
    if saved is None or run.options.force:
        return None
    if saved.get("fingerprint") != run.fingerprint:
        if not run.options.resume:
            run.progress.note("deleting what an interrupted run of another recipe left here")
            return None
        raise UsageError(
            f"The interrupted run in {run.work.path} is of another recipe or of other data",
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
    digests: dict[str, Digest] | None = None,
    replaced: Entry | None = None,
) -> None:
    """Assemble the dataset from the output of the tasks, all of them finished, and publish it.

    Then the work folder, unless it belongs to a `JobPlan`, and the `replaced` dataset are deleted.
    `digests` are of files written in place; None if every task wrote files of its own.
    """
    finish(plan, work, run.header(plan), run.options.audit, run.reader, digests)
    with defer_signals():
        kept = publish(work.dataset, run.target.destination)
        if work.apart is None:  # else other programs look into it
            work.clear()
        if replaced is not None:
            kept += tuple(replaced.path / name for name in foreign_files(replaced.path))
            remove(replaced)
    for path in kept:
        run.progress.note(f"{path} is not a file of the dataset that was replaced; kept")


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Python's handlers of SIGINT, SIGTERM and SIGHUP until the end of the block.

    Only in the main thread, where handlers run; a default action still kills the process.
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
    """Plan, allocate the files, and save the plan in the work folder."""
    run.work.clear()
    shares = run.shares_files
    plan = prepare(run.reader, run.recipe, run.options, run.measure, in_place=shares)
    needed = plan.bytes * (1 if plan.in_place else 2)
    require_bytes(run.work.path, with_margin(needed), str(run.target.id))
    if plan.in_place:
        allocate(run.work.dataset, plan.written_files)
    save_plan(run.work, plan, run.fingerprint)
    return plan


@contextmanager
def _explain_comparison(recipe: Recipe) -> Iterator[None]:
    """Add to a `UsageError` that functions cannot be compared, if that is the reason."""
    try:
        yield
    except UsageError as error:
        if recipe.unknown:
            raise UsageError(f"{error.message}. {recipe.unknown}", hint=error.shell_hint) from error
        raise


def _keep(run: Run) -> tuple[str, bool]:
    """Keep what can be resumed and delete what cannot; returns words for `says_what_is_kept`."""
    unknown, work = run.recipe.unknown, run.work
    with defer_signals():
        if unknown or work.read_plan() is None:
            work.clear()
            return f"nothing is kept: {unknown or 'run the same command again'}", bool(unknown)
        if count := len(work.numbers()):
            tasks = plural(count, "finished task is", "finished tasks are")
            return f"{tasks} kept: add --resume to continue", True
    return "the plan is kept: add --resume to continue", True
