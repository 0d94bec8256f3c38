"""Plans of `preprocess` for jobs of a batch queue; see `jobs.plan_file`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from offline_data.base.config import Settings, user_path
from offline_data.base.errors import FormatError, ManifestError, OfflineDataError, UsageError
from offline_data.base.files import disk_errors, require_bytes
from offline_data.base.json import read_json, shown
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.pipeline.ingest.shard_plan import ShardPlan
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.pipeline.jobs.plan_file import (
    MAX_BYTES,
    PlanFile,
    PlannedWork,
    Share,
    UserPath,
    plan_lock,
    take,
    work_at,
)
from offline_data.pipeline.jobs.workdir import WorkDir
from offline_data.pipeline.preprocess.engine import Run, put_together
from offline_data.pipeline.preprocess.finish import recipe_json
from offline_data.pipeline.preprocess.functions.ted import On
from offline_data.pipeline.preprocess.job import Job, RunOptions, function_in
from offline_data.pipeline.preprocess.plan import load_plan, save_plan
from offline_data.pipeline.preprocess.steps.base import Revision
from offline_data.store.layout import AuditMode, LayoutName
from offline_data.store.library import entry_at, has_manifest
from offline_data.store.publish import dataset_lock, recover
from offline_data.store.writer import with_margin


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a plan."""

    text: str
    sha256: str | None  # of a function; None for other steps
    source: str | None  # of the files that importing it runs, see `source_digest`


@dataclass(frozen=True)
class _Calling:
    batched: int | None
    by: Literal["row", "episode"]
    on: On
    vectorize: Literal["auto"] | bool
    seed: int


@dataclass(frozen=True)
class _Options:
    num_frames: int | None
    layout: LayoutName | None
    audit: AuditMode
    chunksize: int | None
    force: bool


@dataclass(frozen=True, kw_only=True)
class JobPlan(PlanFile):
    """The file of a planned job and its progress.

    Every plan has a new folder in `FILE.work` next to it: tasks of an older one do not interfere.
    """

    command: ClassVar[str] = "preprocess"
    fingerprint: str  # of parent and recipe
    parent: UserPath
    stages: tuple[PlannedStage, ...]
    calling: _Calling
    name: str | None
    dest: UserPath | None
    options: _Options
    place: str = ""  # folder of the tasks' output in `FILE.work`; unique to each plan
    states: tuple[dict[str, Any], ...] = ()  # revised state of each step; `{}` for most
    recipe: tuple[dict[str, Any], ...] = ()  # fitted steps, for display

    @property
    def job(self) -> Job:
        texts = tuple(stage.text for stage in self.stages)
        options = RunOptions(**vars(self.calling), **vars(self.options))
        return Job(self.parent, texts, self.name, self.dest, options)

    def check(self) -> None:
        if not self.published or self.place:
            if not self.stages or len(self.states) != len(self.stages):
                raise FormatError(
                    f"there are {len(self.stages)} stages and {len(self.states)} states"
                )
            if self.tasks < 1 or not re.fullmatch(r"\d+-[0-9a-f]+", self.place):
                raise FormatError(f"tasks is {self.tasks}, place {shown(self.place)}")
        self.job  # noqa: B018 - options raise `UsageError`

    @property
    def folder(self) -> Path:
        """The work folder of all plans of this file."""
        return self.file.with_name(self.file.name + ".work")

    def work(self, run: Run) -> WorkDir:
        """Return the work folder of its tasks; the dataset is assembled next to its destination."""
        return WorkDir(self.folder / self.place, run.target.work.with_suffix(".finish"))

    def run(self, settings: Settings, progress: Progress) -> Run:
        """Build the recipe again; `UsageError` if a function or the parent has changed since."""
        hint = "plan again: `offline-data preprocess … --plan-only --plan FILE --force`"
        changed = [stage.text for stage in self.stages if _source_of(stage.text) != stage.source]
        if not changed:  # a file that has changed is not imported, since that would run it
            run = Run.of(self.job, replace(settings, root=self.root), progress)
            pairs = zip(self.stages, _digests(run), strict=True)
            changed = [stage.text for stage, digest in pairs if digest != stage.sha256]
        if changed:
            raise UsageError(
                f"The function {changed[0]} has changed since {self.file} was made", hint=hint
            )
        if run.fingerprint != self.fingerprint:
            raise UsageError(
                f"The dataset {self.job.parent} has changed since {self.file} was made", hint=hint
            )
        try:
            recipe = run.recipe.with_states(self.states)
            if recipe.states() == list(self.states):
                return replace(run, recipe=recipe)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise ManifestError(f"{self.file} is damaged: its states fit no steps", hint=hint)

    def write_plan(self, run: Run) -> JobPlan:
        """Plan, and write the plan and this file; the caller holds the lock."""
        run, plan = run.settle(in_place=False)
        new = replace(
            self,
            place=f"{self.generation:03d}-{os.urandom(4).hex()}",
            states=tuple(run.recipe.states()),
            recipe=tuple(recipe_json(plan.recipe)),
            tasks=len(plan.tasks),
        )
        work = new.work(run)
        require_bytes(work.path, with_margin(plan.bytes), new.id)
        save_plan(work, plan, run.fingerprint)
        new.write()
        with disk_errors(new.folder):
            for left in [path for path in new.folder.iterdir() if path.name != new.place]:
                shutil.rmtree(left, ignore_errors=True)
        return new

    def revise(self, run: Run, found: Revision) -> JobPlan:
        """Plan again after a revision, unless another process has; returns the new plan."""
        with plan_lock(self.file, run.progress):
            again = replace(self, generation=self.generation + 1)
            return self.newer() or again.write_plan(run.revise(found))

    def checked_recipe(self, run: Run) -> list[dict[str, Any]]:
        """Return `recipe` as recorded in the dataset or in the plan of the work folder."""
        if not self.published:
            return recipe_json(load_plan(self.work(run), run.recipe, run.reader).recipe)
        made = has_manifest(self.destination) and entry_at(self.destination).manifest.converter
        return made.get("options", {}).get("recipe", []) if made else []

    def open(self, settings: Settings, progress: Progress) -> _OpenPlan | None:
        return None if self.published else _OpenPlan(self, self.run(settings, progress))

    def clear(self, settings: Settings) -> None:  # noqa: ARG002 - they are next to the file
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_same(self, other: JobPlan) -> bool:
        return self.place == other.place


def plan_job(job: Job, file: Path, settings: Settings, progress: Progress = SILENT) -> JobPlan:
    """Plan a job, including first passes over the data, and write the plan to a file.

    The file is on a filesystem that all machines share, with space for the rows. `options.resume`
    accepts an existing plan of the same recipe and data; `options.force` plans again. The plan is
    `published` if the dataset exists already.

    Raises:
        UsageError: A plan, or another dataset at the destination, exists; what `Run.of` raises.
        StepError: A step does not fit the data.
        ManifestError, NewerFormatError: The file exists and is not a plan.
        NoSpaceError, AccessError: The disk of the file.
    """
    if job.options.view is not None:
        raise UsageError("A view cannot be planned for other programs", hint="preprocess it here")
    job, file = job.absolute(), user_path(file, "the plan")
    run = Run.of(job, settings, progress)
    options, target = run.options, run.target
    if run.recipe.unknown:
        raise UsageError(
            f"{run.recipe.unknown}, and other programs cannot follow this plan",
            hint="close over arrays or paths instead, and open files inside the function",
        )
    texts = [str(stage) for stage in job.stages]
    plan = JobPlan(
        file=file,
        id=str(target.id),
        fingerprint=run.fingerprint,
        destination=target.destination,
        parent=job.parent,
        stages=tuple(map(PlannedStage, texts, _digests(run), map(_source_of, texts))),
        calling=take(_Calling, options),
        name=job.name,
        dest=job.dest,
        root=settings.root.absolute(),
        options=take(_Options, options),
    )
    target.check(entry_at(run.reader.path))
    with plan_lock(file, progress):
        before = JobPlan.read(file) if file.exists() else None
        if before is not None and not options.force:
            same = (plan.fingerprint, plan.destination, options.layout) == (
                before.fingerprint,
                before.destination,
                before.job.options.layout,
            )
            if same and options.resume:
                return replace(before, recipe=tuple(before.checked_recipe(run)))
            hint = "--force writes a new plan, and discards what its tasks have made"
            raise UsageError(
                f"There is {'the same' if same else 'another'} plan in {file}",
                hint=f"--resume keeps it, {hint}" if same else hint,
            )
        existed, _ = run.find_existing()
        if not existed:
            return plan.write_plan(run)
        plan = replace(plan, published=True)
        plan.write()
        return plan


def _digests(run: Run) -> list[str | None]:
    return [step.describe().get("sha256") for step in run.recipe.steps]


def _source_of(stage: str) -> str | None:
    function = function_in(stage)
    if function is None:
        return None
    from offline_data.pipeline.preprocess.functions.reference import source_digest

    return source_digest(function)


def run_share(
    file: Path, rank: int, world: int | None, settings: Settings, progress: Progress = SILENT
) -> Share:
    """Run the unfinished ones of tasks `rank`, `rank + world`, …; publish if none is left.

    Any number of processes may run any shares at once, and repeatedly. `rank` is the index of this
    worker, from 0, `world` the number of workers; None: one per task.

    Raises:
        UsageError: No such rank; a function or the parent has changed since the plan was made.
        StepError: A step or a function failed; finished tasks are kept.
        NotFoundError, ManifestError: There is no plan, or it cannot be read.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    plan = read_plan(user_path(file, "the plan"))
    if world is not None and not 0 <= rank < world:
        raise UsageError(
            f"rank is {rank}, and the ranks of {plural(world, 'program')} are 0 to {world - 1}",
            hint=f"number the array from 0: --array=0-{max(world - 1, 0)}",
        )
    tasks = max(plan.tasks, 1)
    if world is None and not 0 <= rank < tasks and not plan.generation:
        raise UsageError(
            f"rank is {rank}, and the tasks are 0 to {tasks - 1}",
            hint="say how many programs there are: --world N",
        )

    def choose(work: PlannedWork) -> list[int]:
        return [task for task in work.missing() if task % (world or work.plan.tasks) == rank]

    return work_at(plan, settings, progress, choose)


def finish_job(file: Path, settings: Settings, progress: Progress = SILENT) -> Share:
    """Publish the dataset if every task is finished, without running any; raises as `run_share`."""
    return work_at(read_plan(user_path(file, "the plan")), settings, progress, None)


def read_plan(file: Path) -> PlanFile:
    """Read a plan of either kind; raises what `JobPlan.read` raises."""
    try:
        is_sharded = read_json(file, max_bytes=MAX_BYTES).get("kind") == ShardPlan.kind
    except (OfflineDataError, ValueError, AttributeError):
        is_sharded = False  # reading it below raises the error
    return ShardPlan.read(file) if is_sharded else JobPlan.read(file)


class _OpenPlan(PlannedWork):
    def __init__(self, job_plan: JobPlan, run: Run) -> None:
        self.plan: JobPlan = job_plan
        self._run, self._work = run, job_plan.work(run)
        self._recipe_plan = load_plan(self._work, run.recipe, run.reader)
        self._count = len(self._recipe_plan.tasks)

    def missing(self) -> list[int]:
        return sorted(set(range(self._count)).difference(self._work.finished(self._count)))

    def damaged(self) -> list[int]:
        sound = self._work.sound(self._count, in_place=False)
        damaged = sorted(set(self._work.finished(self._count)).difference(sound))
        for task in damaged:
            self._work.record(task).unlink(missing_ok=True)
        return damaged

    def run(self, tasks: Sequence[int]) -> Generator[Literal[True], None, None]:
        try:
            with self._run.write(self._recipe_plan, self._work, tasks, InProcess()) as answers:
                for _ in answers:
                    yield True
        except Revision as found:
            self.plan.revise(self._run, found)

    def lock(self) -> AbstractContextManager[None]:
        run = self._run
        return dataset_lock(run.settings.staging, run.target.lock, run.progress)

    def publish(self) -> bool:
        run, target, grows = self._run, self._run.target, self._work.dataset
        existed, replaced = run.find_existing()
        if not existed:
            recover(grows, target.destination)
            shutil.rmtree(grows, ignore_errors=True)
            require_bytes(grows, with_margin(self._recipe_plan.bytes), self.plan.id)
            put_together(run, self._recipe_plan, self._work, replaced=replaced)
        return existed
