"""New datasets with some of the episodes of another: those that fit a condition, or a split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from offline_data.config import Settings
from offline_data.errors import UsageError
from offline_data.ingest.options import Stored
from offline_data.preprocess.engine import dry_run, preprocess
from offline_data.preprocess.job import Job, RunOptions
from offline_data.progress import SILENT, Progress

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
    """Make `local:NAME` of the episodes of a dataset directory for which an expression is true.

    `where` is an expression over the episode table, see the step `Filter`. Raises what `preprocess`
    raises, `StepError` if no episode is left.
    """
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
    published by itself, and a run that was interrupted goes on with the parts that are missing.

    Raises:
        UsageError, StepError: No parts; shares that are too large, or too small for one episode;
            a dataset of another recipe is there; see `preprocess`.
    """
    if not shares:
        raise UsageError("A split needs parts", hint="for example train=0.9 val=0.1")
    given = ",".join(f"{part}={share!r}" for part, share in shares.items())
    steps = {part: f"split:{part},{given},seed={seed}" for part in shares}
    jobs = {
        part: Job(parent, (step,), f"{name}-{part}", options=options)
        for part, step in steps.items()
    }
    for job in jobs.values():
        dry_run(job, settings, progress)  # raises what is wrong before anything is written
    return {part: preprocess(job, settings, progress) for part, job in jobs.items()}
