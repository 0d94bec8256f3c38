"""`preprocess` and `worker`: a new dataset from an old one, in one run or by many workers."""

import shlex
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from offline_data.errors import OfflineDataError, UsageError
from offline_data_cli.context import Context
from offline_data_cli.options import DEFAULT_AUDIT, Audit, DryRun, Layout, argument, option
from offline_data_cli.recipes import made_result, outlook_result, planned_result, step_list
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.preprocess.distributed import Share
    from offline_data.preprocess.executors.base import Executor

_MOST_NAMED = 20
"""Task numbers in a message; `--json` has them all."""


class By(str, Enum):
    """Arguments of a function."""

    row = "row"
    episode = "episode"


class On(str, Enum):
    """Rows that a function is applied to."""

    transitions = "transitions"
    observations = "observations"


class Engine(str, Enum):
    """Where tasks run."""

    local = "local"
    ray = "ray"


_calling = partial(option, rich_help_panel="How functions are called")
_running = partial(option, rich_help_panel="Execution (does not change the result)")


def preprocess(
    context: Context,
    dataset: Annotated[
        str | None, argument("ID", "Dataset id or path of a dataset directory.")
    ] = None,
    fn: Annotated[
        str | None,
        option("Python function to apply before any --step.", metavar="FILE.py:FN|pkg.mod:FN"),
    ] = None,
    step: Annotated[
        list[str] | None,
        option(
            "Step to apply; repeatable. fn:FILE.py:FN applies a function.", metavar="NAME[:ARGS]"
        ),
    ] = None,
    list_steps: Annotated[bool, option("List all steps with examples.", "--list-steps")] = False,
    out: Annotated[str | None, option("Write the dataset local:NAME.", metavar="NAME")] = None,
    dest: Annotated[
        Path | None, option("Write to this directory instead of the root.", metavar="DIR")
    ] = None,
    num_frames: Annotated[
        int | None, option("Use only the first N transitions.", metavar="N", min=1)
    ] = None,
    layout: Layout = None,
    audit: Audit = DEFAULT_AUDIT,
    resume: Annotated[bool, option("Continue an interrupted run.", "--resume")] = False,
    force: Annotated[
        bool, option("Replace an existing dataset; discard interrupted runs.", "--force")
    ] = False,
    dry_run: DryRun = False,
    batched: Annotated[
        int | None, _calling("Call the function on blocks of N rows.", metavar="N", min=1)
    ] = None,
    by: Annotated[By, _calling("Pass one row or one whole episode per call.")] = By.row,
    on: Annotated[
        On, _calling("Apply to transitions, or once to every stored observation.")
    ] = On.transitions,
    no_vectorize: Annotated[
        bool, _calling("Call the function row by row, never with torch.vmap.", "--no-vectorize")
    ] = False,
    seed: Annotated[
        int | None, _calling("Seed of the function's random numbers. (default: 0)", metavar="N")
    ] = None,
    workers: Annotated[
        int | None, _running("Maximum number of processes.", metavar="N", min=1)
    ] = None,
    chunk_rows: Annotated[
        int | None, _running("Approximate number of transitions per task.", metavar="N", min=1)
    ] = None,
    engine: Annotated[
        Engine, _running("Run tasks in local processes or on a Ray cluster.")
    ] = Engine.local,
    address: Annotated[
        str | None, _running("Address of the Ray cluster.", metavar="HOST:PORT")
    ] = None,
    plan_only: Annotated[
        bool, _running("Write a plan for `worker` and run nothing.", "--plan-only")
    ] = False,
    plan: Annotated[Path | None, _running("File to write the plan to.", metavar="FILE")] = None,
) -> Result:
    """Make a new dataset by applying functions and steps to an existing one.

    A function takes one transition, a TensorDict in TED, and returns one.

    offline-data preprocess ID --fn scale.py:scale --out scaled

    offline-data preprocess ID --step clip:action,low=-1,high=1 --out clipped
    """
    from offline_data.preprocess.options import Options
    from offline_data.preprocess.order import Order, carry_out
    from offline_data.preprocess.spec import Calling
    from offline_data.store.audit import parse_audit
    from offline_data.store.library import locate

    if list_steps:
        return step_list()
    stages = (*([f"fn:{fn}"] if fn else []), *(step or []))
    given = {
        "--batched": batched is not None,
        "--by": by is not By.row,
        "--on": on is not On.transitions,
        "--no-vectorize": no_vectorize,
        "--seed": seed is not None,
    }
    _check(dataset, stages, [name for name, is_given in given.items() if is_given], out, dest)
    _check_plan(plan, plan_only=plan_only, dry_run=dry_run)
    options = Options(
        num_frames=num_frames,
        layout=layout.value if layout else None,
        workers=workers,
        chunksize=chunk_rows,
        executor=_executor(engine, address, workers, plan),
        audit=parse_audit(audit),
        resume=resume,
        force=force,
    )
    calling = Calling(batched, by.value, on.value, not no_vectorize, seed or 0)
    parent = locate(str(dataset), context.settings)
    order = Order(parent.path, stages, calling, out, dest, options)
    if plan is not None:
        from offline_data.preprocess.shared_planning import plan_shared

        return planned_result(plan_shared(order, plan, context.settings, context.progress))
    if dry_run:
        from offline_data.preprocess.outlook import foresee

        return outlook_result(foresee(order, context.settings, context.progress))
    return made_result(carry_out(order, context.settings, context.progress))


def _check(
    dataset: str | None,
    stages: tuple[str, ...],
    calls: list[str],
    out: str | None,
    dest: Path | None,
) -> None:
    """Raise `UsageError` for arguments that are missing, given twice, or without effect."""
    if dataset is None:
        raise UsageError("Missing argument ID, the dataset to start from", hint="offline-data list")
    if not stages:
        raise UsageError(
            "Nothing to do: give --fn or at least one --step",
            hint="`offline-data preprocess --list-steps` lists the steps",
        )
    if (out is None) == (dest is None):
        raise UsageError(
            "Give either --out NAME or --dest DIR", hint="--out NAME writes the dataset local:NAME"
        )
    if calls and not any(stage.startswith("fn:") for stage in stages):
        raise UsageError(
            f"{', '.join(calls)} cannot be used without a function",
            hint="give one with --fn FILE.py:FN",
        )


def _check_plan(plan: Path | None, *, plan_only: bool, dry_run: bool) -> None:
    """Raise `UsageError` unless the options say clearly whether to plan or to run."""
    if plan_only != (plan is not None):
        raise UsageError(
            "--plan-only and --plan FILE must be given together",
            hint="leave both out to run the tasks now",
        )
    if plan_only and dry_run:
        raise UsageError("--plan-only and --dry-run cannot be used together")


def _executor(
    engine: Engine, address: str | None, workers: int | None, plan: Path | None
) -> "Executor | None":
    if engine is Engine.local:
        if address is not None:
            raise UsageError("--address requires --engine ray", hint="add --engine ray")
        return None
    if plan is not None:
        raise UsageError("--engine ray and --plan-only cannot be used together")
    from offline_data.preprocess.executors.ray import RayExecutor

    return RayExecutor(address, workers=workers)


def worker(
    context: Context,
    plan: Annotated[
        Path, option("Plan written by `preprocess --plan-only --plan FILE`.", metavar="FILE")
    ],
    rank: Annotated[int | None, option("Index of this worker, from 0.", metavar="I")] = None,
    world: Annotated[
        int | None, option("Total number of workers. (default: one per task)", metavar="N", min=1)
    ] = None,
    finish: Annotated[
        bool, option("Run no task; publish the dataset if all are finished.", "--finish")
    ] = False,
) -> Result:
    """Run one worker's share of a plan: tasks I, I + N, I + 2 N and so on.

    Finished tasks are skipped. The last worker to finish publishes the dataset.

    As a Slurm array, after `preprocess … --plan-only --plan FILE`:

    sbatch --array=0-7 --wrap 'offline-data worker --plan FILE
    --rank $SLURM_ARRAY_TASK_ID --world $SLURM_ARRAY_TASK_COUNT'
    """
    if finish == (rank is not None) or (finish and world is not None):
        raise UsageError(
            "Give either --rank I (with --world N) or --finish",
            hint="in a Slurm array: --rank $SLURM_ARRAY_TASK_ID --world $SLURM_ARRAY_TASK_COUNT",
        )
    from offline_data.preprocess.distributed import finish_shared, run_share

    if rank is None:
        return _share_result(finish_shared(plan, context.settings, context.progress), None)
    return _share_result(run_share(plan, rank, world, context.settings, context.progress), rank)


def _share_result(share: "Share", rank: int | None) -> Result:
    """Lay out the dataset if it is published, else which tasks are missing."""
    about = {
        "plan": share.shared.file,
        "tasks": share.shared.tasks,
        "ran": share.ran,
        "missing": share.missing,
    }
    if share.result is not None:
        made = made_result(share.result)
        return Result({**made.data, **about}, made.blocks, made.ids, made.notes)
    data = {"id": share.shared.id, "path": None, "existed": False, **about}
    missing = len(share.missing)
    if rank is None:
        named = ", ".join(map(str, share.missing[:_MOST_NAMED]))
        more = ", …" if missing > _MOST_NAMED else ""
        plan = shlex.quote(str(share.shared.file))
        error = OfflineDataError(
            f"{missing} of {_tasks(share.shared.tasks)} not finished: {named}{more}",
            hint="start the same ranks again, or run the rest here: "
            f"offline-data worker --plan {plan} --rank 0 --world 1",
        )
        return Result(data, (), failures=(error,), code=1)
    done = f"rank {rank} ran {_tasks(share.ran)}; {missing} left for other ranks"
    return Result(data, (done,), notes=(f"the last rank publishes {share.shared.id}",))


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
