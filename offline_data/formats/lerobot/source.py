"""LeRobot datasets, versions 2.0 to 3.0, of the hub or here, read without the lerobot package."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.base.errors import FormatError, NotFoundError, OfflineError
from offline_data.base.files import is_file
from offline_data.base.ids import did_you_mean
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import CatalogSource, Release
from offline_data.formats.catalogues.robots import LeRobotCatalog
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import files_below
from offline_data.formats.lerobot.dataset import LeRobotDataset
from offline_data.formats.lerobot.metadata import INFO, OLD_INFO, is_metadata, old_version
from offline_data.raw.arrow import PARQUET

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.base.config import Settings

_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")


class LeRobot(LeRobotCatalog, CatalogSource):
    """Datasets of the hub by the name of their repository, and folders of the user.

    The format is that of the files at a commit, by default the newest of the main branch; tags, by
    which lerobot chooses, are not needed.

    Example:
        >>> [entry.name for entry in LeRobot().catalog() if entry.name.endswith("pusht")]
        ['lerobot/pusht']
    """

    takes = ("only",)

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """List the files of a repository at a commit; `revision` may be a branch or a tag."""
        known = [entry.name for entry in self.catalog()]
        if name.count("/") != 1:
            raise self.not_found(name, known, "ids look like lerobot:lerobot/pusht")
        try:
            listing = list_hub(name, "", revision, settings)
        except (NotFoundError, OfflineError) as error:
            near = did_you_mean(name, known, shown=f"{self.name}:{{}}".format)
            if name not in known and near:
                raise type(error)(error.message, hint=near) from error
            raise
        listed = {file.path: file for file in listing.files}
        if INFO not in listed:
            raise _no_dataset(f"{self.name}:{name}", old=OLD_INFO in listed)
        files = []
        for path, file in listed.items():
            if _is_read(path):
                magic = PARQUET if path.endswith(".parquet") else b""
                files.append(replace(file, magic=magic))
        return Release(
            name,
            listing.commit,
            tuple(files),
            opening=tuple(file.path for file in files if is_metadata(file.path)),
            licence=listing.licence,
        )

    def has_format(self, path: Path) -> bool:
        return is_file(path / INFO) or is_file(path / OLD_INFO)

    def release_of(self, path: Path, name: str) -> Release:
        if not is_file(path / INFO):
            raise _no_dataset(str(path), old=is_file(path / OLD_INFO))
        return Release(name, fingerprint(path, [path / one for one in _paths(path)]), local=path)

    def open(self, release: Release, raw: Path) -> LeRobotDataset:
        if release.local is None:
            sizes = {file.path: file.size for file in release.files}
        else:
            sizes = {path: (raw / path).stat().st_size for path in _paths(raw)}
        return LeRobotDataset(raw, sizes, release)


def _is_read(path: str) -> bool:
    """Return True for the path of a file that a conversion may read."""
    data = path.startswith("data/") and path.endswith(".parquet")
    image = path.startswith("images/") and path.endswith(_IMAGES)
    return data or image or path.endswith(".mp4") or is_metadata(path)


def _paths(folder: Path) -> list[str]:
    """Return the paths of the files of a dataset that a conversion may read."""
    found = (file.relative_to(folder).as_posix() for file in files_below(folder))
    return [path for path in found if _is_read(path)]


def _no_dataset(where: str, *, old: bool) -> FormatError:
    if old:
        return old_version(where, "v1")
    return FormatError(
        f"{where} is not a LeRobot dataset: it has no {INFO}",
        hint="name the folder that contains meta and data",
    )
