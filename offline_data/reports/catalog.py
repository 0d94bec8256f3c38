"""Datasets that sources offer, whether or not they are on this disk: list, find, search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.errors import NetworkError, NotFoundError
from offline_data.ids import DatasetId, nearest, parse_id
from offline_data.sources.registry import get_source, source_names
from offline_data.store.library import list_datasets

if TYPE_CHECKING:
    from offline_data.config import Settings
    from offline_data.sources.base import CatalogEntry, Source


@dataclass(frozen=True)
class CatalogDataset:
    """One dataset of a source's list."""

    id: str
    """`source:name`."""
    source: str
    name: str
    here: bool
    """Whether some revision of it is on this disk."""
    transitions: int | None
    """None if the list does not have it, as the next two."""
    episodes: int | None
    bytes: int | None
    """Bytes to download."""
    summary: str
    notes: tuple[str, ...]
    licence: str | None = None
    """Of the source's datasets; one that was downloaded may have its own, as the next."""
    citation: str | None = None

    @property
    def command(self) -> str:
        """The command line that brings it here."""
        return f"offline-data download {self.id}"


@dataclass(frozen=True)
class CatalogListing:
    """Datasets of one or more sources."""

    datasets: tuple[CatalogDataset, ...]
    """In order of source, then as the source lists them."""
    notes: tuple[str, ...] = ()
    """A sentence on each source whose packaged catalogue is listed because it did not answer, or
    on a query that nothing matches."""


def list_remote(source: str | None, settings: Settings) -> CatalogListing:
    """List what one source, or every source, offers now.

    A remote is asked unless `settings.offline`; if it does not answer, the packaged catalogue is
    listed, and a note says so. Raises `NotFoundError` for an unknown source, and `NetworkError`
    if there is no such catalogue.
    """
    here = _ids_here(settings)
    datasets: list[CatalogDataset] = []
    notes = []
    for one in map(get_source, source_names() if source is None else [source]):
        entries, why = one.catalog(), "offline,"
        if not settings.offline:
            try:
                entries, why = one.remote(settings), ""
            except NetworkError as error:
                if not entries:
                    raise
                why = f"{error};"
        datasets += [_dataset(one, entry, here) for entry in entries]
        if why and entries:
            notes.append(f"{one.name}: {why} this is the catalogue that comes with the package")
    return CatalogListing(tuple(datasets), tuple(notes))


def find_in_catalog(dataset: DatasetId, settings: Settings) -> CatalogDataset | None:
    """Find one dataset in its source's catalogue, its files on this machine, or its remote.

    The remote is asked only about a name that is not like any known one, and not if
    `settings.offline`; None: nobody knows it.

    Raises:
        NotFoundError: No such source, or names like it are known: the hint has them.
        NetworkError: The remote had to be asked and does not answer.
    """
    source = get_source(dataset.source)
    known = {entry.name: entry for entry in (*source.local(settings), *source.catalog())}
    if dataset.name not in known:
        if near := nearest(dataset.name, known):
            names = " or ".join(f"{source.name}:{name}" for name in near)
            raise NotFoundError(
                f"There is no {dataset} on this disk or in the catalogue of {source.name}",
                hint=f"did you mean {names}? `offline-data list {source.name} --remote` asks the "
                "remote",
            )
        known = {} if settings.offline else {one.name: one for one in source.remote(settings)}
    entry = known.get(dataset.name)
    return None if entry is None else _dataset(source, entry, _ids_here(settings))


def search(query: str, settings: Settings) -> CatalogListing:
    """Search packaged catalogues, and files of sources on this machine; uses no network.

    All words of the query must occur in the id or the summary, in upper or lower case. If they do
    in none, a note names the ids most like the query.
    """
    here = _ids_here(settings)
    known: dict[str, CatalogDataset] = {}
    for source in map(get_source, source_names()):
        for entry in (*source.catalog(), *source.local(settings)):
            dataset = _dataset(source, entry, here)
            known.setdefault(dataset.id, dataset)
    for one in map(parse_id, sorted(here - set(known))):  # converted, but in no catalogue
        known[str(one)] = CatalogDataset(
            str(one), one.source, one.name, True, None, None, None, "", ()
        )
    words = query.casefold().split()
    texts = {text: f"{text} {one.summary}".casefold() for text, one in known.items()}
    found = tuple(one for text, one in known.items() if all(w in texts[text] for w in words))
    if found:
        return CatalogListing(found)
    # people remember names: the query is compared with whole ids, then with these
    names = {text.partition(":")[2]: text for text in known}
    near = nearest(query, known) or [names[name] for name in nearest(query, names)]
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return CatalogListing((), (f"no dataset matches {query!r}{meant}",))


def _ids_here(settings: Settings) -> set[str]:
    entries = list_datasets(settings.root)
    return {str(DatasetId(entry.id.source, entry.id.name)) for entry in entries}


def _dataset(source: Source, entry: CatalogEntry, here: set[str]) -> CatalogDataset:
    name = f"{source.name}:{entry.name}"
    return CatalogDataset(
        name,
        source.name,
        here=name in here,
        licence=source.licence,
        citation=source.citation,
        **vars(entry),
    )
