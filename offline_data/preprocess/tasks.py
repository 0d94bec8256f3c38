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
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.placed import PlacedFiles
from offline_data.preprocess.plan import identity_of
from offline_data.preprocess.reading import read_piece
from offline_data.preprocess.recipe import Revised
from offline_data.preprocess.steps.base import Selection
from offline_data.preprocess.work import Record
from offline_data.store.audit import Audit
from offline_data.store.layout import OBSERVATIONS
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.tables import LayoutWriter, Vocabularies
from offline_data.store.writer import DatasetCounts, episode_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch, Key
    from offline_data.preprocess.piece import ByRows, Piece
    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.steps.base import MeasuredStep
    from offline_data.preprocess.work import Work
    from offline_data.store.audit import AuditMode
    from offline_data.store.manifest import Manifest

FIRST_ROW: Key = ("first row",)
"""Column of what a selection measures: the parent's row that each episode begins with."""

_AHEAD = 2
"""Groups that are made before the ones before them are written."""


@dataclass(frozen=True)
class Finished:
    """A task that is done, its rows written."""

    task: int
    transitions: int
    """How many it read."""


@dataclass(frozen=True)
class MeasureJob:
    """Measures every group of a task: a first pass over data that steps before it have changed."""

    plan: Plan
    """Its recipe has the steps before."""
    step: MeasuredStep | Selection
    """The step that measures."""

    def __call__(self, task: int) -> list[Any] | Revised:
        """Return the measure of each group, in order; a selection's with `FIRST_ROW`."""
        try:
            return [self._measured(piece) for piece in _pieces(self.plan, task)]
        except Revised as found:
            return found

    def _measured(self, piece: Piece) -> Any:
        measure = self.step.measure(piece)
        return {**measure, FIRST_ROW: piece.rows} if isinstance(self.step, Selection) else measure


@dataclass(frozen=True)
class WriteJob:
    """Makes and writes the rows of a task, reads some of them back, and records that it is done."""

    plan: Plan
    work: Work
    header: Manifest
    """What reading back needs to know; tables are those of `plan`."""
    audit: AuditMode
    """How many rows are read back and compared with what was computed."""
    durable: bool
    """Whether rows are forced to the disk before a task counts as finished."""

    def __call__(self, task: int) -> Finished | Revised:
        """Do one task, from its beginning."""
        writing = _Writing(self, task)
        try:
            with writing:
                for piece in _pieces(self.plan, task):
                    writing.put(piece)
                writing.finish()
        except Revised as found:
            return found
        return Finished(task, self.plan.rows_of(task))


class _Writing:
    """The files of one task; rows are written and compared beside the making of the next ones."""

    def __init__(self, job: WriteJob, task: int) -> None:
        plan = job.plan
        self._job, self._task = job, task
        self._folder = job.work.dataset if plan.in_place else job.work.shard(task)
        self._first = plan.first_of(task) if plan.in_place else (0, 0)
        places = begins(plan, *self._first)
        self._files = PlacedFiles(self._folder, places, alone=not plan.in_place)
        self._layout = LayoutWriter(plan.layout, plan.schema, self._files, Vocabularies())
        self._census, self._audit = DatasetCounts(), Audit(job.audit)
        self._columns: list[dict[Key, NDArray[Any]]] = []
        self._by_rows: list[ByRows] = []
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
        self._by_rows += piece.by_rows
        if not len(piece.episodes):
            return
        counts = self._census.counts
        row, episode = counts["transitions"], counts["episodes"]
        first = int(piece.episodes[0])
        self._job.plan.schema.conform(piece.batch, first)
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
        self._job.work.write_record(self._task, self._record(), durable=self._job.durable)

    def _write(self, batch: EpisodeBatch, row: int, episode: int) -> None:
        first_row, first_episode = self._first
        self._layout.append(batch, first_episode + episode)
        reader = self._reader()
        self._audit.check(batch, reader, first_row + row, first_episode + episode)

    def _reader(self) -> DatasetReader:
        """Open what has been written."""
        job = self._job
        tables = job.plan.sized_tables() if job.plan.in_place else self._layout.tables
        reader = DatasetReader(self._folder, replace(job.header, tables=tables))
        reader.vocabularies = {}  # text is compared as codes
        return reader

    def _record(self) -> Record:
        keys = self._columns[0] if self._columns else ()
        columns = {key: np.concatenate([one[key] for one in self._columns]) for key in keys}
        counts = {
            "counts": dict(self._census.counts),
            "non_finite": self._census.non_finite_json(),
            "audit": [self._audit.rows, self._audit.episodes],
            "by_rows": merged(self._by_rows),
        }
        return Record(columns, counts, self._files.written)


def merged(found: Iterable[ByRows]) -> list[list[Any]]:
    """Return `[step, blocks, rows, why]` of each step of which some blocks were run by rows.

    The reason is that of the first one.
    """
    by_step: dict[int, list[Any]] = {}
    for rows, why, step in found:
        one = by_step.setdefault(step, [step, 0, 0, why])
        one[1] += 1
        one[2] += rows
    return list(by_step.values())


def begins(plan: Plan, row: int, episode: int) -> dict[str, int]:
    """Return the byte of every file where a row's, or an observation's, place is."""
    return {
        leaf.file: leaf.stride * (row + (episode if name == OBSERVATIONS else 0))
        for name, table in plan.tables().items()
        for leaf in table.leaves
    }


def _pieces(plan: Plan, task: int) -> Iterator[Piece]:
    """Read the groups of a task one after the other, with the recipe applied."""
    reader = parent_reader(plan.parent, plan.identity)
    for group in range(int(plan.tasks[task]), int(plan.tasks[task + 1])):
        part = plan.part(group)
        piece = plan.recipe.apply(read_piece(reader, part))
        if plan.recipe.keeps_rows and not np.array_equal(piece.batch.lengths, part.lengths):
            raise StepError(
                f"A step changed lengths of episodes {part.episodes[0]} to {part.episodes[-1]}, and "
                "all steps say that they do not",
                hint="a step that changes lengths has `keeps_rows = False`",
            )
        yield piece


@lru_cache(maxsize=4)
def parent_reader(path: Path, identity: str) -> DatasetReader:
    """Open a dataset once in a process; raises `IntegrityError` where it has become another one."""
    reader = open_reader(path)
    if identity_of(reader) != identity:
        raise IntegrityError(
            f"The dataset in {path} was replaced while another one was made of it",
            hint="--force begins anew",
        )
    return reader
