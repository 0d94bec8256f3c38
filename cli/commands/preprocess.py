"""`preprocess`: a new dataset from an old one, made here, planned for others, or only looked at."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offline_data.errors import UsageError
from offline_data_cli.call import Call
from offline_data_cli.options import DEFAULT_AUDIT, Audit, DryRun, Layout
from offline_data_cli.preprocessed import foreseen_result, made_result, planned_result
from offline_data_cli.recipes import step_list
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.preprocess.executors.base import Executor
    from offline_data.preprocess.order import Order


class By(str, Enum):
    """What a function is called with."""

    row = "row"
    episode = "episode"


class On(str, Enum):
    """What a row is."""

    transitions = "transitions"
    observations = "observations"


class Engine(str, Enum):
    """Who runs the tasks."""

    local = "local"
    ray = "ray"


def _calling(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="How functions are called", **more)


def _running(text: str, *names: str, **more: Any) -> Any:
    panel = "How it is run: the same data come out"
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _flag(text: str, name: str) -> Any:
    return typer.Option(name, help=text)


def preprocess(
    call: Call,
    dataset: Annotated[
        str | None, typer.Argument(metavar="ID", help="Dataset id, or path of a directory.")
    ] = None,
    fn: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FN|pkg.mod:FN", help="A function; it comes before all steps."
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:ARGS]", help="A step; repeatable. fn:FILE.py:FN is one too."),
    ] = None,
    list_steps: Annotated[bool, _flag("Show all steps, with examples.", "--list-steps")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="NAME", help="The new id becomes local:NAME.")
    ] = None,
    dest: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead: the dataset directory to make.")
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N transitions.")
    ] = None,
    layout: Layout = None,
    audit: Audit = DEFAULT_AUDIT,
    resume: Annotated[bool, _flag("Go on with a run that was stopped.", "--resume")] = False,
    force: Annotated[bool, _flag("Replace what is there.", "--force")] = False,
    dry_run: DryRun = False,
    batched: Annotated[
        int | None, _calling("Hand it blocks of N rows.", metavar="N", min=1)
    ] = None,
    by: Annotated[By, _calling("What it gets.")] = By.row,
    on: Annotated[On, _calling("observations: each once, nothing else.")] = On.transitions,
    no_vectorize: Annotated[
        bool, _calling("Row by row, never torch.vmap.", "--no-vectorize")
    ] = False,
    seed: Annotated[int | None, _calling("Of its random numbers; else 0.", metavar="N")] = None,
    workers: Annotated[int | None, _running("Processes at most.", metavar="N", min=1)] = None,
    chunk_rows: Annotated[
        int | None, _running("Transitions of a task, about.", metavar="N", min=1)
    ] = None,
    engine: Annotated[Engine, _running("Who runs the tasks.")] = Engine.local,
    address: Annotated[str | None, _running("Of a Ray cluster: HOST:PORT.", metavar="A")] = None,
    plan_only: Annotated[bool, _running("Plan for `worker`, run nothing.", "--plan-only")] = False,
    plan: Annotated[Path | None, _running("Where the plan goes.", metavar="FILE")] = None,
) -> Result:
    """Make a new dataset out of an old one, by functions and steps.

    A function gets one transition, a TensorDict in TED, and returns one.

    offline-data preprocess ID --fn scale.py:scale --out scaled

    offline-data preprocess ID --step clip:action,low=-1,high=1 --out clipped
    """
    from offline_data.preprocess.options import Options
    from offline_data.preprocess.order import Order
    from offline_data.preprocess.spec import Calling
    from offline_data.store.audit import parse_audit
    from offline_data.store.library import locate

    if list_steps:
        return step_list()
    stages = (*([f"fn:{fn}"] if fn else []), *(step or []))
    calls = _given(batched=batched, by=by, on=on, no_vectorize=no_vectorize, seed=seed)
    _check(dataset, stages, calls, out, dest)
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
    parent = locate(str(dataset), call.settings)
    order = Order(parent.path, stages, calling, out, dest, options)
    if plan is not None:
        return _planned(order, plan, call)
    return _foreseen(order, call) if dry_run else _carried_out(order, call)


def _carried_out(order: "Order", call: Call) -> Result:
    from offline_data.preprocess.order import carry_out

    return made_result(carry_out(order, call.settings, call.progress))


def _foreseen(order: "Order", call: Call) -> Result:
    from offline_data.preprocess.outlook import foresee

    return foreseen_result(foresee(order, call.settings, call.progress))


def _planned(order: "Order", file: Path, call: Call) -> Result:
    from offline_data.preprocess.shared_planning import plan_shared

    return planned_result(plan_shared(order, file, call.settings, call.progress))


def _given(**options: Any) -> list[str]:
    """Return the options that say how functions are called and were given."""
    usual: dict[str, Any] = {"by": By.row, "on": On.transitions, "no_vectorize": False}
    names = (name for name, value in options.items() if value != usual.get(name))
    return [f"--{name.replace('_', '-')}" for name in names]


def _check(
    dataset: str | None,
    stages: tuple[str, ...],
    calls: list[str],
    out: str | None,
    dest: Path | None,
) -> None:
    """Raise `UsageError` for what is missing, given twice, or without effect."""
    if dataset is None:
        raise UsageError("ID is missing: the dataset to start from", hint="offline-data list")
    if not stages:
        raise UsageError(
            "Nothing is to be done: neither --fn nor --step is given",
            hint="--fn FILE.py:FN, or a step of `offline-data preprocess --list-steps`",
        )
    if (out is None) == (dest is None):
        raise UsageError(
            "The new dataset needs one place: --out NAME, or --dest DIR",
            hint="--out NAME makes it local:NAME",
        )
    if calls and not any(stage.startswith("fn:") for stage in stages):
        raise UsageError(
            f"{', '.join(calls)}: without effect, for there is no function",
            hint="these say how a function is called: --fn FILE.py:FN",
        )


def _check_plan(plan: Path | None, *, plan_only: bool, dry_run: bool) -> None:
    """Raise `UsageError` where it is not clear whether to plan or to run."""
    if plan_only != (plan is not None):
        raise UsageError(
            "--plan-only and --plan FILE go together",
            hint="leave both out to make the dataset here and now",
        )
    if plan_only and dry_run:
        raise UsageError("--plan-only writes a plan, and --dry-run writes nothing")


def _executor(
    engine: Engine, address: str | None, workers: int | None, plan: Path | None
) -> "Executor | None":
    if engine is Engine.local:
        if address is not None:
            raise UsageError("--address is Ray's", hint="add --engine ray")
        return None
    if plan is not None:
        raise UsageError("--engine ray runs tasks, and --plan-only runs none")
    from offline_data.preprocess.executors.ray import RayExecutor

    return RayExecutor(address, workers=workers)
