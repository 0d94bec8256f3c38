"""robomimic, MimicGen and LIBERO: demonstrations of robot arms, in robomimic's HDF5 layout.

All three read any file of this layout, also those of IsaacLab and of RoboCasa before it used LeRobot's.
Sources: `robomimic/__init__.py` of https://github.com/ARISE-Initiative/robomimic,
`mimicgen/__init__.py` of https://github.com/NVlabs/mimicgen, and `scripts/create_dataset.py` of
https://github.com/Lifelong-Robot-Learning/LIBERO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.base.files import is_file
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import UNVERSIONED, CatalogEntry, Release, RemoteFile
from offline_data.formats.catalogues.robots import (
    LiberoCatalog,
    MimicGenCatalog,
    RobomimicCatalog,
    SingleFilesCatalog,
)
from offline_data.formats.hub_folders import HubFolders
from offline_data.formats.robomimic.demos import RAW_HINT, DemoFiles
from offline_data.formats.robomimic.file import kind_of
from offline_data.raw.hdf5 import MAGIC


class Demonstrations(HubFolders):
    """Published files of one of the three, and the user's; a folder is one dataset of several files."""

    magic: ClassVar = {".hdf5": MAGIC, ".h5": MAGIC}

    def accepts_file(self, path: Path) -> bool:
        """Return True if a file has demonstrations as this source, not one of the others, has them."""
        return kind_of(path) == self.name

    def open(self, release: Release, raw: Path) -> DemoFiles:
        """Open it: reads what the first file says, unless the files are fetched shard by shard."""
        folder, paths = self.paths_in(release, raw)
        info = self.describe(release)
        if self.published(release):
            info = replace(info, licence=release.licence or info.licence)
        alignment = release.options.alignment
        why = ", as requested" if alignment else ", as the movements show"
        if self.name == "libero" and release.local is None:
            alignment, why = "raw", " by LIBERO's script"
        files = DemoFiles(
            folder,
            tuple(paths),
            info,
            alignment,
            why,
            keep_episodes=release.options.keep_episodes,
            skip_bad=release.options.skip_bad_episodes,
        )
        return files if release.opening is not None else files.with_environment()


class SingleFiles(SingleFilesCatalog, Demonstrations):
    """Sources whose datasets are one file each, listed in `catalogs/<name>.tsv` with their places."""

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List those of the table that the hub, or another host, has; raises like `list_hub`."""
        listing = list_hub(self.repository, "", None, settings)
        sizes = {file.path: file.size for file in listing.files}
        return [
            replace(entry, bytes=sizes.get(place, entry.bytes))
            for entry in self.catalog()
            if "://" in (place := self.rows[entry.name]["place"]) or place in sizes
        ]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Return a published file; only those on the hub ask the network for its commit."""
        if name not in self.rows:
            raise self.not_found(name, self.rows)
        row = self.rows[name]
        folder, _, file = (place := row["place"]).rpartition("/")
        if "://" in place:
            self.check_unversioned(name, revision)
            size, digest = (
                int(row["bytes"] or 0) or None,
                row["sha256"] and f"sha256:{row['sha256']}",
            )
            found = RemoteFile(file, (place,), size, digest or None, magic=MAGIC)
            return Release(name, UNVERSIONED, (found,))
        listing = list_hub(self.repository, f"{folder}/", revision, settings)
        files = [one for one in listing.files if one.path == place]
        if not files:
            raise NotFoundError(f"The hub's {self.repository} has no {place} at {listing.commit}")
        return Release(
            name,
            listing.commit,
            (replace(files[0], path=file, magic=MAGIC),),
            licence=listing.licence,
        )

    def has_format(self, path: Path) -> int:
        """Return True for such a file; files of a folder are datasets of their own."""
        return super().has_format(path) if is_file(path) else 0


class Robomimic(RobomimicCatalog, SingleFiles):
    """robomimic's published files, v0.1 to v1.5, and those that its scripts and others write."""

    repository = "robomimic/robomimic_datasets"

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """See `SingleFiles`; files of simulator states only are not offered."""
        folder, _, file = name.rpartition("/")
        if file.partition("_v")[0] == "demo" and name not in self.rows:
            near = [one for one in self.rows if one.startswith(f"{folder}/")]
            raise NotFoundError(
                f"robomimic:{name} has the states of the simulator, but no observations",
                hint=RAW_HINT + (f"; there is robomimic:{near[0]}" if near else ""),
            )
        return super().resolve(name, revision, settings)


class MimicGen(MimicGenCatalog, SingleFiles):
    """MimicGen's published files, and those with its `datagen_info`."""

    repository = "amandlek/mimicgen_datasets"


class Libero(LiberoCatalog, Demonstrations):
    """LIBERO's suites, a folder with a file for each task, and such files that were rendered anew."""

    repository = "yifengzhu-hf/LIBERO-datasets"
