"""`list`, `search`, `sources` and `env`: datasets, sources, and this installation."""

from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.errors import UsageError
from offline_data.document.blocks import Field, Fields, fields_of, table
from offline_data_cli import complete
from offline_data_cli.options import Context, argument, count, option
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.formats.search import CatalogDataset
    from offline_data.reports.environment import SourceReport
    from offline_data.store.library import Listing


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
    remote: Annotated[bool, option("List the datasets of all sources, or of SOURCE.")] = False,
    prefix: Annotated[
        str, option("Only ids or names that start with PREFIX.", metavar="PREFIX")
    ] = "",
    sort: Annotated[Sort, option("Sort by size (largest first) or by id.")] = Sort.name,
) -> Result:
    """List datasets on this disk; with --remote, those of all sources."""
    from offline_data import api

    settings = context.settings
    order: api.arguments.Sort = "size" if sort is Sort.size else "name"
    if remote:
        return _catalog_result(
            api.list_datasets(source, remote=True, prefix=prefix, sort=order, settings=settings)
        )
    found = api.list_datasets(source, prefix=prefix, sort=order, settings=settings)
    notes = list(found.notes)
    if not (found or notes or source or prefix):
        notes = [f"no datasets in {settings.root} yet; find some with `offline-data search WORDS`"]
    return Result(found.datasets, replace(found, notes=()).blocks(), [d.id for d in found], notes)


def search(
    context: Context,
    query: Annotated[
        list[str] | None,
        argument("QUERY", "Words, all of which must match; or patterns of ids: '*door*'."),
    ] = None,
    limit: Annotated[int | None, count("Show at most N datasets.")] = None,
    min_size: Annotated[str | None, _bytes("Only downloads of at least SIZE (500MB).")] = None,
    max_size: Annotated[str | None, _bytes("Only downloads of at most SIZE.")] = None,
    min_episodes: Annotated[int | None, count("Only datasets of at least N episodes.")] = None,
    max_episodes: Annotated[int | None, count("Only datasets of at most N episodes.")] = None,
    action: Annotated[Action | None, option("Only datasets with actions of this kind.")] = None,
) -> Result:
    """Search the catalogues of all sources; works offline.

    Exits with 3 if nothing matches.
    """
    from offline_data import api
    from offline_data.base.files import parse_bytes

    bounds: dict[str, Any] = {
        "limit": limit,
        "min_bytes": None if min_size is None else parse_bytes(min_size, "--min-size"),
        "max_bytes": None if max_size is None else parse_bytes(max_size, "--max-size"),
        "min_episodes": min_episodes,
        "max_episodes": max_episodes,
        "action": action.value if action else None,
    }
    if not query and all(bound is None for bound in bounds.values()):
        raise UsageError(
            "Missing QUERY, words to search for", hint="offline-data search door human"
        )
    found = api.search(" ".join(query or []), settings=context.settings, **bounds)
    return _catalog_result(found, 0 if found.datasets else 3)


def _catalog_result(found: "Listing[CatalogDataset]", code: int = 0) -> Result:
    return Result(
        found.datasets, replace(found, notes=()).blocks(), [d.id for d in found], found.notes, code
    )


def sources(context: Context) -> Result:  # noqa: ARG001 - every command takes a context
    """List dataset sources and the packages they require."""
    from offline_data.reports.environment import source_reports

    reports = source_reports()

    def list_needs(report: "SourceReport") -> str:
        missing = report.missing
        needs = [f"{n} ({'missing' if n in missing else 'installed'})" for n in report.needs]
        return ", ".join(needs) or "nothing"

    spec = "source=name datasets:count requires content=title"
    notes = [f"{r.name}: {r.install}" for r in reports if r.install]
    listed = table(spec, reports, requires=list_needs)
    return Result(reports, (listed,), [r.name for r in reports], notes)


def env(context: Context) -> Result:
    """Show versions, settings, sources and paths, for bug reports.

    Passwords and tokens are not shown.
    """
    from offline_data.reports.environment import environment

    found = environment(context.settings)
    place, origins = found.settings["config_place"], found.settings["origins"]
    system = fields_of(
        found,
        "offline-data=version python platform compiled_gather free_disk_space=free_bytes:bytes "
        "config_file",
        version=found.version or "not installed",
        compiled_gather="yes" if found.compiled_gather else "no (sampling is slower)",
        config_file=str(found.settings["config"] or f"none ({place} does not exist)"),
    )
    settings = [
        (name, item, origins.get(item if name == "mirrors" else name, "default"))
        for name, value in found.settings.items()
        if name not in {"config", "config_place", "origins", "transfer"}
        for item in (value if isinstance(value, list) else [value])
        if item is not None
    ]
    packages = [Field(name, version or "not installed") for name, version in found.packages.items()]
    offered = sources(context)
    blocks = (
        system,
        table("setting value from", settings, "settings"),
        Fields(*packages, title="packages"),
        *offered.blocks,
    )
    return Result({**asdict(found), "sources": offered.data}, blocks, notes=offered.notes)
