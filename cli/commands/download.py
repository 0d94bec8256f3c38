"""`download`: fetch and convert datasets."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from offline_data.errors import OfflineDataError
from offline_data.ids import DatasetId, parse_id
from offline_data_cli.call import Call
from offline_data_cli.options import (
    DEFAULT_AUDIT,
    Audit,
    DryRun,
    Episodes,
    KeepEpisodes,
    Layout,
    Strict,
    parse_episodes,
)
from offline_data_cli.result import Block, Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data import ingest
    from offline_data.fetch.plan import FileStep

Work: TypeAlias = "Callable[[DatasetId, Call, ingest.Options], Result]"
"""What is done for one id; its data is a list of one object."""

_FILES = (Column("FILE"), Column("ACTION"), Column("BYTES", "bytes"), Column("WHY"))
_DONE = (
    Column("ID"),
    Column("TRANSITIONS", "count"),
    Column("EPISODES", "count"),
    Column("SIZE", "bytes"),
    Column("SECONDS", "number"),
)


def download(
    call: Call,
    datasets: Annotated[
        list[str], typer.Argument(metavar="ID", help="Dataset ids: `search` finds them.")
    ],
    layout: Layout = None,
    episodes: Episodes = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch and convert again what is here.")
    ] = False,
    raw_only: Annotated[
        bool, typer.Option("--raw-only", help="Fetch the raw files, convert nothing.")
    ] = False,
    keep_raw: Annotated[
        bool, typer.Option("--keep-raw", help="Keep the raw files after conversion.")
    ] = False,
    keep_episodes: KeepEpisodes = False,
    strict: Strict = False,
    audit: Audit = DEFAULT_AUDIT,
    dry_run: DryRun = False,
) -> Result:
    """Fetch and convert datasets; what is here is used as it is."""
    from offline_data import ingest
    from offline_data.store.audit import parse_audit

    options = ingest.Options(
        layout=layout.value if layout else None,
        episodes=parse_episodes(episodes),
        strict=strict,
        audit=parse_audit(audit),
        keep_raw=keep_raw,
        force=force,
        keep_episodes=keep_episodes,
    )
    work = _plan if dry_run else _fetch_raw if raw_only else _download
    return _each(datasets, call, options, work)


def _each(texts: list[str], call: Call, options: "ingest.Options", work: Work) -> Result:
    """Do the same for every id; one that fails does not keep the others from being done."""
    ids = [parse_id(text) for text in texts]
    if len(ids) == 1:
        return work(ids[0], call, options)
    results = [_attempt(dataset, call, options, work) for dataset in ids]
    failures = tuple(error for result in results for error in result.failures)
    return Result(
        data=[item for result in results for item in result.data],
        blocks=_joined([block for result in results for block in result.blocks]),
        ids=tuple(text for result in results for text in result.ids),
        notes=tuple(note for result in results for note in result.notes),
        failures=failures,
        code=1 if failures else 0,
    )


def _attempt(dataset: DatasetId, call: Call, options: "ingest.Options", work: Work) -> Result:
    try:
        return work(dataset, call, options)
    except OfflineDataError as error:
        failed = {"code": error.code, "message": error.message, "hint": error.hint}
        return Result([{"id": str(dataset), "error": failed}], (), failures=(error,))


def _joined(blocks: list[Block]) -> tuple[Block, ...]:
    """Put the rows of tables that are alike into one table."""
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if isinstance(block, Table) and isinstance(last, Table) and block.columns == last.columns:
            joined[-1] = Table(last.columns, last.rows + block.rows)
        else:
            joined.append(block)
    return tuple(joined)


def _download(dataset: DatasetId, call: Call, options: "ingest.Options") -> Result:
    from offline_data import ingest

    return stored_result(ingest.download(dataset, call.settings, options, call.progress))


def stored_result(stored: "ingest.Result") -> Result:
    """Lay out a dataset that is on this disk now, for `download` and `convert`."""
    manifest = stored.manifest
    data = {
        "id": str(stored.id),
        "path": stored.path,
        "layout": manifest.layout,
        "transitions": manifest.counts["transitions"],
        "episodes": manifest.counts["episodes"],
        "bytes": manifest.bytes,
        "existed": stored.existed,
        "seconds": round(stored.seconds, 3),
    }
    row = (data["id"], data["transitions"], data["episodes"], data["bytes"], data["seconds"])
    return Result([data], (Table(_DONE, (row,)),), (str(stored.id),), notes=_notes(stored))


def _notes(stored: "ingest.Result") -> tuple[str, ...]:
    dropped = [f"dropped {leaf['key']}: {leaf['reason']}" for leaf in stored.manifest.dropped]
    here = [f"{stored.id} was here already: {stored.path}"] if stored.existed else []
    return (*here, *dropped)


def _fetch_raw(dataset: DatasetId, call: Call, options: "ingest.Options") -> Result:
    from offline_data import ingest

    folder = ingest.fetch_raw(dataset, call.settings, options, call.progress)
    fields = Fields((Field("id", str(dataset)), Field("raw files", folder)))
    return Result([{"id": str(dataset), "raw": folder}], (fields,), (str(dataset),))


def _plan(dataset: DatasetId, call: Call, options: "ingest.Options") -> Result:
    from offline_data import ingest

    plan = ingest.plan_download(dataset, call.settings, options)
    steps = plan.fetch.steps if plan.fetch else ()
    files = [_step_data(step) for step in steps]
    data = {
        "id": str(plan.id),
        "destination": plan.destination,
        "existing": plan.existing,
        "files": files,
        "bytes": plan.fetch.wanted if plan.fetch else 0,
        "free_bytes": plan.free_bytes,
        "dry_run": True,
    }
    fields = Fields(
        (
            Field("id", str(plan.id)),
            Field("destination", plan.destination),
            Field("here already", plan.existing),
            Field("to fetch", data["bytes"], "bytes"),
            Field("free", plan.free_bytes, "bytes"),
        )
    )
    table = Table(_FILES, tuple(tuple(file.values()) for file in files))
    return Result([data], (fields, table) if files else (fields,), (str(plan.id),))


def _step_data(step: "FileStep") -> dict[str, object]:
    return {
        "file": step.file.path,
        "action": step.action,
        "bytes": step.wanted,
        "reason": step.reason,
    }
