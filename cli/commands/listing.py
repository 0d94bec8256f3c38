"""`list`: datasets on this disk, or in the catalogues of sources."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from offline_data.errors import ManifestError
from offline_data_cli.call import Call
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.errors import OfflineDataError
    from offline_data.reports.catalog import CatalogDataset
    from offline_data.store.library import Entry

_HERE = (
    Column("ID"),
    Column("TRANSITIONS", "count"),
    Column("EPISODES", "count"),
    Column("SIZE", "bytes"),
    Column("LAYOUT"),
)
_REMOTE = (*_HERE[:-1], Column("HERE"), Column("SUMMARY", clip=True))


class Sort(str, Enum):
    """Orders of a list."""

    size = "size"
    name = "name"


def list_(
    call: Call,
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Only this source.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="What sources offer, not what is here.")
    ] = False,
    prefix: Annotated[
        str, typer.Option(metavar="P", help="Only ids or names that begin like this.")
    ] = "",
    sort: Annotated[Sort, typer.Option(help="Largest first, or by id.")] = Sort.name,
) -> Result:
    """List datasets on this disk, or in a source's catalogue."""
    if source is not None:
        _check_source(source)
    if remote:
        return _remote(call, source, prefix, sort)
    return _here(call, source, prefix, sort)


def _check_source(name: str) -> None:
    """Raise what looking a source up raises, but do not mind one that cannot be imported."""
    from offline_data.sources.registry import get_source, source_names

    if name not in source_names():
        get_source(name)


def _here(call: Call, source: str | None, prefix: str, sort: Sort) -> Result:
    from offline_data.store.library import survey

    found, unreadable = survey(call.settings.root)
    entries = [
        entry
        for entry in found
        if source in {None, entry.id.source} and _begins(str(entry.id), prefix)
    ]
    if sort is Sort.size:
        entries.sort(key=lambda entry: -entry.bytes)
    data = [_entry_data(entry) for entry in entries]
    rows = tuple(
        (row["id"], row["transitions"], row["episodes"], row["bytes"], row["layout"])
        for row in data
    )
    empty = f"no dataset here yet in {call.settings.root}; `offline-data search WORDS` finds some"
    notes = [_unreadable(path, error) for path, error in unreadable.items()]
    if not (rows or unreadable or source or prefix):
        notes.append(empty)
    return Result(
        data,
        (Table(_HERE, rows),) if rows else (),
        tuple(str(entry.id) for entry in entries),
        notes=tuple(notes),
    )


def _unreadable(path: "Path", error: "OfflineDataError") -> str:
    """Say which folder is not listed and why: damage is what `verify` looks into."""
    if isinstance(error, ManifestError):
        return f"damaged, not listed: {path}; see `offline-data verify {path}`"
    return f"not listed: {error.message}"


def _entry_data(entry: "Entry") -> dict[str, object]:
    return {
        "id": str(entry.id),
        "path": entry.path,
        "layout": entry.manifest.layout,
        "transitions": entry.manifest.counts["transitions"],
        "episodes": entry.manifest.counts["episodes"],
        "bytes": entry.bytes,
    }


def _remote(call: Call, source: str | None, prefix: str, sort: Sort) -> Result:
    from offline_data.reports.catalog import list_remote

    listing = list_remote(source, call.settings)
    datasets = [dataset for dataset in listing.datasets if _begins(dataset.id, prefix)]
    if sort is Sort.size:
        datasets.sort(key=lambda dataset: -(dataset.bytes or 0))
    return catalog_result(tuple(datasets), listing.notes)


def catalog_result(datasets: "tuple[CatalogDataset, ...]", notes: tuple[str, ...]) -> Result:
    """Lay out datasets of catalogues, for `list --remote` and `search`."""
    rows = tuple(
        (d.id, d.transitions, d.episodes, d.bytes, "yes" if d.here else "", d.summary)
        for d in datasets
    )
    table = (Table(_REMOTE, rows),) if rows else ()
    return Result(datasets, table, tuple(dataset.id for dataset in datasets), notes)


def _begins(text: str, prefix: str) -> bool:
    return text.startswith(prefix) or text.partition(":")[2].startswith(prefix)
