"""`preprocess` and `worker`: a new dataset from an existing one, in one run or by many workers."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.errors import OfflineDataError, UsageError
from offline_data.base.ids import looks_like_path
from offline_data.base.plurals import plural
from offline_data.document.blocks import Field, Fields, fields_of
from offline_data.store.layout import DEFAULT_AUDIT
from offline_data_cli import complete
from offline_data_cli.commands.copies import AsView, save_views
from offline_data_cli.commands.download import (
    EXISTS,
    check_plan,
    executor_of,
    plan_result,
    stored_result,
)
from offline_data_cli.conversion import Audit, Layout
from offline_data_cli.names import entry_named
from offline_data_cli.options import (
    RUNNING,
    WHICH,
    Address,
    Context,
    DryRun,
    Engine,
    Plan,
    PlanOnly,
    RunsOn,
    Workers,
    argument,
    count,
    option,
)
from offline_data_cli.result import Result
from offline_data_cli.watched import run_watched

if TYPE_CHECKING:
    from offline_data.pipeline.jobs.plan_file import Share
    from offline_data.store.library import Stored

_MOST_NAMED = 20  # maximum number of task numbers in a message; `--json` has them all


class By(str, Enum):
    """Units that a function is called with."""

    row = "row"
    episode = "episode"


class On(str, Enum):
    """Rows that a function is applied to."""

    transitions = "transitions"
    observations = "observations"


_CALLING = {"rich_help_panel": "How functions are called"}
_calling = partial(option, **_CALLING)


def preprocess(
    context: Context,
    dataset: Annotated[
        str | None,
        argument("ID", WHICH, autocompletion=complete.ids_here),
    ] = None,
    fn: Annotated[
        str | None,
        option(
            "Apply a Python function first. package.module:FN works, too.", metavar="FILE.py:FN"
        ),
    ] = None,
    steps: Annotated[
        list[str] | None,
        option(
            "Apply a step; may be repeated. fn:FILE.py:FN applies a function.",
            "--step",
            metavar="NAME[:ARGS]",
            autocompletion=complete.steps,
        ),
    ] = None,
    list_steps: Annotated[bool, option("List all steps with examples.")] = False,
    out: Annotated[
        str | None,
        option(
            "Write the dataset local:NAME. A path (./new, /data/new) names a directory.",
            metavar="NAME|DIR",
        ),
    ] = None,
    view: AsView = False,
    dest: Annotated[Path | None, option("Directory, like --out.", hidden=True)] = None,
    num_frames: Annotated[int | None, count("Use only the first N transitions.")] = None,
    layout: Layout = None,
    audit: Audit = str(DEFAULT_AUDIT),
    resume: Annotated[bool, option("Continue an interrupted run.")] = False,
    force: Annotated[
        bool, option("Replace an existing dataset. Discards interrupted runs.")
    ] = False,
    dry_run: DryRun = False,
    batched: Annotated[
        int | None, count("Call the function on blocks of N rows.", **_CALLING)
    ] = None,
    by: Annotated[By, _calling("Pass one row or one whole episode per call.")] = By.row,
    on: Annotated[
        On, _calling("Apply to transitions, or once to every stored observation.")
    ] = On.transitions,
    no_vectorize: Annotated[
        bool, _calling("Call the function row by row, never with torch.vmap.")
    ] = False,
    seed: Annotated[
        int | None, _calling("Seed of the function's random numbers. (default: 0)", metavar="N")
    ] = None,
    workers: Workers = None,
    chunk_rows: Annotated[
        int | None, count("Approximate number of transitions per task.", **RUNNING)
    ] = None,
    engine: RunsOn = Engine.local,
    address: Address = None,
    plan_only: PlanOnly = False,
    plan: Plan = None,
) -> Result:
    """Make a new dataset by applying functions and steps to another.

    A function takes one transition, a TensorDict in TED, and returns one.
    """
    if list_steps:
        from offline_data_cli.commands.explain import step

        return step(context)
    if dataset is None:
        raise UsageError("Missing argument ID, the dataset to start from", hint="offline-data list")
    stages = (*([f"fn:{fn}"] if fn else []), *(steps or []))
    given = {
        "--batched": batched is not None,
        "--by": by is not By.row,
        "--on": on is not On.transitions,
        "--no-vectorize": no_vectorize,
        "--seed": seed is not None,
    }
    _check(stages, [name for name, is_given in given.items() if is_given], out, dest)
    if out is not None and looks_like_path(out) and not view:
        dest = Path(out)
        out = None
    check_plan(plan, {"--dry-run": dry_run}, plan_only=plan_only)
    if view:
        if fn or out is None or dry_run or plan is not None or num_frames is not None:
            raise UsageError(
                "--view takes --step and --out only",
                hint="a view has rows of the dataset, which steps like filter and trim select",
            )
        return save_views(context, entry_named(context, dataset).path, {out: stages}, force=force)
    if any(stage.startswith("fn:") for stage in stages):
        run_watched()
    from offline_data.pipeline.preprocess.engine import dry_run as plan_run
    from offline_data.pipeline.preprocess.engine import preprocess as run
    from offline_data.pipeline.preprocess.job import Job, RunOptions
    from offline_data.store.layout import parse_audit

    options = RunOptions(
        batched=batched,
        by=by.value,
        on=on.value,
        vectorize=not no_vectorize,
        seed=seed or 0,
        num_frames=num_frames,
        layout=layout,
        workers=workers,
        chunksize=chunk_rows,
        executor=executor_of(engine, address, workers, plan),
        audit=parse_audit(audit),
        resume=resume,
        force=force,
    )
    parent = entry_named(context, dataset)
    job = Job(parent.path, stages, out, dest, options)
    if plan is not None:
        from offline_data.pipeline.preprocess.worker import plan_job

        planned = plan_job(job, plan, context.settings, context.progress)
        functions = _list_functions(planned.recipe)
        return plan_result(planned, str(planned.job.parent), planned.recipe, functions)
    if dry_run:
        return _dry_run_result(plan_run(job, context.settings, context.progress))
    return _stored_result(run(job, context.settings, context.progress))


def _check(stages: tuple[str, ...], calls: list[str], out: str | None, dest: Path | None) -> None:
    """Raise `UsageError` for missing, conflicting or ineffective arguments."""
    if not stages:
        raise UsageError(
            "Nothing to do: give --fn or at least one --step",
            hint="`offline-data preprocess --list-steps` lists the steps",
        )
    if (out is None) == (dest is None):
        raise UsageError(
            "Give one output: --out NAME or --out ./DIR",
            hint="--out NAME writes the dataset local:NAME",
        )
    if calls and not any(stage.startswith("fn:") for stage in stages):
        raise UsageError(
            f"{', '.join(calls)} cannot be used without a function",
            hint="give one with --fn FILE.py:FN",
        )


def worker(
    context: Context,
    plan: Annotated[Path, option("Plan that --plan-only --plan FILE wrote.", metavar="FILE")],
    rank: Annotated[int | None, option("Index of this worker, from 0.", metavar="I")] = None,
    world: Annotated[int | None, count("Total number of workers. (default: one per task)")] = None,
    finish: Annotated[bool, option("Only publish the dataset, if all tasks are finished.")] = False,
) -> Result:
    """Run one worker's share of a plan: tasks I, I + N, I + 2N and so on.

    Finished tasks are skipped. The last worker to finish publishes the dataset. As a Slurm array:

    \b
    sbatch --array=0-7 --wrap 'offline-data worker --plan FILE
      --rank $SLURM_ARRAY_TASK_ID --world $SLURM_ARRAY_TASK_COUNT'
    """  # noqa: D301 - click keeps lines after this character
    if finish == (rank is not None) or (finish and world is not None):
        raise UsageError(
            "Give either --rank I (with --world N) or --finish",
            hint="in a Slurm array: --rank $SLURM_ARRAY_TASK_ID --world $SLURM_ARRAY_TASK_COUNT",
        )
    run_watched()
    from offline_data.pipeline.preprocess.worker import finish_job, run_share

    given = (context.settings, context.progress)
    share = finish_job(plan, *given) if rank is None else run_share(plan, rank, world, *given)
    return _share_result(share, rank)


def _share_result(share: "Share", rank: int | None) -> Result:
    about = {"plan": share.plan.file, "tasks": share.plan.tasks}
    about |= {"ran": share.ran, "missing": share.missing}
    if share.result is not None:
        by_recipe = "recipe" in share.result.manifest.converter.get("options", {})
        made = _stored_result(share.result) if by_recipe else stored_result(share.result)
        data = made.data if by_recipe else made.data[0]
        return replace(made, data={**data, **about})
    data = {"id": share.plan.id, "path": None, "existed": False, **about}
    missing = len(share.missing)
    if rank is None:
        named = ", ".join(map(str, share.missing[:_MOST_NAMED]))
        more = ", …" if missing > _MOST_NAMED else ""
        plan = shlex.quote(str(share.plan.file))
        error = OfflineDataError(
            f"{missing} of {plural(share.plan.tasks, 'task')} not finished: {named}{more}",
            hint="start the same ranks again, or run the rest here: "
            f"offline-data worker --plan {plan} --rank 0 --world 1",
        )
        return Result(data, (), failures=(error,), code=1)
    done = f"rank {rank} ran {plural(share.ran, 'task')}; {missing} left for other ranks"
    return Result(data, (done,), notes=(f"the last rank publishes {share.plan.id}",))


def _stored_result(stored: "Stored") -> Result:
    from offline_data.analysis.info import entry_info
    from offline_data.store.library import Entry

    shown = stored_result(stored)
    (counts,) = shown.data
    recipe = stored.manifest.converter["options"]["recipe"]
    info = entry_info(Entry(stored.id, stored.path, stored.manifest))
    functions = _list_functions(recipe)
    blocks = [*shown.blocks, *([Fields(Field("functions", functions))] if functions else [])]
    return replace(shown, data={**vars(info), **counts, "recipe": recipe}, blocks=blocks)


def _dry_run_result(data: dict[str, Any]) -> Result:
    most = "" if data.get("same_lengths", True) else " at most"
    fields = fields_of(
        data,
        "id made_from=parent destination already_exists replaces functions steps=transitions episodes "
        "tasks:count tasks_finished:count size=bytes:bytes free_disk_space=free_bytes:bytes "
        "estimated_time executor",
        already_exists=EXISTS if data["existed"] else None,
        functions=_list_functions(data.get("recipe", ())),
        tasks_finished=data.get("finished") or None,
        estimated_time=None if data["existed"] else _format_time(data["estimated_seconds"]),
        **{name: f"{data[name]:,}{most}" for name in ("transitions", "episodes") if name in data},
    )
    return Result({**data, "dry_run": True}, (fields,), (str(data["id"]),))


def _format_time(seconds: float) -> str:
    if seconds < 1:
        return "under a second in one process"
    if seconds < 100:
        return f"about {seconds:.0f} s in one process"
    size, unit = (60, "min") if seconds < 6000 else (3600, "h")
    return f"about {seconds / size:.1f} {unit} in one process"


def _list_functions(recipe: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return how the functions of a recipe were called; built-in steps are always batched."""
    from offline_data.analysis.info import how_run

    lines = []
    for step in recipe:
        if step["step"] != "fn":
            continue
        texts = [how_run(step)]
        if step.get("two_copies"):
            texts.append(f"{', '.join(step['two_copies'])} stored twice, with their own `next`")
        if step.get("unsteady"):
            texts.append(f"{step['unsteady']}; values may depend on the order of calls")
        if step.get("unknown"):
            texts.append(
                f"its results cannot be reused or resumed, because it cannot be identified: "
                f"{step['unknown']}"
            )
        if step.get("kept"):
            texts.append(f"{', '.join(step['kept'])} kept as stored (not returned)")
        lines += [f"{step.get('name', 'function')}: {text}" for text in texts]
    return lines
