"""Where the files of a Minari dataset lie on this machine, and the fingerprint of their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.errors import FormatError, NotFoundError
from offline_data.paths import is_file, is_folder
from offline_data.sources.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METADATA = "metadata.json"
MAIN_FILE = "main_data.hdf5"

_DEPTH = 8  # of namespaces below a root


@dataclass(frozen=True)
class DataFolder:
    """The folder that Minari calls `data`."""

    path: Path
    """The folder itself."""
    main_file: Path
    """Its HDF5 file, which need not exist: the other storages have a folder per episode."""

    @property
    def metadata(self) -> Path:
        """Its metadata file, which need not exist: until version 0.4 the HDF5 file has them."""
        return self.path / METADATA


def find_data(path: Path) -> DataFolder | None:
    """Find the data of a dataset, given its folder, the `data` folder in it, or its HDF5 file.

    Returns None where nothing there looks like Minari. Reads no file.
    """
    if is_file(path):
        return DataFolder(path.parent, path) if path.name == MAIN_FILE else None
    for folder in (path / "data", path):
        main_file = folder / MAIN_FILE
        if is_file(main_file) or _has_episode_folders(folder):
            return DataFolder(folder, main_file)
    return None


def _has_episode_folders(folder: Path) -> bool:
    if not is_file(folder / METADATA):
        return False
    return folder.name == "data" or is_folder(folder / "0")


def need_data(path: Path) -> DataFolder:
    """Find the data of a dataset as `find_data` does, but take any HDF5 file by its name.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: What is there is no Minari dataset.
    """
    found = find_data(path)
    if found is not None:
        return found
    if is_file(path) and path.suffix in {".hdf5", ".h5"}:
        return DataFolder(path.parent, path)
    if not (is_file(path) or is_folder(path)):
        raise NotFoundError(f"There is no Minari dataset at {path}: nothing is there")
    raise FormatError(
        f"{path} is not a Minari dataset: expected data/{METADATA} or data/{MAIN_FILE} in it",
        hint="name the folder that contains `data`, or the HDF5 file",
    )


def revision_of(path: Path) -> str:
    """Return `local-<12 hex>` for the present state of a dataset folder or file.

    It changes with the names and contents of its files; see `fingerprint`.

    Raises:
        AccessError: A file cannot be read.
        NotFoundError, FormatError: See `need_data`.
    """
    need_data(path)
    return fingerprint(path, _files(path))


def _files(path: Path) -> Iterator[Path]:
    return (p for p in path.rglob("*") if is_file(p)) if is_folder(path) else iter((path,))


def datasets_below(root: Path) -> Iterator[tuple[str, DataFolder]]:
    """Yield the name and data of every dataset below a folder of Minari datasets, in order.

    Episode folders are not looked into. A folder that may not be read is passed over.
    """
    for folder in _walk(root, _DEPTH):
        found = find_data(folder)
        if found is not None and found.path == folder / "data":
            yield folder.relative_to(root).as_posix(), found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        children = sorted(child for child in folder.iterdir() if is_folder(child))
    except OSError:
        return
    for child in children:
        if is_folder(child / "data"):
            yield child
        elif depth and not child.name.startswith(".") and not _leads_back(child):
            yield from _walk(child, depth - 1)


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())
