"""`demo`: a small dataset is recorded, checked, shown and trained on, without a network."""

import tempfile
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.config import Settings
from offline_data.base.errors import MissingDependencyError, UsageError
from offline_data.base.files import write_user_file
from offline_data.base.progress import Progress
from offline_data.document.blocks import Field, Fields, Lines
from offline_data_cli import cartpole
from offline_data_cli.commands.align import shift_sentence
from offline_data_cli.commands.inspection import info_result, sample_result, stats_result
from offline_data_cli.commands.manage import verify_entry
from offline_data_cli.commands.pages import Replace, new_file
from offline_data_cli.options import Context, option
from offline_data_cli.render import Mode
from offline_data_cli.result import Block, Result

if TYPE_CHECKING:
    from offline_data.analysis.alignment.find import Alignment
    from offline_data.analysis.checks.formats import CheckOutcome
    from offline_data.store.library import Entry

NAME = "demo/cartpole"
EPISODES = 10
PAGE = "demo.html"

TO_TRY = (
    "browse",
    f"episodes local:{NAME}",
    f"filter local:{NAME} 'return > 100' --out good",
)


def demo(
    context: Context,
    force: Replace = False,
    keep: Annotated[bool, option("The dataset is always kept.", hidden=True)] = False,  # noqa: ARG001 - scripts give it
) -> Result:
    """Record, check, show and train on a small dataset; works offline.

    Keeps the dataset as local:demo/cartpole, and writes demo.html to the current folder.
    """
    from offline_data.reports.pages.report import report_page

    if find_spec("gymnasium") is None:
        raise MissingDependencyError(
            "The demo needs gymnasium", hint="pip install 'offline-data[demo]'"
        )
    context = replace(context, settings=replace(context.settings, offline=True))
    settings, progress = context.settings, context.progress
    page = new_file(PAGE, force=True)
    if not force:
        _check_page(page)
    _check_dataset(settings)
    progress.note(f"recording {EPISODES} episodes of CartPole with a camera")
    entry = record(settings, progress)
    progress.note("looking for a planted defect: in a copy, actions are one row late")
    outcome, aligned = find_defect(entry, settings, progress)
    progress.note(f"writing {PAGE}")
    write_user_file(page, report_page(entry, workers=settings.workers, progress=progress))
    progress.note(f"training {cartpole.STEPS} steps of behaviour cloning")
    cloning = cartpole.train(entry.path)

    data = _data(context, entry) if context.mode is Mode.JSON else {}
    found = {"findings": outcome.findings, "shifts": aligned.shifts, "fix": aligned.steps}
    data |= {"defect": found, "page": page, "training": cloning}
    return Result(data, _blocks(entry, outcome, aligned, cloning), (str(entry.id),))


def record(settings: Settings, progress: Progress) -> "Entry":
    """Record episodes of a player that is often wrong, as `local:demo/cartpole`."""
    import numpy as np

    import offline_data
    from offline_data.store.library import entry_at, remove

    env = offline_data.Recorder(
        cartpole.make(), NAME, force=True, root=settings.root, progress=progress
    )
    try:
        with env:
            for seed in range(EPISODES):
                noise = np.random.default_rng(seed)
                observation, _ = env.reset(seed=seed)
                ended = False
                while not ended:
                    action = cartpole.lean(observation["state"], noise)
                    observation, _, terminated, truncated, _ = env.step(action)
                    ended = terminated or truncated
    except BaseException:
        with suppress(UsageError):  # nothing is published
            remove(entry_at(env.stored.path))  # the episodes up to here
        raise
    return entry_at(env.stored.path)


def find_defect(
    entry: "Entry", settings: Settings, progress: Progress
) -> "tuple[CheckOutcome, Alignment]":
    """Return what `check` and `align` find in a copy whose actions are stored one row late."""
    from offline_data.analysis.alignment.find import align_dataset
    from offline_data.analysis.checks.formats import CheckOutcome
    from offline_data.analysis.checks.registry import select_rules
    from offline_data.analysis.checks.run import run_checks
    from offline_data.pipeline.jobs.executors import says_what_is_kept
    from offline_data.pipeline.preprocess.engine import preprocess
    from offline_data.pipeline.preprocess.job import Job, RunOptions
    from offline_data.store.reader import open_reader

    again = "run the demo again", False  # the copy is deleted: nothing can be resumed
    with (
        tempfile.TemporaryDirectory(prefix="offline-data-demo-") as folder,
        says_what_is_kept(lambda: again, progress),
    ):
        elsewhere = replace(settings, root=Path(folder))
        job = Job(entry.path, ("shift:action,by=-1",), "late", None, RunOptions())
        late = preprocess(job, elsewhere, progress).path
        report = run_checks([late], select_rules(("RL044",)), progress=progress)
        outcome = CheckOutcome(report, "error", None, Path(folder))
        return outcome, align_dataset(open_reader(late), kinds=("action", "reward"))


def _data(context: Context, entry: "Entry") -> dict[str, Any]:
    """Return the JSON of commands that look at the dataset, by name; nothing else shows them."""
    from offline_data import api
    from offline_data.analysis.info import entry_info

    stats = api.stats(entry.path, settings=context.settings, progress=context.progress)
    results = {
        "info": info_result(entry_info(entry)),
        "verify": verify_entry(context, entry),
        "stats": stats_result(stats),
        "sample": sample_result(entry, cartpole.BATCH),
    }
    return {"id": str(entry.id), **{name: result.data for name, result in results.items()}}


def _check_page(page: Path) -> None:
    """Raise `UsageError` if the file exists and no demo wrote it."""
    if page.is_file() and f"<title>local:{NAME}".encode() not in page.read_bytes():
        raise UsageError(
            f"{page} exists and is not a demo's page",
            hint="run the demo in another folder, or replace the file with --force",
        )


def _check_dataset(settings: Settings) -> None:
    """Raise `UsageError` if the name is taken by a dataset that no demo recorded."""
    from offline_data.base.ids import parse_id
    from offline_data.store.library import find

    there = find(settings.root, parse_id(f"local:{NAME}"))
    if there is None:
        return
    wrappers = there.manifest.environment.get("additional_wrappers")
    if "offline_data_cli.cartpole:CartPoleCamera" not in str(wrappers):
        raise UsageError(
            f"local:{NAME} exists and is not a demo's ({there.path}); the demo replaces only its own",
            hint=f"offline-data rename local:{NAME} NAME",
        )


def _blocks(
    entry: "Entry", outcome: "CheckOutcome", aligned: "Alignment", cloning: cartpole.Cloning
) -> tuple[Block, ...]:
    """Return what the demo shows: at most 80 columns."""
    from offline_data.analysis.checks.formats import finding_blocks

    episodes, steps = (entry.manifest.counts[name] for name in ("episodes", "transitions"))
    recorded = Fields(
        Field("dataset", f"local:{NAME}"),
        Field("recorded", f"{episodes:,} episodes, {steps:,} steps"),
        Field("read back", "every row equals the recording"),
    )
    seen = Fields(
        Field("page", f"{PAGE}, which plays the episodes in a browser"),
        Field("trained", f"{cloning.steps} steps of behaviour cloning, batches of {cloning.batch}"),
        Field(
            "return",
            f"{cloning.return_before:.0f} before, {cloning.return_after:.0f} after "
            f"(mean of {cloning.episodes} new episodes)",
        ),
    )
    return (
        recorded,
        "A copy with a defect, actions stored one row late:",
        "$ offline-data check late --select RL044",
        *finding_blocks(outcome.findings, outcome.summary),
        f"$ offline-data align late\n{shift_sentence(aligned)}",
        seen,
        Lines(
            [
                [("Try next:", "")],
                *([(f"  offline-data {command}", "id")] for command in TO_TRY),
            ],
            wrap=False,
        ),
    )
