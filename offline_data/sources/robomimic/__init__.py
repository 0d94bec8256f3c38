"""robomimic, MimicGen and LIBERO: demonstrations of robot arms, in robomimic's HDF5 layout.

All three read any file of this layout, also those of IsaacLab and of RoboCasa before it used LeRobot's.
Sources: `robomimic/__init__.py` of https://github.com/ARISE-Initiative/robomimic,
`mimicgen/__init__.py` of https://github.com/NVlabs/mimicgen, and `scripts/create_dataset.py` of
https://github.com/Lifelong-Robot-Learning/LIBERO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from offline_data.config import Settings
from offline_data.errors import NotFoundError
from offline_data.fetch.hub import list_hub
from offline_data.files import is_file
from offline_data.readers.hdf5 import MAGIC
from offline_data.sources.base import UNVERSIONED, CatalogEntry, Release, RemoteFile
from offline_data.sources.catalogs import read_catalog
from offline_data.sources.hub_folders import HubFolders
from offline_data.sources.robomimic.demos import RAW_HINT, DemoFiles
from offline_data.sources.robomimic.file import kind_of


class Demonstrations(HubFolders):
    """Published files of one of the three, and the user's; a folder is one dataset of several files."""

    magic: ClassVar = {".hdf5": MAGIC, ".h5": MAGIC}
    action = "continuous"

    def accepts_file(self, path: Path) -> bool:
        """Return True if a file has demonstrations as this source, not one of the others, has them."""
        return kind_of(path) == self.name

    def open(self, release: Release, raw: Path) -> DemoFiles:
        """Open it: reads what the first file says, unless the files are fetched shard by shard."""
        folder, paths = self.paths_in(release, raw)
        info = self.describe(release)
        if self.published(release):
            info = replace(info, licence=release.licence or info.licence)
        alignment = release.alignment
        why = ", as was asked for" if alignment else ", as the movements tell"
        if self.name == "libero" and release.local is None:
            alignment, why = "raw", " by LIBERO's script"
        files = DemoFiles(
            folder,
            tuple(paths),
            info,
            alignment,
            why,
            keep_episodes=release.keep_episodes,
            skip_bad=release.skip_bad_episodes,
        )
        return files if release.opening is not None else files.with_environment()


class SingleFiles(Demonstrations):
    """Sources whose datasets are one file each, listed in `catalogs/<name>.tsv` with their places."""

    @cached_property
    def _rows(self) -> dict[str, dict[str, str]]:
        return {row["id"]: row for row in read_catalog(self.name)}

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the files of the table, with the sizes that are published."""
        return [
            CatalogEntry(name, bytes=int(row.get("bytes") or 0) or None)
            for name, row in self._rows.items()
        ]

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List those of the table that the hub, or another host, has; raises like `list_hub`."""
        listing = list_hub(self.repository, "", None, settings)
        sizes = {file.path: file.size for file in listing.files}
        return [
            replace(entry, bytes=sizes.get(place, entry.bytes))
            for entry in self.catalog()
            if "://" in (place := self._rows[entry.name]["place"]) or place in sizes
        ]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Return a published file; only those on the hub ask the network for its commit."""
        if name not in self._rows:
            raise self.not_found(name, self._rows)
        row = self._rows[name]
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
        licence = listing.card.get("license")
        return Release(
            name,
            listing.commit,
            (replace(files[0], path=file, magic=MAGIC),),
            licence=licence if isinstance(licence, str) else None,
        )

    def has_format(self, path: Path) -> bool:
        """Return True for such a file; files of a folder are datasets of their own."""
        return is_file(path) and super().has_format(path)


class Robomimic(SingleFiles):
    """robomimic's published files, v0.1 to v1.5, and those that its scripts and others write."""

    name = "robomimic"
    title = "robomimic: demonstrations of robot arms by humans and machines (HDF5)"
    licence = "MIT"
    citation = (
        "Ajay Mandlekar, Danfei Xu, Josiah Wong, Soroush Nasiriany, Chen Wang, Rohun Kulkarni, Li "
        "Fei-Fei, Silvio Savarese, Yuke Zhu, Roberto Martín-Martín: What Matters in Learning from "
        "Offline Human Demonstrations for Robot Manipulation, CoRL, 2021, arXiv:2108.03298"
    )
    repository = "robomimic/robomimic_datasets"

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """See `SingleFiles`; files of simulator states only are not offered."""
        folder, _, file = name.rpartition("/")
        if file.partition("_v")[0] == "demo" and name not in self._rows:
            near = [one for one in self._rows if one.startswith(f"{folder}/")]
            raise NotFoundError(
                f"robomimic:{name} has the states of the simulator, but no observations",
                hint=RAW_HINT + (f"; there is robomimic:{near[0]}" if near else ""),
            )
        return super().resolve(name, revision, settings)


class MimicGen(SingleFiles):
    """MimicGen's published files, and those with its `datagen_info`."""

    name = "mimicgen"
    title = "MimicGen: demonstrations generated from a few of humans (HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Ajay Mandlekar, Soroush Nasiriany, Bowen Wen, Iretiayo Akinola, Yashraj Narang, Linxi Fan, "
        "Yuke Zhu, Dieter Fox: MimicGen: A Data Generation System for Scalable Robot Learning using "
        "Human Demonstrations, CoRL, 2023, arXiv:2310.17596"
    )
    repository = "amandlek/mimicgen_datasets"


class Libero(Demonstrations):
    """LIBERO's suites, a folder with a file for each task, and such files that were rendered anew."""

    name = "libero"
    title = "LIBERO: demonstrations of 130 language-described tasks, with images (HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Bo Liu, Yifeng Zhu, Chongkai Gao, Yihao Feng, Qiang Liu, Yuke Zhu, Peter Stone: LIBERO: "
        "Benchmarking Knowledge Transfer for Lifelong Robot Learning, NeurIPS Datasets and Benchmarks, "
        "2023, arXiv:2306.03310"
    )
    repository = "yifengzhu-hf/LIBERO-datasets"

    def catalog(self) -> Sequence[CatalogEntry]:
        tasks = {"spatial": 10, "object": 10, "goal": 10, "90": 90, "10": 10}
        return [
            CatalogEntry(f"libero_{suite}", episodes=50 * count, summary=f"{count} tasks")
            for suite, count in tasks.items()
        ]
