"""One plan, done by programs that batch queues start: each takes its share, the last publishes."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offline_data.config import user_path
from offline_data.disk import require_bytes
from offline_data.errors import ManifestError, NotFoundError, OfflineDataError, UsageError
from offline_data.ingest.options import Result
from offline_data.preprocess.engine import put_together
from offline_data.preprocess.existing import is_there, older
from offline_data.preprocess.recipe import Revised
from offline_data.preprocess.saved import load_plan
from offline_data.preprocess.shared import plan_lock, read_shared, write_shared
from offline_data.preprocess.shared_planning import plan_otherwise
from offline_data.preprocess.tasks import WriteJob
from offline_data.progress import SILENT
from offline_data.store.layout import MANIFEST
from offline_data.store.library import entry_at
from offline_data.store.locks import dataset_lock
from offline_data.store.publish import recover
from offline_data.store.writer import with_margin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.preprocess.engine import Run
    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.shared import SharedPlan
    from offline_data.preprocess.work import Work
    from offline_data.progress import Progress


@dataclass(frozen=True)
class Share:
    """How far a plan is after a program has done its share."""

    shared: SharedPlan
    ran: int
    """Tasks that this program has run."""
    missing: tuple[int, ...]
    """Tasks that nobody has finished yet."""
    result: Result | None
    """The dataset, where it is there now; `existed` tells that another program has made it."""


@dataclass(frozen=True)
class _Bench:
    """A plan as a program has it before itself."""

    shared: SharedPlan
    run: Run
    plan: Plan
    work: Work

    def missing(self) -> list[int]:
        """Return the tasks that nobody has finished."""
        finished = set(self.work.finished(self.plan.count))
        return [task for task in range(self.plan.count) if task not in finished]

    def damaged(self) -> list[int]:
        """Return finished tasks whose rows are not what they wrote, and take them as not finished."""
        sound = set(self.work.sound(self.plan.count, in_place=False))
        damaged = [task for task in self.work.finished(self.plan.count) if task not in sound]
        for task in damaged:
            self.work.record(task).unlink(missing_ok=True)
        return damaged

    def now(self) -> SharedPlan | None:
        """Return the plan that the file has now, if there is nothing more to do of this one."""
        now = read_shared(self.shared.file)
        return now if now.published or now.place != self.shared.place else None


def run_share(
    file: Path, rank: int, world: int | None, settings: Settings, progress: Progress = SILENT
) -> Share:
    """Run the tasks `rank`, `rank + world`, … that are not finished; publish if none is left.

    Any number of programs may run any shares at once, and again.

    Args:
        file: The plan.
        rank: Number of this program, from 0.
        world: Number of programs; None: as many as there are tasks.
        settings: Processes for first passes, where the data ask for another plan.
        progress: Where to tell of the work.

    Raises:
        UsageError: No such rank; a function or the parent has changed since the plan was made.
        StepError: A step or a function failed; finished tasks are kept.
        NotFoundError, ManifestError: No plan, or one that cannot be read.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    begin = time.perf_counter()
    shared = read_shared(user_path(file, "the plan"))
    _check(shared, rank, world)
    while True:
        bench = _opened(shared, settings, progress)
        if bench is None:
            return _made(shared, begin, existed=True)
        missing = bench.missing()
        tasks = [task for task in missing if task % (world or bench.plan.count) == rank]
        newer = _run_tasks(bench, tasks)
        if newer is None and not bench.missing():
            tasks += (again := bench.damaged())
            newer = _run_tasks(bench, again)
        if newer is None:
            return _ended(bench, len(tasks), begin)
        shared = newer


def finish_shared(file: Path, settings: Settings, progress: Progress = SILENT) -> Share:
    """Publish the dataset if every task is finished; runs none. Raises what `run_share` raises."""
    begin = time.perf_counter()
    shared = read_shared(user_path(file, "the plan"))
    bench = _opened(shared, settings, progress)
    if bench is None:
        return _made(shared, begin, existed=True)
    if not bench.missing():
        bench.damaged()
    return _ended(bench, 0, begin)


def _opened(shared: SharedPlan, settings: Settings, progress: Progress) -> _Bench | None:
    """Get ready to work at a plan; None where its dataset has been made."""
    if shared.published:
        return None
    run = shared.run(settings, progress)
    work = shared.work(run)
    try:
        return _Bench(shared, run, load_plan(work, run.recipe, run.reader), work)
    except ManifestError:
        now = read_shared(shared.file)
        if now == shared:
            raise
        return _opened(now, settings, progress)


def _run_tasks(bench: _Bench, tasks: Sequence[int]) -> SharedPlan | None:
    """Run tasks; returns what is to be done instead where the plan became another one."""
    run, plan = bench.run, bench.plan
    job = WriteJob(plan, bench.work, run.header(plan), run.options.audit, durable=True)
    total = sum(plan.rows_of(task) for task in tasks)
    done = 0
    try:
        with run.progress.task(f"preprocess {run.target.id.name}", total, "transitions") as bar:
            for task in tasks:
                if (now := bench.now()) is not None:
                    return now
                answer = job(task)
                if isinstance(answer, Revised):
                    return plan_otherwise(bench.shared, run, answer)
                done += 1
                bar.advance(answer.transitions)
    except OfflineDataError:
        if (now := bench.now()) is None:
            raise
        return now  # its folder is gone, or was being deleted
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {done} of {len(tasks)} tasks are finished and kept: "
            "run the same command again to go on"
        ) from None
    return bench.now()


def _ended(bench: _Bench, ran: int, begin: float) -> Share:
    """Publish where nothing is missing."""
    missing = tuple(bench.missing())
    if missing:
        now = bench.now()
        if now is None or not now.published:
            return Share(bench.shared, ran, missing, None)
        return _made(now, begin, existed=True, ran=ran)
    existed = _published(bench)
    return _made(bench.shared, begin, existed=existed, ran=ran)


def _published(bench: _Bench) -> bool:
    """Make the dataset, unless another program has; tells which."""
    run, shared, target = bench.run, bench.shared, bench.run.target
    with dataset_lock(run.settings.staging, target.lock, run.progress):
        if read_shared(shared.file).published:
            return True
        existed = not run.options.force and is_there(target, run.fingerprint, run.options.layout)
        if not existed:
            _put_in_place(bench)
        with plan_lock(shared.file, run.progress):
            write_shared(replace(shared, published=True))
    return existed


def _put_in_place(bench: _Bench) -> None:
    run, target = bench.run, bench.run.target
    replaced = older(target, run.settings.root, force=run.options.force)
    grows = bench.work.dataset
    recover(grows, target.destination)
    shutil.rmtree(grows, ignore_errors=True)
    require_bytes(grows, with_margin(bench.plan.bytes), bench.shared.id)
    put_together(run, bench.plan, bench.work, replaced=replaced)


def _made(shared: SharedPlan, begin: float, *, existed: bool, ran: int = 0) -> Share:
    path = shared.destination
    shutil.rmtree(shared.folder, ignore_errors=True)
    if not (path / MANIFEST).exists():
        raise NotFoundError(
            f"{shared.id} was made, and is not in {path} any more",
            hint="plan again: offline-data preprocess … --plan-only --plan FILE --force",
        )
    entry, seconds = entry_at(path), time.perf_counter() - begin
    return Share(shared, ran, (), Result(entry.id, path, entry.manifest, existed, seconds))


def _check(shared: SharedPlan, rank: int, world: int | None) -> None:
    """Raise `UsageError` where there is no such rank."""
    if world is not None and not 0 <= rank < world:
        raise UsageError(
            f"rank is {rank}, and the ranks of {world} programs are 0 to {world - 1}",
            hint=f"number the array from 0: --array=0-{max(world - 1, 0)}",
        )
    if world is None and not 0 <= rank < max(shared.tasks, 1) and not shared.generation:
        raise UsageError(
            f"rank is {rank}, and the tasks are 0 to {max(shared.tasks - 1, 0)}",
            hint="say how many programs there are: --world N",
        )
