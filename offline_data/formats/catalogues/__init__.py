"""Catalogues: the published datasets of each source, known without a network and without its adapter.

Most are tab-separated tables with a header line, `<name of the source>.tsv`. These modules import neither
numpy nor readers, so that a search starts fast.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import ClassVar, Literal, TypeAlias

from offline_data.base.config import Settings

ActionKind: TypeAlias = Literal["continuous", "discrete"]


@dataclass(frozen=True)
class CatalogEntry:
    """One dataset of a source's list, known without any network."""

    name: str
    """The source's own name (`D4RL/door/human-v2`)."""
    transitions: int | None = None
    """Number of transitions, if published."""
    episodes: int | None = None
    """Number of episodes, if published."""
    bytes: int | None = None
    """Bytes to download, if published."""
    summary: str = ""
    """Half a line for people: environment, spaces, kind of policy."""
    notes: tuple[str, ...] = ()
    """Known quirks of this dataset, a sentence each."""
    action: ActionKind | None = None
    """Kind of its actions where the list tells; None: that of the source."""


class Catalog(ABC):
    """The list of a source's datasets, and the facts that they share. Instances have no state."""

    name: str
    """The word before the colon of an id."""
    title: str
    """Title of at most half a line."""
    needs: tuple[str, ...] = ()
    """Import names of optional packages that some of its datasets need."""
    action: ActionKind | None = None
    """Kind of the actions of all its datasets; None: it differs, or is not known."""
    extra: str | None = None
    """Extra of this package that installs them: `pip install 'offline-data[extra]'`."""
    licence: str | None = None
    """Licence of all its datasets, if they share one that is known (`SourceInfo.licence`)."""
    citation: str | None = None
    """Citation for its datasets, unless they have their own."""

    @abstractmethod
    def catalog(self) -> Sequence[CatalogEntry]:
        """List the datasets known without a network, in the source's order."""

    def local(self, settings: Settings) -> Sequence[CatalogEntry]:  # noqa: ARG002
        """List datasets in the source's own format on this machine; default: none."""
        return ()


class TableCatalog(Catalog):
    """The datasets of the table `<name>.tsv`."""

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        return read_rows(self.name)


class FoldersCatalog(TableCatalog):
    """Such datasets that are folders of one repository."""

    notes: ClassVar[Mapping[str, str]]
    """Sentences for the codes in the table's column `notes`."""

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                name,
                summary=row["summary"],
                notes=tuple(self.notes[code] for code in row["notes"].split()),
            )
            for name, row in self.rows.items()
        ]


def read_catalog(name: str) -> list[dict[str, str]]:
    """Read the table of a source, a dict per line; `#` starts a comment, an empty cell is "".

    Example:
        >>> read_catalog("minari")[0]["id"]
        'D4RL/antmaze/large-diverse-v1'
    """
    text = files(__package__).joinpath(f"{name}.tsv").read_text("utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))


@lru_cache
def read_rows(name: str) -> dict[str, dict[str, str]]:
    """Read the table of a source, once: its rows by their `id`."""
    return {row["id"]: row for row in read_catalog(name)}
