"""`download` and `convert`: a dataset from a source, or from a local file or folder."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.config import Settings, TransferLimits, user_path
from offline_data.base.errors import FormatError, OfflineDataError, UsageError
from offline_data.base.files import parse_bytes, write_user_file
from offline_data.base.ids import DatasetId
from offline_data.document.blocks import Lines, fields_of, non_empty, table
from offline_data_cli import complete
from offline_data_cli.commands.own_files import (
    ask_for_mapping,
    ask_for_name,
    ask_question,
    inspect_own_files,
)
from offline_data_cli.conversion import ConversionOptions, Given, parse_options
from offline_data_cli.names import dataset_id
from offline_data_cli.options import (
    Address,
    Context,
    DryRun,
    Engine,
    Plan,
    PlanOnly,
    RunsOn,
    Workers,
    argument,
    option,
)
from offline_data_cli.render import can_ask, choose
from offline_data_cli.result import Result, combine

if TYPE_CHECKING:
    from offline_data.pipeline import ingest
    from offline_data.pipeline.ingest.inspection import Inspection
    from offline_data.pipeline.ingest.shard_plan import ShardPlan
    from offline_data.pipeline.jobs.executors import Executor
    from offline_data.pipeline.preprocess.worker import JobPlan

_transfer = partial(option, rich_help_panel="Transfer")
_MOST_NAMED = 20
EXISTS = "yes; nothing to do"
_STORED = ["id", "path", "layout", "transitions", "episodes", "bytes", "existed", "seconds"]


def download(
    context: Context,
    datasets: Annotated[
        list[str],
        argument(
            "ID...",
            "Ids or names that `search` shows, or `push` targets.",
            autocompletion=complete.all_ids,
        ),
    ],
    *,
    given: Annotated[Given, ConversionOptions("download")],
    dry_run: DryRun = False,
    jobs: Annotated[
        int | None, _transfer("Number of parallel downloads. (default: 8)", metavar="N", min=1)
    ] = None,
    limit_rate: Annotated[
        str | None,
        _transfer("Maximum bytes per second, such as 5MB. (default: none)", metavar="RATE"),
    ] = None,
    timeout: Annotated[
        float | None,
        _transfer(
            "Seconds to wait for a connection, and for data. (default: 10 and 30)",
            metavar="S",
            min=0.001,
        ),
    ] = None,
    retries: Annotated[
        int | None,
        _transfer("Retries in a row without progress. (default: 4)", metavar="N", min=0),
    ] = None,
    workers: Workers = None,
    engine: RunsOn = Engine.local,
    address: Address = None,
    plan_only: PlanOnly = False,
    plan: Plan = None,
) -> Result:
    """Download datasets and convert them.

    Datasets that are already on this disk are not changed.
    """
    from offline_data.pipeline import ingest

    options = parse_options(context, given)
    executor = executor_of(engine, address, workers, plan)
    check_plan(plan, {"--dry-run": dry_run, "--raw-only": options.raw_only}, plan_only=plan_only)
    if plan is not None and len(datasets) > 1:
        raise UsageError("A plan has one dataset", hint="write one plan for each")

    transfer = TransferLimits(
        files_at_once=jobs,
        timeout=timeout,
        tries=None if retries is None else retries + 1,
        bytes_per_second=None if limit_rate is None else parse_bytes(limit_rate, "--limit-rate"),
    )
    if transfer.bytes_per_second == 0:
        raise UsageError("--limit-rate is 0; expected at least one byte per second")

    def handle(dataset: DatasetId) -> Result:
        settings, progress = _with_workers(context, workers), context.progress
        settings = replace(settings, transfer=transfer)
        if plan is not None:
            made = ingest.plan_for_workers(
                dataset, user_path(plan, "--plan"), settings, options, progress
            )
            return plan_result(made)
        if dry_run:
            return _download_plan_result(ingest.plan_download(dataset, settings, options))
        if not options.raw_only:
            return stored_result(
                ingest.download(dataset, settings, options, progress, executor=executor)
            )
        folder = ingest.fetch_raw(dataset, settings, options, progress)
        data = {"id": str(dataset), "raw": folder}
        return Result([data], (fields_of(data, "id raw_files=raw"),), (str(dataset),))

    from offline_data.store.library import requested_id

    ids = [requested_id(dataset_id(context, text)) for text in datasets]
    if len(ids) == 1:
        return handle(ids[0])
    results = []
    for dataset in ids:
        try:
            results.append(handle(dataset))
        except OfflineDataError as error:  # continue with the others
            failed = {"code": error.code, "message": error.message, "hint": error.shell_hint}
            data = [{"id": str(dataset), "error": failed}]
            results.append(Result(data, (), failures=(error,)))
    code = 1 if any(result.failures for result in results) else 0
    return combine([item for result in results for item in result.data], results, code)


def _download_plan_result(plan: "ingest.DownloadPlan") -> Result:
    files = [
        {"file": step.file.path, "action": step.action, "bytes": step.wanted, "reason": step.reason}
        for step in (plan.fetch.steps if plan.fetch else ())
    ]
    data: dict[str, Any] = {
        "id": str(plan.id),
        "destination": plan.destination,
        "existing": plan.existing,
        "files": files,
        "bytes": plan.fetch.wanted if plan.fetch else 0,
        "free_bytes": plan.free_bytes,
        **({} if plan.shards is None else {"shards": plan.shards}),
        "dry_run": True,
    }
    unknown = plan.fetch.unknown if plan.fetch else 0
    fields = fields_of(
        data,
        "id destination already_exists=existing to_download:bytes files_of_unknown_size:count "
        "shards:count free_disk_space=free_bytes:bytes",
        to_download=data["bytes"] or (None if unknown else 0),
        files_of_unknown_size=unknown or None,
    )
    listed = table("file action bytes:bytes reason", files)
    return Result([data], (fields, *non_empty(listed)), (data["id"],))


def convert(
    context: Context,
    path: Annotated[
        Path, argument("PATH", "File or folder, in the format of a source or your own.")
    ],
    name: Annotated[
        str | None,
        argument("NAME", "Name of the dataset; its id is local:NAME.", show_default=False),
    ] = None,
    source: Annotated[
        str | None,
        option(
            "Source whose format PATH has. `env` lists all. (default: detected)",
            "--from",
            metavar="SOURCE",
            autocompletion=complete.sources,
        ),
    ] = None,
    *,
    inspect: Annotated[
        bool,
        option("Only list the arrays of PATH. Prints a mapping to edit, for --mapping."),
    ] = False,
    out: Annotated[
        str | None,
        option(
            "Name of the dataset, like NAME. With --inspect: file to write the mapping to.",
            metavar="NAME|FILE",
        ),
    ] = None,
    given: Annotated[Given, ConversionOptions("convert")],
    dry_run: DryRun = False,
    workers: Workers = None,
    engine: RunsOn = Engine.local,
    address: Address = None,
    plan_only: PlanOnly = False,
    plan: Plan = None,
) -> Result:
    """Convert a local file or folder to a dataset.

    The source is never changed.
    """
    from offline_data.pipeline import ingest

    if inspect:
        return _inspection_result(ingest.inspect_files(user_path(path, "PATH")), out)
    place = user_path(path, "PATH")
    asks = can_ask(context.mode) and not (context.yes or dry_run or plan_only)
    asks = asks and given["mapping"] is None and source in {None, "files"}
    own, file = None, None
    if (name is None) == (out is None):
        own = inspect_own_files(place, source) if asks else None
        if own is None:
            raise UsageError(
                "Missing argument 'NAME'" if name is None else "Give either NAME or --out NAME",
                hint="`offline-data convert PATH --inspect` lists what is in PATH",
            )
        name, file = name or ask_for_name(place), out
    elif asks and source:
        own = inspect_own_files(place, source)
    name = name or out or ""
    text_has_splits = bool(given["tokenizer"]) or source in {"hf", "text"}
    options = parse_options(context, given, split_of_text=text_has_splits)
    executor = executor_of(engine, address, workers, plan)
    check_plan(plan, {"--dry-run": dry_run}, plan_only=plan_only)
    settings = _with_workers(context, workers)

    def handle(place: Path, options: "ingest.Options" = options) -> Result:
        if plan is not None:
            file = user_path(plan, "--plan")
            made = ingest.plan_convert_for_workers(
                place, name, file, settings, options, context.progress, source=source
            )
            return plan_result(made)
        if dry_run:
            return _convert_plan_result(
                ingest.plan_convert(place, name, settings, options, source=source)
            )
        return stored_result(
            ingest.convert(
                place, name, settings, options, context.progress, source=source, executor=executor
            )
        )

    from offline_data.formats.files.mapping import MappingQuestionError
    from offline_data.formats.registry import FolderOfDatasetsError

    def ask_for_split(place: Path, options: "ingest.Options" = options) -> Result:
        try:
            return handle(place, options)
        except ingest.SeveralSplitsError as several:
            names = [*several.splits, ingest.ALL_SPLITS]
            chosen = choose(several.message, names, several.shell_hint or "", yes=context.yes)
            return ask_for_split(place, replace(options, split=chosen))
        except MappingQuestionError as asked:
            try:
                value = ask_question(asked, yes=context.yes)
            except UsageError:  # not interactive
                raise asked from None
            if value is None or options.mapping is None:
                raise
            mapping = asked.answered(options.mapping, value)
            context.progress.note(f'the mapping would say: {asked.place} = "{value}"')
            return ask_for_split(place, replace(options, mapping=mapping))

    try:
        if own is None:
            return ask_for_split(place)
    except FolderOfDatasetsError as several:
        by_name = {str(found.relative_to(several.path)): found for found in several.found}
        try:
            chosen = choose(
                f"{several.path} holds {len(by_name)} datasets", list(by_name), "", yes=context.yes
            )
        except UsageError:  # not interactive
            raise several from None
        return ask_for_split(by_name[chosen])
    except FormatError:
        own = inspect_own_files(place, source) if asks else None
        if own is None:
            raise
    mapping = ask_for_mapping(context, own, name, file)
    if mapping is None:
        return Result(None, ("nothing was converted",), code=1)
    return ask_for_split(place, replace(options, mapping=mapping))


def _inspection_result(found: "Inspection", out: str | None) -> Result:
    """Return arrays as a table if the mapping goes to a file, else the mapping, with them as comments."""
    questions = [
        {"place": each.place, "why": each.why, "choices": each.choices}
        | ({"places": each.places} if each.places else {})
        for each in found.questions
    ]
    data = {**vars(found), "mapping": found.mapping.to_json(), "questions": questions, "out": out}
    if out is None:
        lines = [[(line, "")] for line in found.toml.removesuffix("\n").split("\n")]
        return Result(data, (Lines(lines, wrap=False),))
    write_user_file(user_path(out, "--out"), found.toml.encode())
    arrays = [
        {**vars(each), "shape": str(list(each.shape)), "looks_like": each.looks_like or None}
        for each in found.arrays
    ]
    columns = "name shape:text dtype least:number most:number looks_like"
    notes = [f"{each.why}: choose a line in {out}" for each in found.questions if not each.several]
    return Result(data, (table(columns, arrays),), (str(out),), notes)


def _convert_plan_result(found: "ingest.ConvertPlan") -> Result:
    data = {("from" if key == "source" else key): value for key, value in vars(found).items()}
    del data["warnings"]
    fields = fields_of(
        found,
        "id format=source layout destination already_exists replaces files:count "
        "size_of_files=bytes:bytes steps=transitions:count episodes:count "
        "free_disk_space=free_bytes:bytes",
        already_exists=EXISTS if found.existing else None,
    )
    return Result({**data, "dry_run": True}, (fields,), (str(found.id),), found.warnings)


def _with_workers(context: Context, workers: int | None) -> Settings:
    return replace(context.settings, workers=workers or context.settings.workers)


def check_plan(plan: Path | None, others: Mapping[str, bool], *, plan_only: bool) -> None:
    """Raise `UsageError` unless `--plan` and `--plan-only` are given together, without others."""
    if plan_only != (plan is not None):
        raise UsageError(
            "--plan-only and --plan FILE must be given together",
            hint="leave both out to run the tasks now",
        )
    for name, is_given in others.items():
        if plan_only and is_given:
            raise UsageError(f"--plan-only and {name} cannot be used together")


def executor_of(
    engine: Engine, address: str | None, workers: int | None, plan: Path | None
) -> "Executor | None":
    """Return the executor, None: chosen automatically; raises `UsageError` for a conflict."""
    if engine is Engine.local:
        if address is not None:
            raise UsageError("--address requires --engine ray", hint="add --engine ray")
        return None
    if plan is not None:
        raise UsageError("--engine ray and --plan-only cannot be used together")
    from offline_data.pipeline.jobs.ray import RayExecutor

    return RayExecutor(address, workers=workers)


def plan_result(
    planned: "ShardPlan | JobPlan",
    parent: str | None = None,
    recipe: Sequence[Any] | None = None,
    functions: Sequence[str] = (),
) -> Result:
    """Return the result of writing a plan for workers."""
    data = {
        "id": planned.id,
        "plan": planned.file,
        "parent": parent,
        "destination": planned.destination,
        "existed": planned.published,
        "recipe": recipe,
        "tasks": planned.tasks,
    }
    data = {key: value for key, value in data.items() if value is not None}
    fields = fields_of(
        data,
        "id plan destination already_exists functions tasks:count",
        already_exists=EXISTS if planned.published else None,
        functions=functions,
    )
    run = f"offline-data worker --plan {shlex.quote(str(planned.file))} --rank I --world N"
    note = f"run this for every I from 0 to N - 1: {run}"
    return Result(data, (fields,), (planned.id,), () if planned.published else (note,))


def stored_result(stored: "ingest.Stored") -> Result:
    """Return the result for a dataset that was written, or already existed."""
    from offline_data.store.manifest import dropped_lines

    manifest = stored.manifest
    data = {name: getattr(stored, name) for name in _STORED}
    data |= {"id": str(stored.id), "seconds": round(stored.seconds, 3)}
    counts = table(
        "id steps=transitions:count episodes:count size=bytes:bytes seconds:number", [data]
    )
    notes = [f"{stored.id} already exists: {stored.path}"] if stored.existed else []
    # what a dataset made of others lacks was said when those were converted
    dropped, skipped = ((), ()) if manifest.parents else (manifest.dropped, manifest.skipped)
    notes += [f"dropped {line}" for line in dropped_lines(dropped)]
    left_out = skipped[:_MOST_NAMED]
    notes += [f"skipped {entry['where']}: {entry['reason']}" for entry in left_out]
    if len(left_out) < len(skipped):
        more = len(skipped) - len(left_out)
        notes.append(f"skipped {more} more; `offline-data info` lists all")
    return Result([data], (counts,), (str(stored.id),), notes)
