"""The fact sheet of Minari: where its datasets lie, how their files are opened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.errors import NotFoundError
from offline_data.heads import check_magic
from offline_data.ids import parse_id
from offline_data.readers.hdf5 import MAGIC
from offline_data.sources.base import CatalogEntry, Release
from offline_data.sources.catalogs import read_catalog
from offline_data.sources.minari.arrow import ArrowStorage
from offline_data.sources.minari.dataset import MinariDataset
from offline_data.sources.minari.folder import (
    DataFolder,
    datasets_below,
    find_data,
    need_data,
    revision_of,
)
from offline_data.sources.minari.hdf5 import Hdf5Storage
from offline_data.sources.minari.metadata import Metadata, read_metadata, source_info
from offline_data.sources.minari.remote import find_release, list_remote, parse_remote
from offline_data.sources.minari.spaces import space_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.sources.base import RawDataset
    from offline_data.sources.minari.leaves import Storage
    from offline_data.sources.minari.spaces import DeclaredLeaf


class Minari:
    """Datasets recorded with Minari, in all of its storages and versions.

    A name without a remote is looked for below `settings.minari_path`, then at
    `settings.minari_remote`; `hf://account/…` and `gcp://bucket/…` are looked for only there.

    Example:
        >>> [entry.episodes for entry in Minari().catalog() if entry.name == "D4RL/door/human-v2"]
        [25]
    """

    name = "minari"
    title = "Minari: datasets recorded in Gymnasium environments"
    needs: tuple[str, ...] = ("pyarrow", "PIL")
    extra: str | None = "minari"

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the published datasets."""
        return [_entry(row) for row in read_catalog(self.name)]

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List what `settings.minari_remote` has now; counts are those of the catalogue."""
        remote = parse_remote(settings.minari_remote)
        known = {entry.name: entry for entry in self.catalog()}
        names = list_remote(remote, settings)
        return [known.get(name, CatalogEntry(name)) for name in names]

    def local(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the datasets below `settings.minari_path`, without opening them."""
        root = settings.minari_path
        if root is None:
            return []
        known = {entry.name: entry for entry in self.catalog()}
        found = datasets_below(root)
        return [
            replace(known.get(name, CatalogEntry(name)), bytes=_size(data)) for name, data in found
        ]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Find a dataset: on this machine if it is there at that revision, else at its remote."""
        parse_id(f"{self.name}:{name}")
        local = self._local_release(name, settings)
        if local is not None and revision in {None, local.revision}:
            return local
        if revision is not None and revision.startswith("local-"):
            found = f"they are at {local.revision}" if local else "there are none"
            raise NotFoundError(
                f"The local files of {name!r} are not at {revision}: {found}",
                hint=f"leave out @{revision}",
            )
        return find_release(name, revision, settings, [entry.name for entry in self.catalog()])

    def _local_release(self, name: str, settings: Settings) -> Release | None:
        if "://" in name or settings.minari_path is None:
            return None
        path = settings.minari_path / name
        return self.release_of(path, name) if self.accepts(path) else None

    def accepts(self, path: Path) -> bool:
        """Return True if `path` is the folder of a dataset, its `data` folder, or its HDF5 file."""
        return find_data(path) is not None

    def release_of(self, path: Path, name: str) -> Release:
        """Describe such a folder or file; its revision is a fingerprint of the files."""
        need_data(path)
        return Release(name, revision_of(path), local=path)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open it; the metadata are read, the data not yet."""
        data = need_data(raw)
        metadata = read_metadata(data)
        notes = next((e.notes for e in self.catalog() if e.name == release.name), ())
        declared = _declared(metadata)
        info = source_info(metadata, release.name, notes)
        return MinariDataset(info, _storage(data, metadata, declared), declared)


def _entry(row: dict[str, str]) -> CatalogEntry:
    spaces = " → ".join(filter(None, (row["observation"], row["action"])))
    return CatalogEntry(
        name=row["id"],
        transitions=int(row["steps"]),
        episodes=int(row["episodes"]),
        summary=spaces,
        notes=(row["notes"],) if row["notes"] else (),
    )


def _size(data: DataFolder) -> int | None:
    return data.main_file.stat().st_size if data.main_file.is_file() else None


def _declared(metadata: Metadata) -> dict[str, dict[tuple[str, ...], DeclaredLeaf]]:
    """Return what the spaces declare, by section; nothing where the recorder flattened it."""
    spaces = {
        "observations": (metadata.observation_space, "flatten_observation"),
        "actions": (metadata.action_space, "flatten_action"),
    }
    return {
        section: {}
        if metadata.flag(flattened)
        else space_leaves(space, f"{section} of {metadata.where}")
        for section, (space, flattened) in spaces.items()
    }


def _storage(
    data: DataFolder,
    metadata: Metadata,
    declared: Mapping[str, Mapping[tuple[str, ...], DeclaredLeaf]],
) -> Storage:
    if metadata.data_format == "hdf5":
        check_magic(data.main_file, MAGIC, "an HDF5 file")
        return Hdf5Storage(data.main_file)
    shapes = {
        (section, *names): leaf.shape
        for section, leaves in declared.items()
        for names, leaf in leaves.items()
        if leaf.shape is not None
    }
    return ArrowStorage(data.path, shapes)
