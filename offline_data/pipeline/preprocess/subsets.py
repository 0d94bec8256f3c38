"""Some of the episodes or rows of a dataset, as a new dataset or as a view of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import StepError, UsageError
from offline_data.base.ids import DatasetId
from offline_data.base.progress import SILENT, Progress
from offline_data.pipeline.preprocess.engine import Run, dry_run, preprocess
from offline_data.pipeline.preprocess.job import Job, Recipe, RunOptions
from offline_data.pipeline.preprocess.plan import group_bounds, prepare
from offline_data.pipeline.preprocess.steps.base import Selection
from offline_data.pipeline.preprocess.steps.rows import Trim
from offline_data.store.chunk import read_chunk, select_episodes
from offline_data.store.library import Stored, entry_at

DEFAULTS = RunOptions()


def filter_dataset(
    parent: Path,
    where: str,
    name: str,
    settings: Settings,
    progress: Progress = SILENT,
    *,
    options: RunOptions = DEFAULTS,
) -> Stored:
    """Make `local:NAME` of episodes for which `where` holds, see `Filter`; `StepError`: none."""
    job = Job(parent, (f"filter:{where}",), name, options=options)
    return preprocess(job, settings, progress)


def split_dataset(
    parent: Path,
    shares: Mapping[str, float],
    name: str,
    settings: Settings,
    progress: Progress = SILENT,
    *,
    seed: int = 0,
    options: RunOptions = DEFAULTS,
) -> dict[str, Stored]:
    """Make `local:NAME-PART` of each part of a random split of the episodes; see the step `Split`.

    `shares` are the parts' shares of the episodes of the dataset directory `parent`, together 1 at
    most. Every episode is in one part at most. Nothing is written unless all parts can be; each is
    published by itself, and a run that was interrupted continues with the parts that are missing.

    Raises:
        UsageError, StepError: No parts; shares that are too large, or too small for one episode;
            a dataset of another recipe is there; see `preprocess`.
    """
    steps = split_steps(shares, seed)
    jobs = {
        part: Job(parent, (step,), f"{name}-{part}", options=options)
        for part, step in steps.items()
    }
    for job in jobs.values():
        dry_run(job, settings, progress)  # raises what is wrong before anything is written
    return {part: preprocess(job, settings, progress) for part, job in jobs.items()}


def split_steps(shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Return the step that selects each part of a split; raises `UsageError` without parts."""
    if not shares:
        raise UsageError("A split needs parts", hint="for example train=0.9 val=0.1")
    given = ",".join(f"{part}={share!r}" for part, share in shares.items())
    return {part: f"split:{part},{given},seed={seed}" for part in shares}


@dataclass(frozen=True)
class StoredView:
    """A view that was saved; see `DatasetView.save`."""

    dataset: DatasetId
    view: str  # name, for `load_dataset(dataset, view=…)`
    path: Path
    transitions: int
    episodes: int  # of which it has rows


def save_view(
    parent: Path,
    stages: Sequence[str],
    name: str,
    settings: Settings,
    progress: Progress = SILENT,
    *,
    force: bool = False,
) -> StoredView:
    """Save the rows that steps select as a view of the dataset: row numbers, no copy.

    Steps are selections of episodes, and after them at most one `trim` that removes no rows inside
    of episodes. Rows at which a view cuts an episode have the flags of the dataset.

    Raises `UsageError` for another step, a view of that name without `force`, and an invalid name;
    `StepError` if no row is left.
    """
    from offline_data.rows.saved import place_of
    from offline_data.rows.saved import save_view as write_view
    from offline_data.rows.selection import SubsetStorage, rows_at, rows_of_episodes
    from offline_data.rows.storage import DatasetStorage

    run = Run.of(Job(parent, tuple(stages), "view"), settings, progress)
    place = place_of(parent, name)
    if place.exists() and not force:
        raise UsageError(
            f"The view {name!r} already exists ({place})",
            hint="choose another name, or replace it with --force",
        )
    *before, last = run.recipe.steps
    trims = [last] if isinstance(last, Trim) and not last.inside else []
    selections = before if trims else [*before, last]
    for step in selections:
        if not isinstance(step, Selection):
            raise UsageError(
                f"Step {step.name!r} makes other rows, and a view has rows of the dataset",
                hint="omit --view to make a new dataset",
            )
    reader, whole = run.reader, DatasetStorage(parent)
    chosen = select_episodes(reader)
    if selections:
        recipe = Recipe(tuple(selections))
        chosen = prepare(reader, recipe, run.options, run.measure, in_place=False).chosen
    if trims:
        bounds = group_bounds(reader, chosen).tolist()
        chunks = (read_chunk(reader, chosen[first:stop]) for first, stop in pairwise(bounds))
        kept = [chunk.row_numbers[trims[0].choose_rows(chunk)] for chunk in chunks]
        rows = rows_at(whole, np.concatenate(kept))
    else:
        rows = rows_of_episodes(whole, chosen.episodes)
    if not rows.count:
        raise StepError("The steps leave no row of the dataset")
    view = SubsetStorage(whole, rows)
    path = write_view(view, whole.reader, name, run.recipe.describe())
    return StoredView(entry_at(parent).id, name, path, len(view), len(view.episodes))
