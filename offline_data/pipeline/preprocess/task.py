"""Running one task: read its groups, apply the recipe, write or measure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import IntegrityError
from offline_data.episode import Key
from offline_data.pipeline.jobs.workdir import RangeWriter, WorkDir
from offline_data.pipeline.preprocess.plan import FIRST_ROW, Plan, identity_of
from offline_data.pipeline.preprocess.steps.base import MeasuredStep, Selection
from offline_data.store.audit import Audit
from offline_data.store.chunk import EpisodeChunk, read_chunk
from offline_data.store.layout import AuditMode
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.tables import LayoutWriter, Vocabularies
from offline_data.store.writer import DatasetCounts, episode_table

_KEPT_BYTES = (32 << 20) - (64 << 10)
"""glibc returns freed memory to the system above a threshold that rises to twice the largest array
freed, up to this size. Fresh pages for every array would take longer than filling them."""

_AHEAD = 2  # groups that may wait to be written


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


def write_task(plan: Plan, work: WorkDir, header: Manifest, mode: AuditMode, number: int) -> int:
    """Compute and write all rows of a task, record that it is finished, and return how many.

    A thread writes rows, and reads some back for comparison (as `mode` says, with the fields of the
    manifest `header`), while the next ones are computed. Rows of files of its own are synced before
    the task counts as finished. Raises `Revision` if a step must be revised.
    """
    task = plan.tasks[number]
    folder = work.dataset if plan.in_place else work.shard(number)
    census, audit = DatasetCounts(), Audit(mode, task.rows / max(1, plan.chosen.transitions))
    tables: list[dict[Key, NDArray[Any]]] = []
    by_rows: dict[int, list[Any]] = {}

    def write(chunk: EpisodeChunk) -> None:
        """Append the episodes of a chunk, and compare some of them."""
        for rows, why, step in chunk.by_rows:  # of several reasons the first is told
            one = by_rows.setdefault(step, [step, 0, 0, why])
            one[1:3] = one[1] + 1, one[2] + rows
        batch = chunk.batch
        rows, episodes = (census.counts[name] for name in ("transitions", "episodes"))
        if not len(batch.lengths):
            return
        plan.schema.conform(batch, int(chunk.episodes[0]))
        tables.append(episode_table(batch))
        census.add(batch)
        layout.append(batch, task.episode + episodes)
        written = plan.tables if plan.in_place else layout.tables
        reader = DatasetReader(folder, replace(header, tables=written, digests=layout.linked))
        reader.vocabularies = {}  # text is compared as codes
        audit.check(batch, reader, task.row + rows, task.episode + episodes)

    with RangeWriter(folder, task.begin, alone=not plan.in_place) as files:
        layout = LayoutWriter(plan.layout, plan.schema, files, Vocabularies())
        np.empty(_KEPT_BYTES, np.uint8)
        pool = ThreadPoolExecutor(1, thread_name_prefix="offline-data-write")
        waiting: deque[Future[None]] = deque()
        try:
            for chunk in read_groups(plan, number):
                made = plan.recipe.apply(chunk)
                while len(waiting) >= _AHEAD:
                    waiting.popleft().result()
                waiting.append(pool.submit(write, made))
            while waiting:
                waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        if not plan.in_place:
            files.sync()
        keys = tables[0] if tables else ()
        columns = {key: np.concatenate([one[key] for one in tables]) for key in keys}
        about = {
            "counts": dict(census.counts),
            "non_finite": census.non_finite_json(),
            "audit": [audit.rows, audit.episodes],
            "by_rows": list(by_rows.values()),
            "videos": layout.linked,
        }
        work.write_record(number, columns, about, files.written, durable=not plan.in_place)
    return task.rows


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
