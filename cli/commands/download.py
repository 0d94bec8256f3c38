"""`download` and `convert`: a dataset from a source, or from a local file or folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from offline_data.config import user_path
from offline_data.errors import OfflineDataError
from offline_data.ids import DatasetId, parse_id
from offline_data_cli.context import Context
from offline_data_cli.options import (
    DEFAULT_AUDIT,
    Audit,
    DryRun,
    Episodes,
    KeepEpisodes,
    Layout,
    Strict,
    argument,
    option,
    parse_episodes,
)
from offline_data_cli.result import Block, Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data import ingest

Work: TypeAlias = "Callable[[DatasetId, Context, ingest.Options], Result]"
"""Handles one id; the data of its result are a list of one object."""

_FILES = (Column("FILE"), Column("ACTION"), Column("BYTES", "bytes"), Column("REASON"))
_STORED = (
    Column("ID"),
    Column("TRANSITIONS", "count"),
    Column("EPISODES", "count"),
    Column("SIZE", "bytes"),
    Column("SECONDS", "number"),
)


def download(
    context: Context,
    datasets: Annotated[
        list[str], argument("ID", "Dataset ids, as `search` and `list --remote` show.")
    ],
    layout: Layout = None,
    episodes: Episodes = None,
    force: Annotated[
        bool, option("Download and convert again, replacing the dataset.", "--force")
    ] = False,
    raw_only: Annotated[
        bool, option("Download the raw files without converting them.", "--raw-only")
    ] = False,
    keep_raw: Annotated[bool, option("Keep the raw files after conversion.", "--keep-raw")] = False,
    keep_episodes: KeepEpisodes = False,
    strict: Strict = False,
    audit: Audit = DEFAULT_AUDIT,
    dry_run: DryRun = False,
) -> Result:
    """Download and convert datasets. Datasets already on this disk are left alone."""
    flags = {"force": force, "keep_raw": keep_raw, "keep_episodes": keep_episodes}
    options = _options(layout, episodes, audit, strict=strict, **flags)
    work = _plan if dry_run else _fetch_raw if raw_only else _download
    ids = [parse_id(text) for text in datasets]
    if len(ids) == 1:
        return work(ids[0], context, options)
    results = [_attempt(dataset, context, options, work) for dataset in ids]
    failures = tuple(error for result in results for error in result.failures)
    return Result(
        data=[item for result in results for item in result.data],
        blocks=_joined([block for result in results for block in result.blocks]),
        ids=tuple(text for result in results for text in result.ids),
        notes=tuple(note for result in results for note in result.notes),
        failures=failures,
        code=1 if failures else 0,
    )


def _attempt(dataset: DatasetId, context: Context, options: "ingest.Options", work: Work) -> Result:
    """Handle one id of several; a failure is part of its result, so that the others go ahead."""
    try:
        return work(dataset, context, options)
    except OfflineDataError as error:
        failed = {"code": error.code, "message": error.message, "hint": error.hint}
        return Result([{"id": str(dataset), "error": failed}], (), failures=(error,))


def _joined(blocks: list[Block]) -> tuple[Block, ...]:
    """Join consecutive tables that have the same columns."""
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if isinstance(block, Table) and isinstance(last, Table) and block.columns == last.columns:
            joined[-1] = Table(last.columns, last.rows + block.rows)
        else:
            joined.append(block)
    return tuple(joined)


def _download(dataset: DatasetId, context: Context, options: "ingest.Options") -> Result:
    from offline_data import ingest

    return stored_result(ingest.download(dataset, context.settings, options, context.progress))


def _fetch_raw(dataset: DatasetId, context: Context, options: "ingest.Options") -> Result:
    from offline_data import ingest

    folder = ingest.fetch_raw(dataset, context.settings, options, context.progress)
    fields = Fields((Field("id", str(dataset)), Field("raw files", folder)))
    return Result([{"id": str(dataset), "raw": folder}], (fields,), (str(dataset),))


def _plan(dataset: DatasetId, context: Context, options: "ingest.Options") -> Result:
    from offline_data import ingest

    plan = ingest.plan_download(dataset, context.settings, options)
    files = [
        {"file": step.file.path, "action": step.action, "bytes": step.wanted, "reason": step.reason}
        for step in (plan.fetch.steps if plan.fetch else ())
    ]
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
            Field("already exists", plan.existing),
            Field("to download", data["bytes"], "bytes"),
            Field("free disk space", plan.free_bytes, "bytes"),
        )
    )
    table = Table(_FILES, tuple(tuple(file.values()) for file in files))
    return Result([data], (fields, table) if files else (fields,), (str(plan.id),))


def convert(
    context: Context,
    path: Annotated[Path, argument("PATH", "Minari folder, HDF5 file or dataset directory.")],
    name: Annotated[str, argument("NAME", "Name of the dataset; its id is local:NAME.")],
    source: Annotated[
        str | None,
        option(
            "Format of PATH: minari, d4rl or local. (default: detected)", "--from", metavar="SOURCE"
        ),
    ] = None,
    layout: Layout = None,
    episodes: Episodes = None,
    force: Annotated[bool, option("Replace local:NAME if it exists.", "--force")] = False,
    keep_episodes: KeepEpisodes = False,
    strict: Strict = False,
    audit: Audit = DEFAULT_AUDIT,
) -> Result:
    """Convert a local file or folder to a dataset. The source is never changed."""
    from offline_data import ingest

    options = _options(
        layout, episodes, audit, strict=strict, force=force, keep_episodes=keep_episodes
    )
    place, settings = user_path(path, "PATH"), context.settings
    stored = ingest.convert(place, name, settings, options, context.progress, source=source)
    return stored_result(stored)


def _options(layout: Layout, episodes: Episodes, audit: Audit, **flags: bool) -> "ingest.Options":
    """Read the options that both commands take; `flags` are those of `ingest.Options`."""
    from offline_data import ingest
    from offline_data.store.audit import parse_audit

    return ingest.Options(
        layout=layout.value if layout else None,
        episodes=parse_episodes(episodes),
        audit=parse_audit(audit),
        **flags,
    )


def stored_result(stored: "ingest.Result") -> Result:
    """Lay out a dataset that was written, or that was on this disk already."""
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
    notes = [f"{stored.id} already exists: {stored.path}"] if stored.existed else []
    notes += [f"dropped {leaf['key']}: {leaf['reason']}" for leaf in manifest.dropped]
    return Result([data], (Table(_STORED, (row,)),), (str(stored.id),), notes=tuple(notes))
