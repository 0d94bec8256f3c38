"""Minari: datasets of Gymnasium environments, local or at a remote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from offline_data.config import Settings
from offline_data.errors import FormatError, NotFoundError
from offline_data.files import is_file, is_folder
from offline_data.ids import parse_id
from offline_data.readers.hdf5 import check_hdf5
from offline_data.sources.agilerl import AgileRL
from offline_data.sources.base import ActionKind, CatalogEntry, Release, Source
from offline_data.sources.catalogs import read_catalog
from offline_data.sources.fingerprint import fingerprint
from offline_data.sources.minari.arrow import ArrowStorage
from offline_data.sources.minari.dataset import MinariDataset
from offline_data.sources.minari.hdf5 import Hdf5Storage
from offline_data.sources.minari.leaves import EpisodeStorage
from offline_data.sources.minari.metadata import CITATION, read_metadata
from offline_data.sources.minari.remote import find_release, list_remote

METADATA = "metadata.json"
MAIN_FILE = "main_data.hdf5"

_ACTIONS: dict[str, ActionKind] = {
    "Box": "continuous",
    "Discrete": "discrete",
    "MultiDiscrete": "discrete",
    "MultiBinary": "discrete",
}
"""Kind of actions of a space, by its class in the catalogue."""

_DEPTH = 8  # maximum depth of namespaces


class Minari(Source):
    """Datasets recorded with Minari, in all its storages and versions.

    A name without a remote is looked up in `settings.minari_path`, then at
    `settings.minari_remote`; `hf://account/…` and `gcp://bucket/…` only there.

    Example:
        >>> [entry.episodes for entry in Minari().catalog() if entry.name == "D4RL/door/human-v2"]
        [25]
    """

    name = "minari"
    title = "Minari: datasets recorded in Gymnasium environments"
    citation = CITATION
    needs = ("pyarrow", "PIL")
    extra = "minari"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                name=row["id"],
                transitions=int(row["steps"]),
                episodes=int(row["episodes"]),
                summary=" → ".join(filter(None, (row["observation"], row["action"]))),
                notes=(row["notes"],) if row["notes"] else (),
                action=_ACTIONS.get(row["action"].partition("(")[0]),
            )
            for row in read_catalog(self.name)
        ]

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the current datasets of `settings.minari_remote`; counts are those of the catalogue."""
        known = {entry.name: entry for entry in self.catalog()}
        return [known.get(name, CatalogEntry(name)) for name in list_remote(settings)]

    def local(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the datasets in `settings.minari_path`, without opening them."""
        root = settings.minari_path
        if root is None:
            return []
        known = {entry.name: entry for entry in self.catalog()}
        entries = []
        for folder in _folders_with_data(root, _DEPTH):
            main_file = folder / "data" / MAIN_FILE
            if _find_main_file(folder) == main_file:
                name = folder.relative_to(root).as_posix()
                size = main_file.stat().st_size if main_file.is_file() else None
                entries.append(replace(known.get(name, CatalogEntry(name)), bytes=size))
        return entries

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Return a dataset on this machine if it is there at that revision, else at its remote."""
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
        """Return True if `path` is the folder of a dataset, its `data` folder, or its HDF5 file.

        AgileRL puts a file of its own format at the place of Minari's, without metadata.
        """
        file = _find_main_file(path)
        if file is None or is_file(file.with_name(METADATA)):
            return file is not None
        return not AgileRL().accepts(file)

    def release_of(self, path: Path, name: str) -> Release:
        """Describe such a folder or file; its revision is a fingerprint of the files."""
        _need_main_file(path)
        files = (p for p in path.rglob("*") if is_file(p)) if is_folder(path) else (path,)
        return Release(name, fingerprint(path, files), local=path)

    def open(self, release: Release, raw: Path) -> MinariDataset:
        """Open it: reads the metadata, but no data yet."""
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
        return MinariDataset(info, storage, declared)


def _find_main_file(path: Path) -> Path | None:
    """Return the HDF5 file of a dataset, which other storages lack, if `path` is one.

    `path` is its folder, its `data` folder, or that file.
    """
    if is_file(path):
        return path if path.name == MAIN_FILE else None
    for folder in (path / "data", path):
        tables = is_file(folder / METADATA) and (folder.name == "data" or is_folder(folder / "0"))
        if is_file(folder / MAIN_FILE) or tables:
            return folder / MAIN_FILE
    return None


def _need_main_file(path: Path) -> Path:
    if found := _find_main_file(path):
        return found
    if is_file(path) and path.suffix in {".hdf5", ".h5"}:
        return path
    if not (is_file(path) or is_folder(path)):
        raise NotFoundError(f"There is no Minari dataset at {path}: nothing is there")
    raise FormatError(
        f"{path} is not a Minari dataset: expected data/{METADATA} or data/{MAIN_FILE} in it",
        hint="name the folder that contains `data`, or the HDF5 file",
    )


def _folders_with_data(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders with a folder `data`, in order, skipping inaccessible ones."""
    try:
        children = sorted(child for child in folder.iterdir() if is_folder(child))
    except OSError:
        return
    for child in children:
        leads_back = child.is_symlink() and folder.resolve().is_relative_to(child.resolve())
        if is_folder(child / "data"):
            yield child
        elif depth and not child.name.startswith(".") and not leads_back:
            yield from _folders_with_data(child, depth - 1)
