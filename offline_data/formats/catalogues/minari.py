"""The published datasets of Minari, and those in its folder on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.files import is_file, is_folder
from offline_data.formats.catalogues import ActionKind, Catalog, CatalogEntry, read_catalog

METADATA = "metadata.json"
MAIN_FILE = "main_data.hdf5"

_ACTIONS: dict[str, ActionKind] = {  # of a space, by its class in the catalogue
    "Box": "continuous",
    "Discrete": "discrete",
    "MultiDiscrete": "discrete",
    "MultiBinary": "discrete",
}

_DEPTH = 8  # maximum depth of namespaces


class MinariCatalog(Catalog):
    """The datasets of Minari's own remote, and local ones."""

    name = "minari"
    title = "Minari: datasets recorded in Gymnasium environments"
    citation = (
        "Younis, O. G., Perez-Vicente, R., Balis, J. U., Dudley, W., Davey, A., Terry, J. K. (2024). "
        "Minari. Zenodo. https://doi.org/10.5281/zenodo.13767625"
    )
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

    def local(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the datasets in `settings.minari_path`, without opening them."""
        root = settings.minari_path
        if root is None:
            return []
        known = {entry.name: entry for entry in self.catalog()}
        entries = []
        for folder in _folders_with_data(root, _DEPTH):
            main_file = folder / "data" / MAIN_FILE
            if find_main_file(folder) == main_file:
                name = folder.relative_to(root).as_posix()
                size = main_file.stat().st_size if main_file.is_file() else None
                entries.append(replace(known.get(name, CatalogEntry(name)), bytes=size))
        return entries


def find_main_file(path: Path) -> Path | None:
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
