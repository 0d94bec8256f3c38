"""`Plan`: parent, recipe, schema and tasks, decided before any row is written."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import (
    FormatError,
    ManifestError,
    StepError,
    UsageError,
)
from offline_data.base.files import disk_errors
from offline_data.base.plurals import plural
from offline_data.base.version import __version__
from offline_data.episode import Key
from offline_data.episode.cut import runs_within
from offline_data.pipeline.jobs.processes.child import report_place
from offline_data.pipeline.jobs.workdir import WorkDir, read_checked, write_checked
from offline_data.pipeline.preprocess.job import Recipe, RunOptions, describe_place
from offline_data.pipeline.preprocess.shared import shared_files
from offline_data.pipeline.preprocess.steps.base import MeasuredStep, Selection
from offline_data.store.chunk import (
    EpisodeChunk,
    EpisodeSelection,
    read_chunk,
    read_transitions,
    select_episodes,
)
from offline_data.store.encoded import as_encoded
from offline_data.store.layout import LayoutName, TableSpec, file_sizes, with_counts
from offline_data.store.reader import DatasetReader
from offline_data.store.tables import Schema, schema_of, table_specs

GROUP_BYTES = 8 << 20
"""Bytes of rows that are read and mapped at once; a larger episode is a group of its own.

Batched arithmetic may differ in the last bits with the batch. Groups are therefore fixed by data and
recipe, never by workers, chunks or timing.
"""

GROUP_ROWS = 256
"""Rows of such a group if Python is called for every row."""

TASK_BYTES = 32 << 20
"""Least bytes of rows of a task, which is the work lost when a process is killed."""

TASKS = 256
"""Approximate number of tasks of a large dataset; each leaves a small file until all finish."""

TASK_SECONDS = 4.0
"""Time of a task if Python is called for every row."""

FIRST_ROW: Key = ("first row",)
"""Column in the measures of a selection: the parent's first row of each episode."""

_TIMED_PART = 4  # one in this many episodes of the first group is timed
_TIMED_ROWS = 32  # rows of the first sample that is timed, and growth of the next ones
_TIMING_SECONDS = 0.3  # samples that would take longer are not timed
_PROBED_ENDS = 8  # episodes whose last transition is probed
_PROBED_AT_RANDOM = 16  # transitions drawn at random
_PROBED_EPISODES = 3  # whole episodes: the first, the last, one between

Measure: TypeAlias = Callable[["Plan", "MeasuredStep | Selection"], "list[Any]"]
"""Runs a first pass over the data; returns the measures of all groups of a plan, in order."""


@dataclass(frozen=True)
class TaskSpec:
    """Groups of episodes that one process reads, maps and writes."""

    groups: NDArray[np.int64]
    """`[G + 1]` bounds: a group is the chosen episodes `groups[g]` to `groups[g + 1]`."""
    rows: int
    row: int
    """Number of its first transition in the new dataset; 0 if it writes files of its own."""
    episode: int
    """Number of its first episode in the new dataset; 0 if it writes files of its own."""
    begin: Mapping[str, int]
    """Offset of its rows in each file of the new dataset; empty if it writes files of its own."""
    end: Mapping[str, int]
    """Offset in each of these files at which its rows end."""


@dataclass(frozen=True)
class Plan:
    """A dataset to make from another one, divided into tasks."""

    parent: Path
    identity: str
    """Identifies the parent's content; see `identity_of`."""
    recipe: Recipe
    chosen: EpisodeSelection
    """Episodes of the parent to read."""
    tasks: tuple[TaskSpec, ...]
    layout: LayoutName
    schema: Schema
    tables: Mapping[str, TableSpec]
    """Tables of the new dataset, with the rows of all chosen episodes."""
    bytes: int
    """Bytes of all rows; an estimate if images are encoded."""
    words: Mapping[Key, Sequence[str]]
    """Vocabularies of the text features, by the key in steps or observations."""
    unchanged: frozenset[Key]
    """Features of the parent in which the recipe changes no value of a few rows."""
    shared: frozenset[str]
    """Files of the parent that are the new dataset's too; see `shared_files`."""
    in_place: bool
    """Whether tasks write directly into the files of the new dataset. Otherwise each writes files
    of its own, which are joined at the end."""
    seconds: float
    """Estimated time of the recipe on all steps, from few rows: too high for functions that
    are called with many rows at once; see `seconds_of_calls`."""

    @property
    def written_files(self) -> dict[str, int]:
        """Bytes of every file that tasks write in place."""
        sizes = file_sizes(self.tables)
        return {name: size for name, size in sizes.items() if name not in self.shared}


def prepare(
    reader: DatasetReader, recipe: Recipe, options: RunOptions, measure: Measure, *, in_place: bool
) -> Plan:
    """Fit every step, in order, and divide the work into tasks.

    Raises `StepError` if a step does not fit the data or leaves no episode, and `Revision` if a
    trial on some episodes shows that a step must be revised.
    """
    chosen = select_episodes(reader, options.num_frames, options.view)
    ready = Recipe(())

    def measures(step: MeasuredStep | Selection) -> list[Any]:
        return measure(plan_tasks(reader, ready, chosen, options, in_place=False, trial=True), step)

    for step in recipe.steps:
        if isinstance(step, Selection):
            chosen = chosen[_stays(reader, ready, chosen, options, step, measures)]
        elif not step.state():
            if isinstance(step, MeasuredStep):
                step = step.fitted(measures(step))
            else:
                sample = ready.apply(probe(reader, chosen, ready.then(step)))
                report_place(describe_place(step, sample))
                step = step.settled(sample)
        ready = ready.then(step)
    return plan_tasks(reader, ready, chosen, options, in_place=in_place)


def _stays(
    reader: DatasetReader,
    recipe: Recipe,
    chosen: EpisodeSelection,
    options: RunOptions,
    step: Selection,
    measured: Callable[[Selection], list[Any]],
) -> NDArray[np.bool_]:
    """Return which episodes a selection keeps, from the episode table or from all data."""
    step = step.settled(recipe.apply(probe(reader, chosen, recipe)))
    before = chosen.rows(reader)
    mapped = not all(isinstance(one, Selection) for one in recipe.steps)
    cut = options.num_frames is not None or options.view is not None
    labelled = any(one.adds_columns for one in recipe.steps)
    if step.needs_data or cut or labelled or not recipe.keeps_rows or (mapped and step.by_values):
        measures = measured(step)
        table = {k: np.concatenate([one[k] for one in measures]) for k in measures[0]}
        rows = table.pop(FIRST_ROW)
    else:
        table = {key: np.asarray(c)[chosen.episodes] for key, c in reader.episodes.items()}
        table = {**table, ("number",): chosen.episodes}
        del table["start",]
        rows = before
    stays = step.choose(table, recipe.episode_words(reader))
    if not stays.any():
        raise StepError(f"Step {step.name!r} leaves none of {plural(len(stays), 'episode')}")
    if len(stays) == len(before):
        return stays
    if len(np.unique(before)) < len(before):  # a function before it has left some out
        raise UsageError(
            f"The view has rows more than once, and a function before step {step.name!r} left "
            "episodes out, so the selection is ambiguous",
            hint="make a dataset by the function first, then take the step on that",
        )
    return np.isin(before, rows[stays])


def plan_tasks(
    reader: DatasetReader,
    recipe: Recipe,
    chosen: EpisodeSelection,
    options: RunOptions,
    *,
    in_place: bool,
    trial: bool = False,
) -> Plan:
    """Cut the work of a recipe whose steps have all learnt into tasks.

    A `trial` is a first pass, whose measures are merged group by group. With `in_place` tasks may
    write into the files of the dataset.
    """
    sample = probe(reader, chosen, recipe)
    made = recipe.apply(sample)
    timed = sample
    if not recipe.per_row:
        timed = read_chunk(
            reader, chosen[: -(-int(group_bounds(reader, chosen)[1]) // _TIMED_PART)]
        )
    begin = time.perf_counter()
    recipe.apply(timed)
    each = (time.perf_counter() - begin) / max(1, timed.batch.transitions)
    limit = int(TASK_SECONDS / max(each, 1e-9)) if recipe.per_row else None
    rows = options.task_rows(chosen.transitions) or limit
    if rows is None:
        rows = max(1, TASK_BYTES // max(1, row_bytes(reader)), chosen.transitions // TASKS)
    most = None
    if recipe.per_row:
        most = GROUP_ROWS if trial or recipe.in_blocks else min(rows, limit or rows)
    groups = group_bounds(reader, chosen, most)
    return _plan_of(
        reader,
        recipe,
        chosen,
        groups,
        _seams(np.add.reduceat(chosen.lengths, groups[:-1]), rows),
        options.layout or reader.manifest.layout,
        sample,
        made,
        in_place=in_place,
        shared=None if options.shares_parent_files else frozenset(),
        seconds=each * chosen.transitions,
    )


def _plan_of(
    reader: DatasetReader,
    recipe: Recipe,
    chosen: EpisodeSelection,
    groups: NDArray[np.int64],
    tasks: NDArray[np.int64],
    layout: LayoutName,
    sample: EpisodeChunk,
    made: EpisodeChunk,
    *,
    in_place: bool,
    shared: frozenset[str] | None,
    seconds: float,
) -> Plan:
    """Return the plan; `groups` and `tasks` are bounds: of chosen episodes, and of groups.

    `shared` is None to share all files that can be.
    """
    try:
        schema = schema_of_chunk(made)
        tables = table_specs(layout, schema)
    except FormatError as error:
        raise StepError(
            f"What the recipe gives cannot be stored: {error.message}", hint=error.shell_hint
        ) from error
    in_place = in_place and recipe.keeps_rows and not schema.has_encoded
    unchanged = _find_unchanged_leaves(sample, made)
    if not in_place:
        shared = frozenset()
    elif shared is None:
        shared = shared_files(reader, chosen, tables, _find_kept_leaves(recipe, sample, made))
    before = np.concatenate([[0], np.cumsum(chosen.lengths)])

    def offsets(episode: int) -> dict[str, int]:
        sizes = file_sizes(with_counts(tables, int(before[episode]), episode)) if in_place else {}
        return {name: size for name, size in sizes.items() if name not in shared}

    def task_of(first: int, stop: int) -> TaskSpec:
        bounds = groups[first : stop + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        rows = int(before[end] - before[start])
        row, episode = (int(before[start]), start) if in_place else (0, 0)
        return TaskSpec(bounds, rows, row, episode, offsets(start), offsets(end))

    transitions, episodes = int(before[-1]), len(chosen.episodes)
    tables_of_all = with_counts(tables, transitions, episodes)
    encoded = schema.encoded_bytes(transitions, transitions + episodes)
    return Plan(
        parent=reader.path,
        identity=identity_of(reader),
        recipe=recipe,
        chosen=chosen,
        tasks=tuple(task_of(*pair) for pair in pairwise(tasks.tolist())),
        layout=layout,
        schema=schema,
        tables=tables_of_all,
        bytes=sum(file_sizes(tables_of_all).values()) + encoded,
        words=made.words,
        unchanged=unchanged,
        shared=shared,
        in_place=in_place,
        seconds=seconds,
    )


def probe(reader: DatasetReader, chosen: EpisodeSelection, recipe: Recipe) -> EpisodeChunk:
    """Read a sample to learn from: whole episodes if `recipe` may change lengths, else transitions.

    Transitions are the first, the last, last ones of episodes, and others drawn with a fixed seed.
    """
    count = len(chosen.episodes)
    if not recipe.keeps_rows:
        return read_chunk(
            reader, chosen[np.isin(np.arange(count), _spread(count, _PROBED_EPISODES))]
        )
    starts = chosen.rows(reader)
    ends = starts + chosen.lengths - 1
    drawn = np.random.default_rng(0).integers(0, chosen.transitions, _PROBED_AT_RANDOM)
    rows = [
        starts[:1],
        ends[-1:],
        ends[_spread(count, _PROBED_ENDS)],
        _rows_at(starts, chosen, drawn),
    ]
    return read_transitions(reader, np.unique(np.concatenate(rows)))


def _rows_at(
    starts: NDArray[np.int64], chosen: EpisodeSelection, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the parent's rows of transitions, by their numbers among all chosen ones."""
    before = np.cumsum(chosen.lengths)
    episode = np.searchsorted(before, numbers, side="right")
    return starts[episode] + numbers - (before - chosen.lengths)[episode]


def seconds_of_calls(reader: DatasetReader, plan: Plan) -> tuple[float, float]:
    """Return the time of the recipe on all steps, and the time of a core in it.

    It is the shorter of two runs on the first group, or the only one if it takes long. Where Python
    is called for every row, samples grow while they are cheap. A recipe that fails is not timed further; the task with that row says so.
    """
    found = plan.seconds, plan.seconds
    try:
        if not plan.recipe.per_row:
            first, stop = plan.tasks[0].groups[:2].tolist()
            sample = read_chunk(reader, plan.chosen[first:stop])
            once = _seconds_by(sample, plan)
            took = once[0] * sample.batch.transitions / plan.chosen.transitions
            return once if took > _TIMING_SECONDS else min(once, _seconds_by(sample, plan))
        count, total = _TIMED_ROWS, plan.chosen.transitions
        while count < total and found[0] * count < _TIMING_SECONDS * total:
            rows = _rows_at(plan.chosen.rows(reader), plan.chosen, np.arange(count))
            found = _seconds_by(read_transitions(reader, np.unique(rows)), plan)
            count *= _TIMED_ROWS
    except Exception:  # noqa: BLE001, S110 - raised again where its row has a number
        pass
    return found


def _seconds_by(sample: EpisodeChunk, plan: Plan) -> tuple[float, float]:
    begin, busy = time.perf_counter(), time.process_time()
    plan.recipe.apply(sample)
    took, busy = time.perf_counter() - begin, time.process_time() - busy
    scale = plan.chosen.transitions / sample.batch.transitions
    return took * scale, min(took, busy) * scale


def _spread(count: int, wanted: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).astype(np.int64))


def _find_kept_leaves(recipe: Recipe, before: EpisodeChunk, after: EpisodeChunk) -> frozenset[Key]:
    """Return the features that no row of the dataset is likely to change."""
    if any(step.brings_torch for step in recipe.steps):
        return _find_unchanged_leaves(before, after)  # functions make all arrays anew
    old, new = _columns(before), _columns(after)
    return frozenset(key for key in old.keys() & new.keys() if old[key] is new[key])


def _columns(chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
    return {**chunk.batch.steps, **chunk.batch.observations}


def _find_unchanged_leaves(before: EpisodeChunk, after: EpisodeChunk) -> frozenset[Key]:
    """Return the features whose dtype and shape are the same, and whose rows were there before."""
    old, new = _columns(before), _columns(after)
    return frozenset(
        key
        for key in old.keys() & new.keys()
        if old[key] is new[key]
        or (
            (old[key].dtype, old[key].shape[1:]) == (new[key].dtype, new[key].shape[1:])
            and _rows_of(new[key]) <= _rows_of(old[key])
        )
    )


def _rows_of(column: NDArray[Any]) -> set[int]:
    images = as_encoded(column)
    if images is not None:
        return {hash(bytes(image)) for image in images.images()}
    return {hash(column[row].tobytes()) for row in range(len(column))}


def schema_of_chunk(chunk: EpisodeChunk) -> Schema:
    """Return the schema of a dataset of such chunks; features with a vocabulary are text."""
    learnt = schema_of(chunk.batch)
    steps, observations = (
        {key: replace(column, text=key in chunk.words) for key, column in columns.items()}
        for columns in (learnt.steps, learnt.observations)
    )
    return replace(learnt, steps=steps, observations=observations, coded=True)


def group_bounds(
    reader: DatasetReader, chosen: EpisodeSelection, rows: int | None = None
) -> NDArray[np.int64]:
    """Return the bounds of groups of `GROUP_BYTES`, or of `rows` if that is less, `[G + 1]`."""
    most = max(1, GROUP_BYTES // max(1, row_bytes(reader)))
    return _seams(chosen.lengths, most if rows is None else min(most, max(1, rows)))


def row_bytes(reader: DatasetReader) -> int:
    """Return the bytes of a transition in all tables except that of episodes."""
    leaves = [*reader.step_leaves.values(), *reader.observation_leaves.values()]
    return sum(leaf.nbytes for leaf in leaves)


def _seams(lengths: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return np.array([0, *(stop for _, stop in runs_within(lengths, most))], np.int64)


def fingerprint(
    reader: DatasetReader,
    recipe: Recipe,
    num_frames: int | None,
    view: EpisodeSelection | None = None,
) -> str:
    """Return 64 hexadecimal digits that identify parent, recipe and selected rows.

    Workers, chunks and layout are not part of it: the rows do not depend on them.
    """
    return _digest(
        {
            "parent": identity_of(reader),
            "recipe": recipe.describe(),
            "num_frames": None if num_frames is None else int(num_frames),
            **({"code": recipe.code} if recipe.code else {}),
            **({} if view is None else {"view": digest_of_rows(view)}),
        }
    )


def identity_of(reader: DatasetReader) -> str:
    """Return 64 hexadecimal digits that identify a dataset by its id and all its files."""
    files = {name: entry["sha256"] for name, entry in reader.manifest.digests.items()}
    return _digest({"id": reader.manifest.id, "digests": files})


def digest_of_rows(chosen: EpisodeSelection) -> str:
    """Return 64 hexadecimal digits that identify a selection of rows."""
    arrays = (chosen.episodes, chosen.steps, chosen.lengths)
    return hashlib.sha256(b"".join(one.astype("<i8").tobytes() for one in arrays)).hexdigest()


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_PLAN_ARRAYS = (("episodes",), ("lengths",), ("steps",), ("groups",), ("tasks",))


def save_plan(work: WorkDir, plan: Plan, fingerprint: str) -> None:
    """Write a plan into its work folder."""
    chosen = plan.chosen
    groups = np.unique(np.concatenate([task.groups for task in plan.tasks]))
    tasks = np.cumsum([0, *(len(task.groups) - 1 for task in plan.tasks)])
    arrays = (chosen.episodes, chosen.lengths, chosen.steps, groups, tasks)
    about = {
        "version": __version__,
        "fingerprint": fingerprint,
        "parent": str(plan.parent),
        "layout": plan.layout,
        "in_place": plan.in_place,
        "shared": sorted(plan.shared),
        "states": plan.recipe.states(),
    }
    with disk_errors(work.path):
        write_checked(work.plan, about, dict(zip(_PLAN_ARRAYS, arrays, strict=True)), durable=True)


def load_plan(work: WorkDir, recipe: Recipe, reader: DatasetReader) -> Plan:
    """Read a saved plan; a `ManifestError` if it is damaged or of another version."""
    found = read_checked(work.plan)
    if found is None or found[0]["version"] != __version__:
        why = "its plan is damaged"
        if found is not None:
            why = f"offline-data {found[0]['version']} made it, not {__version__}"
        raise ManifestError(
            f"cannot resume the run in {work.path}: {why}",
            hint="use --force to start over",
        )
    value, arrays = found
    ready = recipe.with_states(value["states"])
    *taken, groups, tasks = (arrays[key] for key in _PLAN_ARRAYS)
    chosen = EpisodeSelection(*taken)
    sample, begin = probe(reader, chosen, ready), time.perf_counter()
    made = ready.apply(sample)
    each = (time.perf_counter() - begin) / max(1, sample.batch.transitions)
    return _plan_of(
        reader,
        ready,
        chosen,
        groups,
        tasks,
        value["layout"],
        sample,
        made,
        in_place=value["in_place"],
        shared=frozenset(value["shared"]),
        seconds=each * chosen.transitions,
    )
