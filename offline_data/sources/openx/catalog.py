"""The Open X-Embodiment datasets: location, size and known problems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from offline_data.fetch import gcs
from offline_data.sources.base import CatalogEntry
from offline_data.sources.catalogs import read_catalog

BUCKETS = ("gresearch/robotics", "gdm-robotics-open-x-embodiment")
"""Buckets and folders of the public copies, which have the same files."""

BRIDGE_HOST = "https://rail.eecs.berkeley.edu/datasets/bridge_release/data/tfds"
"""The authors' host of `bridge_dataset`, which cannot be listed."""

LICENCE = "CC-BY-4.0"
CITATION = (
    "Open X-Embodiment Collaboration. Open X-Embodiment: Robotic Learning Datasets and RT-X Models. "
    "arXiv:2310.08864, 2023. Cite the dataset's own authors, too."
)

ALIASES = {
    "aloha_mobile_dataset": "aloha_mobile",
    "bridge_orig": "bridge_dataset",
    "bridge_oxe": "bridge",
    "fmb_dataset": "fmb",
    "roboset": "robo_set",
}
"""Names in other loaders of datasets that are listed under another name."""

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
    version: str
    """Version at its public location; empty if there is none."""
    splits: tuple[tuple[str, int], ...]
    """Name and number of episodes of each split, if known."""
    bytes: int | None
    subject: str
    notes: tuple[str, ...]

    @property
    def entry(self) -> CatalogEntry:
        """The entry of `Source.catalog`."""
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


def places_of(name: str, version: str) -> tuple[str, ...]:
    """Return the folders that may have a version of a dataset, best first, as URLs without `/`."""
    if name == "bridge_dataset":
        return (f"{BRIDGE_HOST}/{name}/{version}",)
    return tuple(f"{gcs.HOST}/{bucket}/{name}/{version}" for bucket in BUCKETS)
