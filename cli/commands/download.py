"""`download` and `convert`: a dataset from a source, or from a local file or folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.config import user_path
from offline_data.errors import OfflineDataError
from offline_data.ids import DatasetId, parse_id
from offline_data_cli.options import (
    DEFAULT_AUDIT,
    Audit,
    Context,
    DryRun,
    Episodes,
    KeepEpisodes,
    Layout,
    Strict,
    argument,
    option,
    parse_episodes,
)
from offline_data_cli.result import Field, Fields, Result, Table, columns, combine

if TYPE_CHECKING:
    from offline_data import ingest

_FILES = columns("FILE", "ACTION", "BYTES:bytes", "REASON")
_STORED = columns("ID", "TRANSITIONS:count", "EPISODES:count", "SIZE:bytes", "SECONDS:number")


def download(
    context: Context,
    datasets: Annotated[
        list[str], argument("ID", "Dataset ids, as `search` and `list --remote` show.")
    ],
    layout: Layout = None,
    episodes: Episodes = None,
    force: Annotated[bool, option("Download and convert again, replacing the dataset.")] = False,
    raw_only: Annotated[bool, option("Download the raw files without converting them.")] = False,
    keep_raw: Annotated[bool, option("Keep the raw files after conversion.")] = False,
    keep_episodes: KeepEpisodes = False,
    strict: Strict = False,
    audit: Audit = DEFAULT_AUDIT,
    dry_run: DryRun = False,
) -> Result:
    """Download and convert datasets. Datasets already on this disk are left alone."""
    from offline_data import ingest

    flags = {"force": force, "keep_raw": keep_raw, "keep_episodes": keep_episodes, "strict": strict}
    options = _options(layout, episodes, audit, **flags)

    def handle(dataset: DatasetId) -> Result:
        settings, progress = context.settings, context.progress
        if dry_run:
            return _plan_result(ingest.plan_download(dataset, settings, options))
        if not raw_only:
            return stored_result(ingest.download(dataset, settings, options, progress))
        folder = ingest.fetch_raw(dataset, settings, options, progress)
        fields = Fields(Field("id", str(dataset)), Field("raw files", folder))
        return Result([{"id": str(dataset), "raw": folder}], (fields,), (str(dataset),))

    ids = [parse_id(text) for text in datasets]
    if len(ids) == 1:
        return handle(ids[0])
    results = []
    for dataset in ids:
        try:
            results.append(handle(dataset))
        except OfflineDataError as error:  # the others go ahead
            failed = {"code": error.code, "message": error.message, "hint": error.hint}
            data = [{"id": str(dataset), "error": failed}]
            results.append(Result(data, (), failures=(error,)))
    code = 1 if any(result.failures for result in results) else 0
    return combine([item for result in results for item in result.data], results, code)


def _plan_result(plan: "ingest.DownloadPlan") -> Result:
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
        "dry_run": True,
    }
    fields = Fields(
        Field("id", data["id"]),
        Field("destination", plan.destination),
        Field("already exists", plan.existing),
        Field("to download", data["bytes"], "bytes"),
        Field("free disk space", plan.free_bytes, "bytes"),
    )
    table = (Table(_FILES, [tuple(file.values()) for file in files]),) if files else ()
    return Result([data], (fields, *table), (data["id"],))


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
    force: Annotated[bool, option("Replace local:NAME if it exists.")] = False,
    keep_episodes: KeepEpisodes = False,
    strict: Strict = False,
    audit: Audit = DEFAULT_AUDIT,
) -> Result:
    """Convert a local file or folder to a dataset. The source is never changed."""
    from offline_data import ingest

    flags = {"force": force, "keep_episodes": keep_episodes, "strict": strict}
    options = _options(layout, episodes, audit, **flags)
    place, settings = user_path(path, "PATH"), context.settings
    stored = ingest.convert(place, name, settings, options, context.progress, source=source)
    return stored_result(stored)


def _options(layout: Layout, episodes: Episodes, audit: Audit, **flags: bool) -> "ingest.Options":
    """Read the options that both commands take; `flags` are those of `ingest.Options`."""
    from offline_data import ingest
    from offline_data.store.layout import parse_audit

    return ingest.Options(
        layout=layout.value if layout else None,
        episodes=parse_episodes(episodes),
        audit=parse_audit(audit),
        **flags,
    )


def stored_result(stored: "ingest.Stored") -> Result:
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
    row = [data[name] for name in ("id", "transitions", "episodes", "bytes", "seconds")]
    notes = [f"{stored.id} already exists: {stored.path}"] if stored.existed else []
    notes += [f"dropped {leaf['key']}: {leaf['reason']}" for leaf in manifest.dropped]
    return Result([data], (Table(_STORED, [row]),), (str(stored.id),), notes)
