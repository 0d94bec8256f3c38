"""`worker`: a share of a plan of `preprocess --plan-only`, as batch queues start it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offline_data.errors import OfflineDataError, UsageError
from offline_data_cli.call import Call
from offline_data_cli.preprocessed import made_result
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.preprocess.distributed import Share

_MOST_NAMED = 20


def worker(
    call: Call,
    plan: Annotated[
        Path,
        typer.Option(metavar="FILE", help="What `preprocess --plan-only --plan FILE` wrote."),
    ],
    rank: Annotated[
        int | None, typer.Option(metavar="I", help="Number of this program, from 0.")
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of programs; else one for each task."),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Run no task; publish if all are finished.")
    ] = False,
) -> Result:
    """Run a share of a plan: its tasks I, I + N, I + 2 N and so on.

    Finished tasks are not run again. The last program makes the dataset.

    An array of Slurm, once `preprocess … --plan-only --plan FILE` is done:

    sbatch --array=0-7 --wrap 'offline-data worker --plan FILE
    --rank $SLURM_ARRAY_TASK_ID --world $SLURM_ARRAY_TASK_COUNT'
    """
    if finish == (rank is not None) or (finish and world is not None):
        raise UsageError(
            "Give either --rank I (with --world N), or --finish",
            hint="an array of Slurm: --rank $SLURM_ARRAY_TASK_ID --world $SLURM_ARRAY_TASK_COUNT",
        )
    from offline_data.preprocess.distributed import finish_shared, run_share

    if rank is None:
        return _result(finish_shared(plan, call.settings, call.progress), None)
    return _result(run_share(plan, rank, world, call.settings, call.progress), rank)


def _result(share: "Share", rank: int | None) -> Result:
    """Lay out the dataset where it is there, else what is missing."""
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
    if rank is None:
        return Result(data, (), failures=(_unfinished(share),), code=1)
    are = "is" if len(share.missing) == 1 else "are"
    left = f"{len(share.missing)} {are} left to other ranks"
    done = f"rank {rank} has run {_tasks(share.ran)}; {left}"
    last = f"the last one makes {share.shared.id}"
    return Result(data, (done,), notes=(last,))


def _unfinished(share: "Share") -> OfflineDataError:
    named = ", ".join(map(str, share.missing[:_MOST_NAMED]))
    more = ", …" if len(share.missing) > _MOST_NAMED else ""
    plan = shlex.quote(str(share.shared.file))
    return OfflineDataError(
        f"{len(share.missing)} of {_tasks(share.shared.tasks)} are not finished: {named}{more}",
        hint=f"start the same ranks again, or all in one: "
        f"offline-data worker --plan {plan} --rank 0 --world 1",
    )


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
