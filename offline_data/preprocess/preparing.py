"""From a recipe as it was asked for to a plan: episodes chosen, statistics taken, schema learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offline_data.errors import FormatError, UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.plan import (
    GROUP_ROWS,
    TASK_SECONDS,
    Plan,
    grouped,
    identity_of,
    schema_of_piece,
    tables_of,
    task_rows,
    tasks_of,
)
from offline_data.preprocess.probing import probe, seconds_each
from offline_data.preprocess.reading import OWN_COLUMNS, Chosen, every, read_piece
from offline_data.preprocess.recipe import Recipe
from offline_data.preprocess.steps.base import MeasuredStep, Selection, Step
from offline_data.preprocess.tasks import FIRST_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.episodes.fields import Key
    from offline_data.preprocess.options import Options
    from offline_data.store.reader import DatasetReader

Measure: TypeAlias = Callable[["Plan", "MeasuredStep | Selection"], "list[Any]"]
"""Runs a first pass: the measures of all groups of a plan, in order."""


@dataclass(frozen=True)
class Prepared:
    """A plan, and how long it will take."""

    plan: Plan
    seconds: float
    """Estimate for all transitions, in one process."""


def prepare(
    reader: DatasetReader, recipe: Recipe, options: Options, measure: Measure, *, in_place: bool
) -> Prepared:
    """Let every step look at what it needs, in order, and cut the work into tasks.

    Raises:
        StepError: A step does not fit the data, or leaves no episode.
        Revised: A trial on some episodes shows that a step must be done otherwise.
    """
    chosen = every(reader, options.num_frames, options.view)
    ready = Recipe(())
    for step in recipe.steps:
        if isinstance(step, Selection):
            chosen = _selected(reader, chosen, ready, step, options, measure)
            ready = ready.then(step)
            continue
        settled: Step = step
        if isinstance(step, MeasuredStep) and not step.state():
            settled = step.fitted(measure(_trial(reader, ready, chosen, options).plan, step))
        elif not step.state():
            settled = step.settled(ready.apply(probe(reader, chosen, ready.then(step))))
        ready = ready.then(settled)
    return planned(reader, ready, chosen, options, in_place=in_place)


def planned(
    reader: DatasetReader,
    recipe: Recipe,
    chosen: Chosen,
    options: Options,
    *,
    in_place: bool,
    trial: bool = False,
) -> Prepared:
    """Cut the work of a recipe that has learnt everything into tasks.

    Args:
        reader: The parent.
        recipe: The steps, settled.
        chosen: Episodes of the parent.
        options: Layout, sizes of tasks.
        in_place: Whether tasks may write into the files of the dataset.
        trial: Whether it is for a first pass, whose answers are added up group by group.
    """
    piece = probe(reader, chosen, recipe)
    made = recipe.apply(piece)
    layout = options.layout or reader.manifest.layout
    try:
        schema = schema_of_piece(made)
        tables_of(layout, schema)
    except FormatError as error:
        raise StepError(f"What the recipe gives cannot be stored: {error.message}") from error
    each = seconds_each(recipe, piece if recipe.per_row else _first_group(reader, chosen))
    wanted = options.task_rows(chosen.transitions)
    limit = int(TASK_SECONDS / max(each, 1e-9)) if recipe.per_row else None
    rows = wanted or limit or task_rows(reader, chosen)
    groups = grouped(reader, chosen, _group_rows(recipe, min(rows, limit or rows), trial=trial))
    plan = Plan(
        reader.path,
        identity_of(reader),
        recipe,
        chosen,
        groups,
        tasks_of(chosen, groups, rows),
        layout,
        schema,
        made.words,
        in_place and recipe.keeps_rows,
    )
    return Prepared(plan, each * chosen.transitions)


def _trial(reader: DatasetReader, recipe: Recipe, chosen: Chosen, options: Options) -> Prepared:
    """Plan a pass over the data that steps so far give."""
    return planned(reader, recipe, chosen, options, in_place=False, trial=True)


def _group_rows(recipe: Recipe, rows: int, *, trial: bool) -> int | None:
    """Return the most rows of a group, None: as many as fit; see `GROUP_BYTES`."""
    if not recipe.per_row:
        return None
    return GROUP_ROWS if trial or recipe.in_blocks else rows


def _first_group(reader: DatasetReader, chosen: Chosen) -> Any:
    groups = grouped(reader, chosen)
    return read_piece(reader, chosen[slice(0, int(groups[1]))])


def _selected(
    reader: DatasetReader,
    chosen: Chosen,
    recipe: Recipe,
    step: Selection,
    options: Options,
    measure: Measure,
) -> Chosen:
    """Choose among the episodes there are, looking at their tables or at all their data."""
    step = step.settled(recipe.apply(probe(reader, chosen, recipe)))
    mapped = not all(isinstance(before, Selection) for before in recipe.steps)
    changed = not recipe.keeps_rows or (mapped and step.by_values)
    cut = options.num_frames is not None or options.view is not None
    if step.needs_data or changed or cut:
        measures = measure(_trial(reader, recipe, chosen, options).plan, step)
        table = {k: np.concatenate([one[k] for one in measures]) for k in measures[0]}
        rows = table.pop(FIRST_ROW)
    else:
        table, rows = _table(reader, chosen), chosen.rows(reader)
    stays = step.choose(table, episode_words(reader))
    if not stays.any():
        raise StepError(f"Step {step.name!r} leaves none of {len(stays)} episodes")
    if len(stays) != len(chosen.episodes):  # a function before it has left some out
        before = chosen.rows(reader)
        if len(np.unique(before)) < len(before):
            raise UsageError(
                f"The view has rows more than once, and a function before step {step.name!r} left "
                "episodes out: which of them is meant is not known",
                hint="make a dataset by the function first, then take the step on that",
            )
        stays = np.isin(before, rows[stays])
    return chosen[stays]


def _table(reader: DatasetReader, chosen: Chosen) -> dict[Key, NDArray[Any]]:
    columns = {key: np.asarray(column)[chosen.episodes] for key, column in reader.episodes.items()}
    columns.pop(("start",))
    return {**columns, ("number",): chosen.episodes}


def episode_words(reader: DatasetReader) -> Mapping[Key, Sequence[str]]:
    """Return the vocabularies of text columns of the episode table."""
    known = reader.vocabularies.get("episodes", {})
    return {key: words for key, words in known.items() if key[0] not in OWN_COLUMNS}
