"""Lists of datasets, and those on this disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, overload

from offline_data.base.errors import ManifestError
from offline_data.base.pickles import pickled_by_name
from offline_data.store.library import Entry, survey

T = TypeVar("T")


@pickled_by_name
@dataclass(frozen=True)
class Listing(Sequence[T], Generic[T]):
    """Datasets, as a sequence, with notes on the list.

    Example:
        >>> found = Listing(("a", "b"), ("c is damaged",))
        >>> len(found), found[0], list(found)
        (2, 'a', ['a', 'b'])
    """

    datasets: tuple[T, ...]
    notes: tuple[str, ...] = ()
    """Sentences: on a dataset that is omitted because it is damaged, on a source that did not
    answer, on a query that nothing matches."""

    def __len__(self) -> int:
        """Return the number of datasets."""
        return len(self.datasets)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        """Return one dataset, or a tuple of several."""
        return self.datasets[place]


@pickled_by_name
@dataclass(frozen=True)
class LocalDataset:
    """One dataset on this disk."""

    id: str
    """Its id, revision included."""
    path: Path
    """Its directory."""
    layout: str
    transitions: int
    episodes: int
    bytes: int
    """Of all its files but the manifest."""

    @staticmethod
    def of(entry: Entry) -> LocalDataset:
        """Describe a dataset directory."""
        counts = entry.manifest.counts
        figures = (int(counts["transitions"]), int(counts["episodes"]), entry.bytes)
        return LocalDataset(str(entry.id), entry.path, entry.manifest.layout, *figures)


def list_local(root: Path, source: str | None = None) -> Listing[LocalDataset]:
    """List the datasets under a root, or those of one source, by id; notes name unreadable ones."""
    found, unreadable = survey(root)
    notes = [
        f"damaged, not listed: {path}; see `offline-data check --files {path}`"
        if isinstance(error, ManifestError)
        else f"not listed: {error.message}"
        for path, error in unreadable.items()
    ]
    chosen = (entry for entry in found if source in {None, entry.id.source})
    return Listing(tuple(map(LocalDataset.of, chosen)), tuple(notes))
