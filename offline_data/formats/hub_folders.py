"""Sources whose datasets are folders of one repository on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import is_file, is_folder
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import CatalogEntry, CatalogSource, Release
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries


class HubFolders(CatalogSource):
    """Lists and resolves such datasets, and the user's files in the same format.

    Subclasses define the repository, its data files, `accepts_file` and `open`.
    """

    repository: ClassVar[str]  # `user/name` on the hub
    folder: ClassVar[str] = ""  # of all datasets in it, with a trailing slash; empty: all of it
    magic: ClassVar[Mapping[str, bytes]]
    """Suffixes of the data files (`.npz`), and their first bytes."""

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        known = {entry.name: entry for entry in self.catalog()}
        listing = list_hub(self.repository, self.folder, None, settings)
        paths = [Path(file.path) for file in self._data(listing.files)]
        sizes: dict[str, int] = {}
        for path, file in zip(paths, self._data(listing.files), strict=True):
            name = path.parent.as_posix().removeprefix(self.folder)
            sizes[name] = sizes.get(name, 0) + (file.size or 0)
        return [
            replace(known.get(name, CatalogEntry(name)), bytes=size)
            for name, size in sorted(sizes.items())
        ]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """List the files of a dataset at a commit on the hub; `revision` may be a branch or tag."""
        known = [entry.name for entry in self.catalog()]
        missing = self.not_found(name, known)
        if name not in known and settings.offline:
            raise missing
        prefix = f"{self.folder}{name}/"
        try:
            listing = list_hub(self.repository, prefix, revision, settings)
        except NotFoundError as error:
            if name not in known:
                raise missing from None
            if revision is not None:
                raise
            raise NotFoundError(
                f"{self.repository} on the hub has no folder {prefix}, or is private",
                hint=f"`offline-data list {self.name} --remote` lists what it has",
            ) from error
        files = tuple(
            replace(
                file, path=file.path.removeprefix(prefix), magic=self.magic[Path(file.path).suffix]
            )
            for file in self._data(listing.files)
        )
        if not files:
            expected = " or ".join(self.magic)
            raise NotFoundError(
                f"{self.name}:{name} has no {expected} files at {listing.commit}",
                hint=missing.shell_hint,
            )
        return self.plan_shards(Release(name, listing.commit, files))

    def plan_shards(self, release: Release) -> Release:
        """Return a release whose HDF5 files are downloaded shard by shard, npz files all at once."""
        if any(file.path.endswith(".npz") for file in release.files):
            return release
        return replace(release, opening=(), shards=len(release.files))

    def accepts_file(self, path: Path) -> int:
        """Return what `accepts` does, of a file with one of the suffixes; may raise our errors."""
        raise NotImplementedError

    def has_format(self, path: Path) -> int:
        files = self.files_at(path)
        return self.accepts_file(files[0]) if files else 0

    def release_of(self, path: Path, name: str) -> Release:
        files = self.files_at(path)
        if not files:
            expected = " or ".join(self.magic)
            found = "it has none" if is_folder(path) else "no such file"
            raise FormatError(
                f"{path} is not a {self.name} dataset: expected {expected} files; {found}",
                hint="name the folder that holds the files themselves",
            )
        return Release(name, fingerprint(path, files), local=path)

    def files_at(self, path: Path) -> list[Path]:
        """Return a data file, or those of a folder ordered by name; raises `AccessError`."""
        if is_file(path):
            return [path] if path.suffix in self.magic else []
        if not is_folder(path):
            return []
        files = [path / one.name for one in entries(path) if Path(one.name).suffix in self.magic]
        return [file for file in files if is_file(file)]

    def paths_in(self, release: Release, raw: Path) -> tuple[Path, list[str]]:
        """Return the folder of a release's data files, and their paths in it, in order."""
        if release.local is None:
            return raw, sorted(file.path for file in release.files)
        folder = raw.parent if is_file(raw) else raw
        return folder, [file.name for file in self.files_at(raw)]

    def _data(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        return [file for file in files if Path(file.path).suffix in self.magic]
