"""Datasets that sources offer, on this disk or not: list, find, search."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar

from offline_data.base.config import Settings
from offline_data.base.errors import NetworkError, NotFoundError, UsageError
from offline_data.base.ids import DatasetId, did_you_mean, parse_id
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.document.blocks import Block, fields_of
from offline_data.document.html import Document
from offline_data.formats.catalogues import Catalog, CatalogEntry
from offline_data.formats.registry import get_catalog, get_source, iter_catalogs, source_names
from offline_data.store.library import Listing, list_local

_VERSION = re.compile(r"(.*?)(?:[-_]?v(\d+))?")  # base of a name, number of its version
_SIMILAR = 0.75  # `difflib` similarity from which on an unknown word is replaced by a known one


@pickled_by_name
@dataclass(frozen=True, repr=False)
class CatalogDataset(Document):
    """One dataset in a source's catalogue."""

    COLUMNS: ClassVar[str] = (
        "id steps=transitions:count episodes:count size=bytes:bytes local summary:clip:keep"
    )
    id: str  # `source:name`
    source: str
    name: str
    here: bool  # whether any revision of it is on this disk
    transitions: int | None  # None if the catalogue lacks it, like the next two
    episodes: int | None
    bytes: int | None  # to download
    summary: str
    notes: tuple[str, ...]
    licence: str | None = None
    """Licence of the source's datasets; a downloaded one may have its own, like the next."""
    citation: str | None = None
    action: str | None = None  # `continuous` or `discrete`; None if unknown

    @property
    def local(self) -> str:
        """Whether any revision of it is on this disk, `yes` or nothing."""
        return "yes" if self.here else ""

    @property
    def command(self) -> str:
        return f"offline-data download {self.id}"

    def blocks(self) -> list[Block]:
        """Return what its catalogue says."""
        spec = (
            "id on_this_disk summary steps=transitions:count episodes:count download=bytes:bytes licence "
            "citation notes command"
        )
        return [fields_of(self, spec, on_this_disk="another revision" if self.here else "no")]


def list_remote(source: str | None, settings: Settings) -> Listing[CatalogDataset]:
    """List the datasets that one source, or every source, offers now.

    Remotes are queried unless `settings.offline`; if one does not answer, the packaged catalogue is
    listed with a note. Raises `NotFoundError` for an unknown source, and `NetworkError` if there is
    no packaged catalogue.
    """
    here = ids_here(settings)
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
        datasets += [_dataset(one.name, one, entry, here) for entry in entries]
        if why and entries:
            notes.append(f"{one.name}: {why} this is the catalogue that comes with the package")
    return Listing(tuple(datasets), tuple(notes))


def find_in_catalog(dataset: DatasetId, settings: Settings) -> CatalogDataset | None:
    """Find a dataset in its source's catalogue, its local files, or its remote.

    The remote is only queried for a name that is not similar to any known one, and not if
    `settings.offline`; None: not found.

    Raises:
        NotFoundError: No such source, or similar names are known: the hint has them.
        NetworkError: The remote had to be queried and does not answer.
    """
    source = get_catalog(dataset.source)
    known = {entry.name: entry for entry in (*source.local(settings), *source.catalog())}
    if dataset.name not in known:
        if near := did_you_mean(dataset.name, known, count=3, shown=f"{source.name}:{{}}".format):
            raise NotFoundError(
                f"There is no {dataset} on this disk or in the catalogue of {source.name}",
                hint=f"{near} `offline-data list {source.name} --remote` asks the remote",
            )
        remote = () if settings.offline else get_source(dataset.source).remote(settings)
        known = {one.name: one for one in remote}
    entry = known.get(dataset.name)
    return _dataset(source.name, source, entry, ids_here(settings)) if entry else None


@dataclass(frozen=True)
class Bounds:
    """Limits of a search; a dataset whose value is unknown does not satisfy a limit."""

    min_bytes: int | None = None  # to download; limits are inclusive
    max_bytes: int | None = None
    min_episodes: int | None = None
    max_episodes: int | None = None
    action: str | None = None  # `continuous` or `discrete`

    def admit(self, one: CatalogDataset) -> bool | None:
        """Return whether a dataset satisfies all limits; None if unknown."""
        limits = (
            (one.bytes, self.min_bytes, self.max_bytes),
            (one.episodes, self.min_episodes, self.max_episodes),
        )
        asked = [(value, low, high) for value, low, high in limits if (low, high) != (None, None)]
        if self.action not in {None, one.action or self.action} or any(
            value is not None
            and not ((low is None or low <= value) and (high is None or value <= high))
            for value, low, high in asked
        ):
            return False
        unknown = any(value is None for value, _, _ in asked)
        return None if unknown or (self.action and one.action is None) else True


ALL = Bounds()  # no limits


def search(
    query: str, settings: Settings, bounds: Bounds = ALL, limit: int | None = None
) -> Listing[CatalogDataset]:
    """Search packaged catalogues and local files of sources, without the network.

    All words of the query must occur in the id or the summary, case-insensitively; a word with
    `*`, `?` or `[…]` is a glob that the id, or its name, must match. If no dataset matches, words
    that occur nowhere are replaced by the most similar ones, with a note. Names that begin with a
    word come first, then those with a part (after `/`) that does; new versions before old ones.
    An empty query matches all. `limit` is the maximum number of results; a note reports the total.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UsageError(f"limit is {limit!r}; expected a whole number of at least 1")
    if bounds.action not in {None, "continuous", "discrete"}:
        raise UsageError(f"action is {bounds.action!r}; expected 'continuous' or 'discrete'")
    known = known_datasets(settings)
    texts = {text: f"{text} {entry.summary}".casefold() for text, (_, entry) in known.items()}
    words = query.casefold().split()
    ids, notes = _matching(words, texts)
    if not ids:
        # compare the query with whole ids, then with names only
        names = {text.partition(":")[2]: text for text in known}
        near = did_you_mean(query, known, count=3) or did_you_mean(
            query, names, count=3, shown=names.__getitem__
        )
        return Listing((), ("; ".join(filter(None, (f"no dataset matches {query!r}", near))),))
    ids = sorted(ids, key=lambda text: _rank(text, words))
    here = ids_here(settings)
    hits = [_dataset(text.partition(":")[0], *known[text], here) for text in ids]
    passing = [bounds.admit(one) for one in hits]
    found = [one for one, passed in zip(hits, passing, strict=True) if passed]
    if unknown := passing.count(None):
        notes.append(
            f"omitted, because the catalogue lacks the figure: {plural(unknown, 'dataset')}"
        )
    if not found:
        notes.append(
            f"{plural(len(ids), 'dataset matches', 'datasets match')} the words, none of them the "
            "limits"
        )
    if limit is not None and len(found) > limit:
        notes.append(
            f"the first {limit:,} of {plural(len(found), 'dataset')}; a higher limit shows more"
        )
    return Listing(tuple(found[:limit]), tuple(notes))


def _rank(text: str, words: list[str]) -> tuple[int, str, str, int]:
    """Return the sort key of an id found by some words; see `search`."""
    source, _, name = text.casefold().partition(":")
    where = 2
    if any(name.startswith(word) for word in words):
        where = 0
    elif any(f"/{word}" in name for word in words):
        where = 1
    base, version = _VERSION.fullmatch(name).groups()  # type: ignore[union-attr] # matches any text
    return where, source, base, -int(version or 0)


def known_datasets(settings: Settings) -> dict[str, tuple[Catalog | None, CatalogEntry]]:
    """Return all datasets known without the network, by id: catalogues, local sources, converted.

    The catalogue is None for a dataset on this disk that is in none.
    """
    known: dict[str, tuple[Catalog | None, CatalogEntry]] = {}
    for catalog in iter_catalogs():
        for entry in (*catalog.catalog(), *catalog.local(settings)):
            known.setdefault(f"{catalog.name}:{entry.name}", (catalog, entry))
    for one in list_local(settings.root):
        name = parse_id(one.id).name
        entry = CatalogEntry(name, one.transitions, one.episodes, one.bytes)
        known.setdefault(_without_revision(one.id), (None, entry))
    return known


def _matching(words: list[str], texts: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the ids that match all words, and a note for each replaced word."""

    def having(readings: list[list[str]]) -> list[str]:
        return [
            text
            for text, described in texts.items()
            if all(any(_has(text, described, word) for word in some) for some in readings)
        ]

    if found := having([[word] for word in words]):
        return found, []
    vocabulary = {token for text in texts.values() for token in re.findall(r"[a-z0-9]+", text)}
    readings, notes = [], []
    for word in words:
        if any(_has(text, described, word) for text, described in texts.items()):
            readings.append([word])
            continue
        near = difflib.get_close_matches(word, vocabulary, n=3, cutoff=_SIMILAR)
        readings.append(near)
        if near:
            notes.append(f"nothing has {word!r}; showing {' and '.join(map(repr, near))}")
    found = having(readings)
    return found, notes if found else []


def _has(text: str, described: str, word: str) -> bool:
    if not set(word).isdisjoint("*?["):
        folded = text.casefold()
        return fnmatchcase(folded, word) or fnmatchcase(folded.partition(":")[2], word)
    return word in described


def ids_here(settings: Settings) -> set[str]:
    """Return the ids of the datasets on this disk, without revisions."""
    return {_without_revision(one.id) for one in list_local(settings.root)}


def _without_revision(text: str) -> str:
    return str(replace(parse_id(text), revision=None))


def _dataset(
    source: str, catalog: Catalog | None, entry: CatalogEntry, here: set[str]
) -> CatalogDataset:
    name = f"{source}:{entry.name}"
    facts = {**vars(entry), "action": entry.action or (catalog and catalog.action)}
    if catalog is not None:
        facts |= {"licence": catalog.licence, "citation": catalog.citation}
    return CatalogDataset(id=name, source=source, here=name in here, **facts)
