"""`convert --mapping`: any file of arrays, read as a mapping says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.errors import NotFoundError, UsageError
from offline_data.files import is_folder
from offline_data.sources.base import Release, Source, SourceInfo
from offline_data.sources.files.episodes import MappedEpisodes
from offline_data.sources.fingerprint import fingerprint
from offline_data.sources.folders import files_below

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.sources.base import CatalogEntry

HINT = "`offline-data convert PATH --inspect` lists the arrays of files and proposes a mapping"


class Files(Source):
    """The user's files; it accepts none by itself, since only a mapping says what is in them."""

    name = "files"
    title = "your own files (HDF5, npz, npy, zarr, Parquet, CSV, .pt), by a mapping"

    def catalog(self) -> Sequence[CatalogEntry]:
        """Return nothing: there is no published list."""
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Raise: there is nothing to download."""
        raise NotFoundError(f"There is no files:{name}: these are files of your own", hint=HINT)

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file or folder."""
        files = files_below(path) if is_folder(path) else [path]
        return Release(name, fingerprint(path, files), local=path)

    def open(self, release: Release, raw: Path) -> MappedEpisodes:
        """Open it: reads where episodes end; raises `MappingQuestionError` where nothing says it."""
        if release.mapping is None:
            raise UsageError(f"{raw} needs a mapping, which says what its arrays are", hint=HINT)
        mapped = MappedEpisodes(
            raw,
            release.mapping,
            SourceInfo(),
            keep_episodes=release.keep_episodes,
            skip_bad=release.skip_bad_episodes,
        )
        return mapped.describe()
