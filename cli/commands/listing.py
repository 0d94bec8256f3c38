"""`list`, `search`, `sources` and `env`: datasets, sources, and this installation."""

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.errors import ManifestError, UsageError
from offline_data_cli import complete
from offline_data_cli.options import Context, argument, count, option
from offline_data_cli.result import Field, Fields, Result, Table, TableColumn, columns

if TYPE_CHECKING:
    from offline_data.reports.catalog import CatalogDataset

_LOCAL = columns("ID", "TRANSITIONS:count", "EPISODES:count", "SIZE:bytes", "LAYOUT")
_REMOTE = (*_LOCAL[:-1], TableColumn("LOCAL"), TableColumn("SUMMARY", clip=True))
_SOURCES = columns("SOURCE", "DATASETS:count", "REQUIRES", "CONTENT")
_SETTINGS = columns("SETTING", "VALUE", "FROM")


class Sort(str, Enum):
    """Orders of a list."""

    size = "size"
    name = "name"


class Action(str, Enum):
    """Kinds of actions."""

    continuous = "continuous"
    discrete = "discrete"


_bytes = partial(option, metavar="SIZE")


def list_(
    context: Context,
    source: Annotated[
        str | None,
        argument("SOURCE", "Only datasets of this source.", autocompletion=complete.sources),
    ] = None,
    remote: Annotated[bool, option("List the datasets that sources offer.")] = False,
    prefix: Annotated[str, option("Only ids or names that start with P.", metavar="P")] = "",
    sort: Annotated[Sort, option("Sort by size (largest first) or by id.")] = Sort.name,
) -> Result:
    """List the datasets on this disk or, with --remote, those that sources offer."""
    if source is not None:
        from offline_data.sources.registry import get_source, source_names

        # only checks the name; the adapter's imports may be missing
        if source not in source_names():
            get_source(source)
    if not remote:
        return _local(context, source, prefix, sort)
    from offline_data.reports.catalog import list_remote

    listing = list_remote(source, context.settings)
    datasets = [dataset for dataset in listing.datasets if _matches(dataset.id, prefix)]
    if sort is Sort.size:
        datasets.sort(key=lambda dataset: -(dataset.bytes or 0))
    return _catalog_result(datasets, listing.notes)


def _local(context: Context, source: str | None, prefix: str, sort: Sort) -> Result:
    from offline_data.store.library import survey

    root = context.settings.root
    found, unreadable = survey(root)
    entries = [e for e in found if source in {None, e.id.source} and _matches(str(e.id), prefix)]
    if sort is Sort.size:
        entries.sort(key=lambda entry: -entry.bytes)
    data: list[dict[str, Any]] = [
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
    shown = ("id", "transitions", "episodes", "bytes", "layout")
    rows = [[one[name] for name in shown] for one in data]
    notes = [
        f"damaged, not listed: {path}; see `offline-data verify {path}`"
        if isinstance(error, ManifestError)
        else f"not listed: {error.message}"
        for path, error in unreadable.items()
    ]
    if not (rows or unreadable or source or prefix):
        notes.append(f"no datasets in {root} yet; find some with `offline-data search WORDS`")
    return Result(data, [Table(_LOCAL, rows)] if rows else [], [row[0] for row in rows], notes)


def _matches(text: str, prefix: str) -> bool:
    return text.startswith(prefix) or text.partition(":")[2].startswith(prefix)


def search(
    context: Context,
    query: Annotated[
        list[str] | None,
        argument("QUERY", "Words, all of which must match; or globs for ids: '*door*'."),
    ] = None,
    limit: Annotated[int | None, count("Show at most N datasets.")] = None,
    min_size: Annotated[str | None, _bytes("Only downloads of at least SIZE, as in 500MB.")] = None,
    max_size: Annotated[str | None, _bytes("Only downloads of at most SIZE.")] = None,
    min_episodes: Annotated[int | None, count("Only datasets of at least N episodes.")] = None,
    max_episodes: Annotated[int | None, count("Only datasets of at most N episodes.")] = None,
    action: Annotated[Action | None, option("Only datasets with such actions.")] = None,
) -> Result:
    """Search the catalogues of all sources. Works offline."""
    from offline_data.files import parse_bytes
    from offline_data.reports import catalog

    bounds = catalog.Bounds(
        None if min_size is None else parse_bytes(min_size, "--min-size"),
        None if max_size is None else parse_bytes(max_size, "--max-size"),
        min_episodes,
        max_episodes,
        action.value if action else None,
    )
    if not query and bounds == catalog.ALL and limit is None:
        raise UsageError(
            "Missing QUERY, words to search for", hint="offline-data search door human"
        )
    found = catalog.search(" ".join(query or []), context.settings, bounds, limit)
    return _catalog_result(found.datasets, found.notes)


def _catalog_result(datasets: "Sequence[CatalogDataset]", notes: Sequence[str]) -> Result:
    rows = [
        (d.id, d.transitions, d.episodes, d.bytes, "yes" if d.here else "", d.summary)
        for d in datasets
    ]
    return Result(datasets, [Table(_REMOTE, rows)] if rows else [], [d.id for d in datasets], notes)


def sources(context: Context) -> Result:  # noqa: ARG001 - every command takes a context
    """List dataset sources and the packages they require."""
    from offline_data.reports.environment import source_reports

    reports = source_reports()
    rows = []
    for report in reports:
        requires = [
            f"{need} ({'missing' if need in report.missing else 'installed'})"
            for need in report.needs
        ]
        content = ", ".join(requires) or "nothing"
        rows.append((report.name, report.datasets, content, report.title))
    notes = [f"{r.name}: {r.install}" for r in reports if r.install]
    return Result(reports, (Table(_SOURCES, rows),), [r.name for r in reports], notes)


def env(context: Context) -> Result:
    """Show versions, settings and paths for a bug report. Secrets are left out."""
    from offline_data.reports.environment import environment

    found = environment(context.settings)
    place, origins = found.settings["config_place"], found.settings["origins"]
    system = Fields(
        Field("offline-data", found.version or "not installed"),
        Field("python", found.python),
        Field("platform", found.platform),
        Field("compiled gather", "yes" if found.compiled_gather else "no (sampling is slower)"),
        Field("free disk space", found.free_bytes, "bytes"),
        Field("config file", str(found.settings["config"] or f"none ({place} does not exist)")),
    )
    settings = [
        (name, item, origins.get(item if name == "mirrors" else name, "default"))
        for name, value in found.settings.items()
        if name not in {"config", "config_place", "origins"}
        for item in (value if isinstance(value, list) else [value])
        if item is not None
    ]
    packages = [Field(name, version or "not installed") for name, version in found.packages.items()]
    table = Table(_SETTINGS, settings, "settings")
    return Result(found, (system, table, Fields(*packages, title="packages")))
