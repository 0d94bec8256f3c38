"""Running the tasks of a plan: rows are read, mapped, written, and compared with what was meant."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import IntegrityError
from offline_data.episode import EpisodeBatch, Key
from offline_data.pipeline.jobs.workdir import RangeWriter, WorkDir
from offline_data.pipeline.preprocess.plan import FIRST_ROW, Plan, identity_of
from offline_data.pipeline.preprocess.shared import check_shared
from offline_data.pipeline.preprocess.steps.base import MeasuredStep, Selection
from offline_data.store.audit import Audit
from offline_data.store.chunk import EpisodeChunk, read_chunk
from offline_data.store.layout import AuditMode
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.tables import LayoutWriter, Vocabularies
from offline_data.store.writer import DatasetCounts, episode_table, keep_freed_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AHEAD = 2  # groups that may wait to be written, and as many to be compared


def measure_task(plan: Plan, step: MeasuredStep | Selection, task: int) -> list[Any]:
    """Return the measures of each group of a task, in order; for a selection with `FIRST_ROW`.

    The recipe of the plan consists of the steps before it. Raises `Revision` if one of these must be
    revised.
    """
    measures = []
    for chunk in read_groups(plan, task):
        made = plan.recipe.apply(chunk)
        measure = step.measure(made)
        if isinstance(step, Selection):
            measure = {**measure, FIRST_ROW: made.rows}
        measures.append(measure)
    return measures


@dataclass(frozen=True)
class WriteTasks:
    """A job of executors: compute and write all rows of a task, and record that it is finished.

    While rows are computed, one thread writes those before them, and another reads written rows and
    compares them (as `audit` says, with the fields of the manifest `header`). A task with files of
    its own syncs them before it counts as finished. Calling it returns the number of rows. Raises
    `Revision` if a step must be revised.
    """

    plan: Plan
    work: WorkDir
    header: Manifest
    audit: AuditMode

    def __call__(self, task: int) -> int:
        """Run one task; returns its number of rows."""
        (rows,) = self.in_order([task])
        return rows

    def in_order(self, tasks: Sequence[int]) -> Iterator[int]:
        """Run tasks; yields the rows of each, while rows of the next one may be computed already."""
        keep_freed_memory()
        unfinished: deque[_TaskRows] = deque()
        with ExitStack() as threads:
            writer, checker = (
                threads.enter_context(ThreadPoolExecutor(1, f"offline-data-{name}"))
                for name in ("write", "check")
            )
            try:
                for task in tasks:
                    while len(unfinished) > 1:  # tasks may be single groups: memory is bounded
                        yield unfinished.popleft().finish()
                    unfinished.append(_TaskRows(self, task, writer, checker))
                    for chunk in read_groups(self.plan, task):
                        unfinished[-1].add(self.plan.recipe.apply(chunk))
                        if len(unfinished) > 1 and unfinished[0].is_done:
                            yield unfinished.popleft().finish()
                while unfinished:
                    yield unfinished.popleft().finish()
            finally:
                try:  # what is computed already is kept, whatever ends the next task
                    while len(unfinished) > 1:
                        unfinished.popleft().finish()
                finally:
                    for rows in unfinished:
                        rows.cancel()


class _TaskRows:
    """The rows of one task: added in order, written and compared by two threads."""

    def __init__(
        self, job: WriteTasks, number: int, writer: ThreadPoolExecutor, checker: ThreadPoolExecutor
    ) -> None:
        plan = job.plan
        self._job, self._number, self._task = job, number, plan.tasks[number]
        self._writer, self._checker = writer, checker
        self._writing: deque[Future[None]] = deque()
        self._checking: deque[Future[None]] = deque()
        self._folder = job.work.dataset if plan.in_place else job.work.shard(number)
        self._files = RangeWriter(self._folder, self._task.begin, alone=not plan.in_place)
        self._layout = LayoutWriter(
            plan.layout, plan.schema, self._files, Vocabularies(), plan.shared
        )
        self._census = DatasetCounts()
        self._audit = Audit(job.audit, self._task.rows / max(1, plan.chosen.transitions))
        self._episodes: list[dict[Key, NDArray[Any]]] = []
        self._by_rows: dict[int, list[Any]] = {}
        self._losses: dict[int, tuple[int, int, int]] = {}

    def add(self, chunk: EpisodeChunk) -> None:
        """Write and compare a group, later; waits while too many wait."""
        while len(self._writing) >= _AHEAD:
            self._writing.popleft().result()
        self._writing.append(self._writer.submit(self._write, chunk))

    @property
    def is_done(self) -> bool:
        """Whether all groups so far are written and compared, or failed."""
        # a write adds what is to be compared
        return all(x.done() for x in self._writing) and all(x.done() for x in self._checking)

    def finish(self) -> int:
        """Wait for all groups, record that the task is finished, and return its rows."""
        plan, work = self._job.plan, self._job.work
        try:
            for waiting in (self._writing, self._checking):
                while waiting:
                    waiting.popleft().result()
            if not plan.in_place:
                self._files.sync()
            keys = self._episodes[0] if self._episodes else ()
            columns = {key: np.concatenate([one[key] for one in self._episodes]) for key in keys}
            about = {
                "counts": dict(self._census.counts),
                "non_finite": self._census.non_finite_json(),
                "audit": [self._audit.rows, self._audit.episodes],
                "by_rows": list(self._by_rows.values()),
                "losses": [[step, *loss] for step, loss in self._losses.items()],
                "videos": self._layout.linked,
            }
            durable = not plan.in_place
            work.write_record(self._number, columns, about, self._files.written, durable=durable)
        finally:
            self.cancel()
        return self._task.rows

    def cancel(self) -> None:
        """Drop groups that wait, and close the files."""
        for waiting in (self._writing, self._checking):
            for future in waiting:
                future.cancel()
            wait(waiting)
        self._files.close()

    def _write(self, chunk: EpisodeChunk) -> None:
        for rows, why, step in chunk.by_rows:  # of several reasons the first is reported
            one = self._by_rows.setdefault(step, [step, 0, 0, why])
            one[1:3] = one[1] + 1, one[2] + rows
        for *loss, step in chunk.losses:
            self._losses[step] = add_losses(self._losses.get(step), loss)
        batch, plan, layout = chunk.batch, self._job.plan, self._layout
        rows, episodes = (self._census.counts[name] for name in ("transitions", "episodes"))
        if not len(batch.lengths):
            return
        plan.schema.conform(batch, int(chunk.episodes[0]))
        self._episodes.append(episode_table(batch))
        self._census.add(batch)
        layout.append(batch, self._task.episode + episodes)
        tables = plan.tables if plan.in_place else layout.tables
        header = replace(self._job.header, tables=tables, digests=layout.linked)
        reader = DatasetReader(self._folder, header)
        reader.vocabularies = {}  # text is compared as codes
        while len(self._checking) >= _AHEAD:
            self._checking.popleft().result()
        first = self._task.row + rows, self._task.episode + episodes
        self._checking.append(self._checker.submit(self._compare, batch, reader, *first))

    def _compare(self, batch: EpisodeBatch, reader: DatasetReader, row: int, episode: int) -> None:
        shared = self._job.plan.shared
        check_shared(shared, batch, reader, row, episode)
        self._audit.check(batch, reader, row, episode, shared)


def add_losses(one: Sequence[int] | None, other: Sequence[int]) -> tuple[int, int, int]:
    """Return the largest error, the sum of errors and the number of values of two `losses`."""
    largest, total, values = one or (0, 0, 0)
    return max(largest, other[0]), total + other[1], values + other[2]


def read_groups(plan: Plan, task: int) -> Iterator[EpisodeChunk]:
    """Read the groups of a task from the parent, in order."""
    reader = parent_reader(plan.parent, plan.identity)
    for start, stop in pairwise(plan.tasks[task].groups.tolist()):
        yield read_chunk(reader, plan.chosen[start:stop])


@lru_cache(maxsize=4)
def parent_reader(path: Path, identity: str) -> DatasetReader:
    """Open a dataset once per process; raises `IntegrityError` if its content has changed."""
    reader = open_reader(path)
    if identity_of(reader) != identity:
        raise IntegrityError(
            f"The dataset in {path} was replaced while another one was made of it",
            hint="use --force to start over",
        )
    return reader
