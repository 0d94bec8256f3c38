"""`list` and `search`: datasets on this disk and in the catalogues of sources."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from offline_data.errors import ManifestError
from offline_data_cli.context import Context
from offline_data_cli.options import argument, option
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from offline_data.reports.catalog import CatalogDataset

_LOCAL = (
    Column("ID"),
    Column("TRANSITIONS", "count"),
    Column("EPISODES", "count"),
    Column("SIZE", "bytes"),
    Column("LAYOUT"),
)
_REMOTE = (*_LOCAL[:-1], Column("LOCAL"), Column("SUMMARY", clip=True))


class Sort(str, Enum):
    """Orders of a list."""

    size = "size"
    name = "name"


def list_(
    context: Context,
    source: Annotated[str | None, argument("SOURCE", "Only datasets of this source.")] = None,
    remote: Annotated[bool, option("List the datasets that sources offer.", "--remote")] = False,
    prefix: Annotated[str, option("Only ids or names that start with P.", metavar="P")] = "",
    sort: Annotated[Sort, option("Sort by size (largest first) or by id.")] = Sort.name,
) -> Result:
    """List the datasets on this disk or, with --remote, those that sources offer."""
    if source is not None:
        from offline_data.sources.registry import get_source, source_names

        # one that is known is enough: its adapter need not import here
        if source not in source_names():
            get_source(source)
    if not remote:
        return _local(context, source, prefix, sort)
    from offline_data.reports.catalog import list_remote

    listing = list_remote(source, context.settings)
    datasets = [dataset for dataset in listing.datasets if _matches(dataset.id, prefix)]
    if sort is Sort.size:
        datasets.sort(key=lambda dataset: -(dataset.bytes or 0))
    return catalog_result(tuple(datasets), listing.notes)


def _local(context: Context, source: str | None, prefix: str, sort: Sort) -> Result:
    from offline_data.store.library import survey

    found, unreadable = survey(context.settings.root)
    entries = [e for e in found if source in {None, e.id.source} and _matches(str(e.id), prefix)]
    if sort is Sort.size:
        entries.sort(key=lambda entry: -entry.bytes)
    data = [
        {
            "id": str(entry.id),
            "path": entry.path,
            "layout": entry.manifest.layout,
            "transitions": entry.manifest.counts["transitions"],
            "episodes": entry.manifest.counts["episodes"],
            "bytes": entry.bytes,
        }
        for entry in entries
    ]
    rows = tuple(
        (row["id"], row["transitions"], row["episodes"], row["bytes"], row["layout"])
        for row in data
    )
    notes = [
        f"damaged, not listed: {path}; see `offline-data verify {path}`"
        if isinstance(error, ManifestError)
        else f"not listed: {error.message}"
        for path, error in unreadable.items()
    ]
    if not (rows or unreadable or source or prefix):
        root = context.settings.root
        notes.append(f"no datasets in {root} yet; find some with `offline-data search WORDS`")
    table = (Table(_LOCAL, rows),) if rows else ()
    return Result(data, table, tuple(str(entry.id) for entry in entries), tuple(notes))


def _matches(text: str, prefix: str) -> bool:
    return text.startswith(prefix) or text.partition(":")[2].startswith(prefix)


def search(
    context: Context,
    query: Annotated[list[str], argument("QUERY", "Words, all of which must match.")],
) -> Result:
    """Search the catalogues of all sources. Works offline."""
    from offline_data.reports import catalog

    words = " ".join(query)
    matches = catalog.search(words, context.settings)
    near = f"; did you mean {' or '.join(matches.near)}?" if matches.near else ""
    notes = () if matches.datasets else (f"no dataset matches {words!r}{near}",)
    return catalog_result(matches.datasets, notes)


def catalog_result(datasets: "tuple[CatalogDataset, ...]", notes: tuple[str, ...]) -> Result:
    """Lay out datasets of catalogues, for `list --remote` and `search`."""
    rows = tuple(
        (d.id, d.transitions, d.episodes, d.bytes, "yes" if d.here else "", d.summary)
        for d in datasets
    )
    table = (Table(_REMOTE, rows),) if rows else ()
    return Result(datasets, table, tuple(dataset.id for dataset in datasets), notes)
