"""Datasets that sources offer, whether or not they are on this disk: list, find, search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.errors import NetworkError, NotFoundError
from offline_data.ids import DatasetId, nearest, parse_id
from offline_data.sources.registry import get_source, source_names
from offline_data.store.library import list_datasets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from offline_data.config import Settings
    from offline_data.sources.base import CatalogEntry, Source


@dataclass(frozen=True)
class CatalogDataset:
    """One dataset of a source's list."""

    id: str
    """`source:name`."""
    source: str
    """Name of the source."""
    name: str
    """The source's own name."""
    here: bool
    """Whether some revision of it is on this disk."""
    transitions: int | None
    """None if the list does not have it."""
    episodes: int | None
    """None if the list does not have it."""
    bytes: int | None
    """Bytes to download; None if the list does not have them."""
    summary: str
    """Half a line for people."""
    notes: tuple[str, ...]
    """Known quirks."""

    @property
    def command(self) -> str:
        """The command line that brings it here."""
        return f"offline-data download {self.id}"


@dataclass(frozen=True)
class CatalogListing:
    """Datasets of one or more sources, and what kept the list from being newer."""

    datasets: tuple[CatalogDataset, ...]
    """In order of source, then as the source lists them."""
    notes: tuple[str, ...] = ()
    """Sources that did not answer and whose packaged catalogue stands in, a sentence each."""


@dataclass(frozen=True)
class Matches:
    """The result of a search."""

    datasets: tuple[CatalogDataset, ...]
    """Datasets with every word in their id or summary."""
    near: tuple[str, ...]
    """Ids most like the query, where nothing matches."""


def list_remote(source: str | None, settings: Settings) -> CatalogListing:
    """List what one source, or every source, offers now.

    A remote is asked unless `settings.offline`; where it does not answer, the catalogue that the
    package carries stands in, and a note says so.

    Raises:
        NotFoundError: No such source.
        NetworkError: The remote does not answer and the package carries no catalogue of it.
    """
    names = source_names() if source is None else [source]
    listings = [_listing(get_source(name), settings) for name in names]
    return CatalogListing(
        tuple(dataset for listing in listings for dataset in listing.datasets),
        tuple(note for listing in listings for note in listing.notes),
    )


def find_in_catalog(dataset: DatasetId, settings: Settings) -> CatalogDataset | None:
    """Find one dataset in its source's catalogue, its files on this machine, or its remote.

    The remote is asked only about a name that is not like any known one, and not where
    `settings.offline`; None where nobody knows it.

    Raises:
        NotFoundError: No such source, or names like it are known: the hint has them.
        NetworkError: The remote had to be asked and does not answer.
    """
    source = get_source(dataset.source)
    here = _ids_here(settings)
    at_hand = (*source.catalog(), *source.local(settings))
    near = nearest(dataset.name, [entry.name for entry in at_hand if entry.name != dataset.name])
    for entry in at_hand:
        if entry.name == dataset.name:
            return _dataset(source, entry, here)
    if near:
        names = " or ".join(f"{source.name}:{name}" for name in near)
        raise NotFoundError(
            f"There is no {dataset} on this disk or in the catalogue of {source.name}",
            hint=f"did you mean {names}? `offline-data list {source.name} --remote` asks the remote",
        )
    entries = () if settings.offline else source.remote(settings)
    found = (entry for entry in entries if entry.name == dataset.name)
    return next((_dataset(source, entry, here) for entry in found), None)


def search(query: str, settings: Settings) -> Matches:
    """Search the catalogues the package carries, and files of sources on this machine.

    No network is used. Words are separated by blanks, upper and lower case are the same, and all
    must occur in the id or the summary.
    """
    words = query.casefold().split()
    known = _known(settings)
    found = tuple(dataset for dataset in known if _matches(dataset, words))
    near = () if found else _near(query, [dataset.id for dataset in known])
    return Matches(found, tuple(near))


def _listing(source: Source, settings: Settings) -> CatalogListing:
    here = _ids_here(settings)
    if settings.offline:
        note = f"{source.name}: offline, this is the catalogue that comes with the package"
        listed = _datasets(source, source.catalog(), here)
        return CatalogListing(listed, (note,) if listed else ())
    try:
        return CatalogListing(_datasets(source, source.remote(settings), here))
    except NetworkError as error:
        if not source.catalog():
            raise
        note = f"{source.name}: {error}; this is the catalogue that comes with the package"
        return CatalogListing(_datasets(source, source.catalog(), here), (note,))


def _known(settings: Settings) -> tuple[CatalogDataset, ...]:
    """Every dataset known without a network, once, converted ones included."""
    here = _ids_here(settings)
    known: dict[str, CatalogDataset] = {}
    for source in map(get_source, source_names()):
        entries = (*source.catalog(), *source.local(settings))
        for dataset in _datasets(source, entries, here):
            known.setdefault(dataset.id, dataset)
    for text in sorted(here - set(known)):
        known[text] = _converted(parse_id(text))
    return tuple(known.values())


def _ids_here(settings: Settings) -> set[str]:
    entries = list_datasets(settings.root)
    return {str(DatasetId(entry.id.source, entry.id.name)) for entry in entries}


def _datasets(
    source: Source, entries: Iterable[CatalogEntry], here: set[str]
) -> tuple[CatalogDataset, ...]:
    return tuple(_dataset(source, entry, here) for entry in entries)


def _dataset(source: Source, entry: CatalogEntry, here: set[str]) -> CatalogDataset:
    name = f"{source.name}:{entry.name}"
    return CatalogDataset(
        id=name,
        source=source.name,
        name=entry.name,
        here=name in here,
        transitions=entry.transitions,
        episodes=entry.episodes,
        bytes=entry.bytes,
        summary=entry.summary,
        notes=entry.notes,
    )


def _converted(dataset: DatasetId) -> CatalogDataset:
    """Describe a dataset that is on this disk but in no catalogue."""
    return CatalogDataset(
        str(dataset), dataset.source, dataset.name, True, None, None, None, "", ()
    )


def _matches(dataset: CatalogDataset, words: Sequence[str]) -> bool:
    text = f"{dataset.id} {dataset.summary}".casefold()
    return all(word in text for word in words)


def _near(query: str, ids: Sequence[str]) -> Sequence[str]:
    """Compare the query with whole ids and with their names, which people remember."""
    by_name = {text.partition(":")[2]: text for text in ids}
    return nearest(query, ids) or [by_name[name] for name in nearest(query, by_name)]
