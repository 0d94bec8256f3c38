"""`convert --mapping`: any file of arrays, read as a mapping says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.base.errors import NotFoundError, OfflineDataError, UsageError
from offline_data.base.files import is_file, is_folder
from offline_data.formats.base import RawDataset, Release, Source, SourceInfo
from offline_data.formats.files.episodes import MappedEpisodes
from offline_data.formats.files.mapping import FileMapping, read_mapping
from offline_data.formats.files.tables import TableEpisodes, count_columns, files_in
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import files_below
from offline_data.formats.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offline_data.base.config import Settings
    from offline_data.formats.base import CatalogEntry

HINT = "`offline-data convert PATH --inspect` lists the arrays of files and proposes a mapping"


class Files(Source):
    """The user's files, which a mapping describes; it accepts those that have one next to them."""

    name = "files"
    title = "your own files (HDF5, npz, npy, zarr, Parquet, Arrow, CSV, .pt), by a mapping"

    def catalog(self) -> Sequence[CatalogEntry]:
        """Return nothing: there is no published list."""
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Raise: there is nothing to download."""
        raise NotFoundError(f"There is no files:{name}: these are files of your own", hint=HINT)

    def accepts(self, path: Path) -> int:
        """Count the names in an export to npz, which has a mapping next to it, to Parquet or to `datasets`."""
        try:
            mapping = _mapping_next_to(path)
            return len(mapping.keys) if mapping else count_columns(path)
        except OfflineDataError:
            return 0

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file or folder."""
        files = files_below(path) if is_folder(path) else [path]
        return Release(
            name,
            fingerprint(path, files),
            local=path,
            options=Options(mapping=_mapping_next_to(path)),
        )

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open it: reads where episodes end; raises `MappingQuestionError` where nothing says it."""
        if release.options.mapping is None and count_columns(raw):
            return TableEpisodes(*files_in(raw))
        if release.options.mapping is None:
            raise UsageError(f"{raw} needs a mapping, which says what its arrays are", hint=HINT)
        mapped = MappedEpisodes(
            raw,
            release.options.mapping,
            SourceInfo(),
            keep_episodes=release.options.keep_episodes,
            skip_bad=release.options.skip_bad_episodes,
        )
        return mapped.describe()


def sidecar(path: Path) -> Path:
    """Return the place of the mapping that `export --to npz` writes next to a file."""
    return path.with_name(f"{path.name}.toml")


def _mapping_next_to(path: Path) -> FileMapping | None:
    if path.suffix != ".npz" or not is_file(path) or not is_file(sidecar(path)):
        return None
    return read_mapping(sidecar(path))
