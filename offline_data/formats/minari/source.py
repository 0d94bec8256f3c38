"""Minari: datasets of Gymnasium environments, local or at a remote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import is_file, is_folder
from offline_data.base.ids import parse_id
from offline_data.formats.base import CatalogEntry, Release, Source
from offline_data.formats.catalogues.minari import (
    MAIN_FILE,
    METADATA,
    MinariCatalog,
    find_main_file,
)
from offline_data.formats.d4rl.agilerl import AgileRL
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.minari.arrow import ArrowStorage
from offline_data.formats.minari.dataset import MinariDataset
from offline_data.formats.minari.hdf5 import Hdf5Storage
from offline_data.formats.minari.leaves import EpisodeStorage
from offline_data.formats.minari.metadata import read_metadata
from offline_data.formats.minari.remote import find_release, list_remote
from offline_data.raw.hdf5 import check_hdf5


class Minari(MinariCatalog, Source):
    """Datasets recorded with Minari, in all its storages and versions.

    A name without a remote is looked up in `settings.minari_path`, then at
    `settings.minari_remote`; `hf://account/…` and `gcp://bucket/…` only there.

    Example:
        >>> [entry.episodes for entry in Minari().catalog() if entry.name == "D4RL/door/human-v2"]
        [25]
    """

    takes = ("skip_bad_features",)

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the current datasets of `settings.minari_remote`; counts are those of the catalogue."""
        known = {entry.name: entry for entry in self.catalog()}
        return [known.get(name, CatalogEntry(name)) for name in list_remote(settings)]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        parse_id(f"{self.name}:{name}")
        local = None
        if "://" not in name and settings.minari_path is not None:
            path = settings.minari_path / name
            local = self.release_of(path, name) if self.accepts(path) else None
        if local is not None and revision in {None, local.revision}:
            return local
        if revision is not None and revision.startswith("local-"):
            found = f"they are at {local.revision}" if local else "there are none"
            raise NotFoundError(
                f"The local files of {name!r} are not at {revision}: {found}",
                hint=f"leave out @{revision}",
            )
        return find_release(name, revision, settings, [entry.name for entry in self.catalog()])

    def accepts(self, path: Path) -> bool:
        """Return True for the folder of a dataset, its `data` folder, or its HDF5 file."""
        # AgileRL puts a file of its own format at the place of Minari's, without metadata.
        file = find_main_file(path)
        if file is None or is_file(file.with_name(METADATA)):
            return file is not None
        return not AgileRL().accepts(file)

    def release_of(self, path: Path, name: str) -> Release:
        _need_main_file(path)
        files = (p for p in path.rglob("*") if is_file(p)) if is_folder(path) else (path,)
        return Release(name, fingerprint(path, files), local=path)

    def open(self, release: Release, raw: Path) -> MinariDataset:
        main_file = _need_main_file(raw)
        metadata = read_metadata(main_file.with_name(METADATA), main_file)
        known = {entry.name: entry for entry in self.catalog()}
        name = release.name
        if release.local is not None and metadata.published_as in known:
            name = str(metadata.published_as)  # converted under another name
        declared = metadata.declared_leaves()
        info = metadata.info(name, known[name].notes if name in known else ())
        storage: EpisodeStorage
        if metadata.data_format == "hdf5":
            check_hdf5(main_file)
            storage = Hdf5Storage(main_file)
        else:
            storage = ArrowStorage(main_file.parent, declared)
        return MinariDataset(
            info, storage, declared, skip_features=release.options.skip_bad_features
        )


def _need_main_file(path: Path) -> Path:
    if found := find_main_file(path):
        return found
    if is_file(path) and path.suffix in {".hdf5", ".h5"}:
        return path
    if not (is_file(path) or is_folder(path)):
        raise NotFoundError(f"There is no Minari dataset at {path}: nothing is there")
    raise FormatError(
        f"{path} is not a Minari dataset: expected data/{METADATA} or data/{MAIN_FILE} in it",
        hint="name the folder that contains `data`, or the HDF5 file",
    )
