"""The Open X-Embodiment datasets: version, size and known problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from offline_data.formats.catalogues import Catalog, CatalogEntry, read_catalog

NOTES = {
    "bridge-host": "It is on its authors' host, and in no bucket.",
    "bridge-old": "The bucket's copy is older than that of its authors: openx:bridge_dataset.",
    "codes": "The instruction is the codes of its UTF-8 bytes, padded with 0 to 512.",
    "failures": "It has failed episodes, too: `success` in its metadata tells.",
    "flipped": "The channels of its images are BGR.",
    "flipped-wrist": "The channels of its wrist images are BGR.",
}
"""Known problems, by code in the catalogue's column `notes`."""


@dataclass(frozen=True)
class PublishedDataset:
    """One dataset of the catalogue."""

    name: str
    version: str  # at its public location; empty if there is none
    splits: tuple[tuple[str, int], ...]  # name and number of episodes of each, if known
    bytes: int | None
    subject: str
    notes: tuple[str, ...]

    @property
    def entry(self) -> CatalogEntry:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits)
        return CatalogEntry(
            self.name,
            episodes=sum(count for _, count in self.splits) or None,
            bytes=self.bytes,
            summary=self.subject + (f" ({splits})" if len(self.splits) > 1 else ""),
            notes=self.notes,
        )


@lru_cache(maxsize=1)
def read_table() -> dict[str, PublishedDataset]:
    """Return all datasets by name, including those without a public location.

    Example:
        >>> read_table()["viola"].version, read_table()["viola"].splits
        ('0.1.0', (('train', 135), ('test', 15)))
    """
    found = {}
    for row in read_catalog("openx"):
        splits = (one.partition("=") for one in row["splits"].split())
        found[row["id"]] = PublishedDataset(
            row["id"],
            row["version"],
            tuple((name, int(count)) for name, _, count in splits),
            int(row["bytes"]) if row["bytes"] else None,
            row["subject"],
            tuple(NOTES[code] for code in row["notes"].split()),
        )
    return found


class OpenXCatalog(Catalog):
    """The datasets with a public location."""

    name = "openx"
    title = "Open X-Embodiment: robots of many kinds, and any RLDS dataset (TFRecord)"
    licence = "CC-BY-4.0"
    citation = (
        "Open X-Embodiment Collaboration. Open X-Embodiment: Robotic Learning Datasets and RT-X Models. "
        "arXiv:2310.08864, 2023. Cite the dataset's own authors, too."
    )
    action = "continuous"
    needs = ("PIL",)
    extra = "openx"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [dataset.entry for dataset in read_table().values() if dataset.version]
