"""The table of sources: names, where each lives, and what to install; imported on use."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from offline_data.errors import MissingDependencyError, NotFoundError
from offline_data.ids import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offline_data.sources.base import Source

ENTRY_POINT_GROUP = "offline_data.sources"
"""Other people's adapters: an entry point of this group, named like the source."""

_BUILT_IN = {
    "d4rl": "offline_data.sources.d4rl:D4RL",
    "local": "offline_data.sources.local:Local",
    "minari": "offline_data.sources.minari:Minari",
}


def source_names() -> list[str]:
    """Return the names of all sources, sorted, without importing any."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def get_source(name: str) -> Source:
    """Import and build the source called `name`.

    Raises:
        NotFoundError: No such source; the hint offers the nearest names.
        MissingDependencyError: Its module needs a package that is not installed.

    Example:
        >>> get_source("d4rl").name
        'd4rl'
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast("Source", getattr(importlib.import_module(module), attribute)())
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _load(point.name, point.load)
    near = nearest(name, source_names())
    raise NotFoundError(
        f"No source is called {name!r}; there are {', '.join(source_names())}",
        hint=f"did you mean {near[0]!r}?" if near else "`offline-data sources` lists them",
    )


def _load(name: str, load: object) -> Source:
    try:
        return cast("Source", load()())  # type: ignore[operator]
    except ImportError as error:
        raise MissingDependencyError(f"Source {name!r} cannot be imported: {error}") from error


def iter_sources() -> Iterator[Source]:
    """Build every source, in order of name."""
    for name in source_names():
        yield get_source(name)


def source_accepting(path: Path) -> Source:
    """Return the only source whose format `path` looks like.

    Raises:
        NotFoundError: None or several; the hint says to name one with `--from`.
    """
    found = [source for source in iter_sources() if source.accepts(path)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(source.name for source in found) or "none"
    raise NotFoundError(
        f"Sources whose format {path} looks like: {names}; expected exactly one",
        hint=f"name it: --from {' | '.join(source_names())}",
    )
