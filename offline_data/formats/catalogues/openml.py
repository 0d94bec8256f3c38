"""TorchRL's tables of OpenML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, cast

from offline_data.formats.catalogues import Catalog, CatalogEntry, read_catalog

Encoding: TypeAlias = Literal["raw", "num", "onehot"]
Missing: TypeAlias = Literal["keep", "drop", "category"]

_NUMBERED = re.compile(r"([1-9][0-9]{0,8})(?:/(num|onehot))?")


@dataclass(frozen=True)
class OpenMLTable:
    """A dataset of OpenML and how to encode it."""

    did: str  # OpenML's number, which identifies one version of the dataset
    encoding: Encoding = "raw"
    missing: Missing = "keep"
    target: str = ""  # column to predict; empty: OpenML's default
    name: str = ""  # expected name and version of the number; empty: any
    version: str = ""
    rows: int | None = None
    summary: str = ""


@lru_cache(maxsize=1)
def read_table() -> dict[str, OpenMLTable]:
    """Return TorchRL's tables by name.

    Example:
        >>> read_table()["covertype"].did
        '1596'
    """
    return {
        row["id"]: OpenMLTable(
            row["did"],
            cast("Encoding", row["encoding"]),
            cast("Missing", row["missing"]),
            row["target"],
            row["name"],
            row["version"],
            int(row["rows"]) if row["rows"] else None,
            row["summary"],
        )
        for row in read_catalog("openml")
    }


def find_table(name: str) -> OpenMLTable | None:
    """Return the table of a name: one of TorchRL's, or a number, optionally with an encoding.

    Example:
        >>> find_table("61/num")
        OpenMLTable(did='61', encoding='num', missing='drop', target='', name='', version='', rows=None, summary='')
    """
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return read_table().get(name)
    did, encoding = numbered.groups()
    return OpenMLTable(did, cast("Encoding", encoding), "drop") if encoding else OpenMLTable(did)


class OpenMLCatalog(Catalog):
    """TorchRL's seven tables; any other can be named by its number."""

    name = "openml"
    title = "OpenML: tables for contextual bandits, TorchRL's seven and any other by number"
    citation = (
        "Joaquin Vanschoren, Jan N. van Rijn, Bernd Bischl, Luis Torgo: OpenML: networked science in "
        "machine learning, 2013, SIGKDD Explorations 15(2), 49-60, doi:10.1145/2641190.2641198"
    )
    needs = ("pyarrow",)
    extra = "openml"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                name, one.rows, one.rows, summary=one.summary, notes=describe_encoding(one)
            )
            for name, one in read_table().items()
        ]


def describe_encoding(chosen: OpenMLTable) -> tuple[str, ...]:
    """Return notes on how a table is encoded, for the catalogue and the manifest."""
    step = "A row is an episode of one step: the action is y, its reward is 1"
    notes = [f"{step}, and nothing is observed after it."]
    if chosen.encoding != "raw":
        notes.append(
            "X is standardised"
            + (", with a column for each category" if chosen.encoding == "onehot" else "")
            + f"; openml:{chosen.did} has the values as published."
        )
    if chosen.missing == "drop":
        notes.append("Rows with a missing value are left out.")
    elif chosen.missing == "category":
        notes.append("A missing value is one more category, the last one.")
    return tuple(notes)
