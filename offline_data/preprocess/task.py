"""What is done with one task: read its groups, apply the recipe, write or measure."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Self

from offline_data.errors import IntegrityError
from offline_data.preprocess.piece import read_piece
from offline_data.preprocess.plan import FIRST_ROW, identity_of
from offline_data.preprocess.steps.base import Selection
from offline_data.preprocess.workdir import RangeWriter, Record
from offline_data.store.audit import Audit
from offline_data.store.layout import OBSERVATIONS
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.tables import LayoutWriter, Vocabularies
from offline_data.store.writer import DatasetCounts, episode_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch, Key
    from offline_data.preprocess.piece import Piece
    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.steps.base import MeasuredStep
    from offline_data.preprocess.workdir import WorkDir
    from offline_data.store.layout import AuditMode
    from offline_data.store.manifest import Manifest

_AHEAD = 2
"""Groups that are made before the ones before them are written."""


def measure_task(plan: Plan, step: MeasuredStep | Selection, task: int) -> list[Any]:
    """Return what `step` measures of each group of a task, in order; a selection's with `FIRST_ROW`.

    The recipe of the plan has the steps before it. Raises `Revised` where one of these must be done
    otherwise.
    """
    measures = []
    for piece in read_groups(plan, task):
        made = plan.recipe.apply(piece)
        measure = step.measure(made)
        measures.append(
            {**measure, FIRST_ROW: made.rows} if isinstance(step, Selection) else measure
        )
    return measures


@dataclass(frozen=True)
class WriteJob:
    """Makes and writes the rows of a task, reads some of them back, and records that it is done."""

    plan: Plan
    work: WorkDir
    header: Manifest
    """What reading back needs to know; tables are those of `plan`."""
    audit: AuditMode
    """How many rows are read back and compared with what was computed."""
    durable: bool
    """Whether rows are forced to the disk before a task counts as finished."""

    def __call__(self, task: int) -> int:
        """Do one task, from its beginning, and return the transitions that it read.

        Raises:
            Revised: A step must be done otherwise.
        """
        with TaskWriter(self, task) as writer:
            for piece in read_groups(self.plan, task):
                writer.put(self.plan.recipe.apply(piece))
            writer.finish()
        return self.plan.rows_of(task)


class TaskWriter:
    """The files of one task; rows are written and compared beside the making of the next ones."""

    def __init__(self, job: WriteJob, task: int) -> None:
        plan = job.plan
        self._job, self._task = job, task
        self._folder = job.work.dataset if plan.in_place else job.work.shard(task)
        self._first = plan.first_of(task) if plan.in_place else (0, 0)
        begin = file_offsets(plan, *self._first)
        self._files = RangeWriter(self._folder, begin, alone=not plan.in_place)
        self._layout = LayoutWriter(plan.layout, plan.schema, self._files, Vocabularies())
        self._census, self._audit = DatasetCounts(), Audit(job.audit)
        self._columns: list[dict[Key, NDArray[Any]]] = []
        self._by_rows: dict[int, list[Any]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="offline-data-write")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        self._files.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._files.__exit__(*error)

    def put(self, piece: Piece) -> None:
        """Write the episodes of a piece behind those before."""
        for rows, why, step in piece.by_rows:  # of several reasons the first is told
            one = self._by_rows.setdefault(step, [step, 0, 0, why])
            one[1:3] = one[1] + 1, one[2] + rows
        if not len(piece.episodes):
            return
        counts = self._census.counts
        row, episode = counts["transitions"], counts["episodes"]
        self._job.plan.schema.conform(piece.batch, int(piece.episodes[0]))
        self._columns.append(episode_table(piece.batch, row))
        self._census.add(piece.batch)
        while len(self._waiting) >= _AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._write, piece.batch, row, episode))

    def finish(self) -> None:
        """Wait for everything, and record that the task is done."""
        while self._waiting:
            self._waiting.popleft().result()
        if self._job.durable:
            self._files.sync()
        keys = self._columns[0] if self._columns else ()
        columns = {key: np.concatenate([one[key] for one in self._columns]) for key in keys}
        counts = {
            "counts": dict(self._census.counts),
            "non_finite": self._census.non_finite_json(),
            "audit": [self._audit.rows, self._audit.episodes],
            "by_rows": list(self._by_rows.values()),
        }
        record = Record(columns, counts, self._files.written)
        self._job.work.write_record(self._task, record, durable=self._job.durable)

    def _write(self, batch: EpisodeBatch, row: int, episode: int) -> None:
        """Write a batch, and compare some of it with what is there."""
        job, (first_row, first_episode) = self._job, self._first
        self._layout.append(batch, first_episode + episode)
        tables = job.plan.sized_tables() if job.plan.in_place else self._layout.tables
        reader = DatasetReader(self._folder, replace(job.header, tables=tables))
        reader.vocabularies = {}  # text is compared as codes
        self._audit.check(batch, reader, first_row + row, first_episode + episode)


def file_offsets(plan: Plan, row: int, episode: int) -> dict[str, int]:
    """Return the byte of every file where a row's, or an observation's, place is."""
    return {
        leaf.file: leaf.stride * (row + (episode if name == OBSERVATIONS else 0))
        for name, table in plan.tables().items()
        for leaf in table.leaves
    }


def read_groups(plan: Plan, task: int) -> Iterator[Piece]:
    """Read the groups of a task from the parent, one after the other."""
    reader = parent_reader(plan.parent, plan.identity)
    for group in range(int(plan.tasks[task]), int(plan.tasks[task + 1])):
        yield read_piece(reader, plan.part(group))


@lru_cache(maxsize=4)
def parent_reader(path: Path, identity: str) -> DatasetReader:
    """Open a dataset once in a process; raises `IntegrityError` where it has become another one."""
    reader = open_reader(path)
    if identity_of(reader) != identity:
        raise IntegrityError(
            f"The dataset in {path} was replaced while another one was made of it",
            hint="use --force to start over",
        )
    return reader
