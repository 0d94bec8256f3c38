"""RoboSet: robot manipulation in RoboHive's simulations, by experts and humans (HDF5)."""

from __future__ import annotations

from pathlib import Path

from offline_data.formats.base import RawDataset, Release
from offline_data.formats.catalogues.robots import RoboSetCatalog
from offline_data.formats.hub_folders import HubFolders
from offline_data.formats.roboset.trials import NOTES, RoboHiveTrials, has_trials, natural
from offline_data.raw.hdf5 import MAGIC

FILES = {".h5": MAGIC, ".hdf5": MAGIC}


class RoboSet(RoboSetCatalog, HubFolders):
    """The simulation datasets on the hub, and the user's files written by RoboHive's logger."""

    repository = "jdvakil/RoboSet_Sim"
    magic = FILES

    def accepts_file(self, path: Path) -> bool:
        """Return True if a file has trials; those of real robots are refused when they are read."""
        return has_trials(path)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open it without reading the files."""
        folder, paths = self.paths_in(release, raw)
        name = release.name.rsplit("/", 1)[-1]
        has_env = not name.startswith("human_demos")
        environment = {"id": name, "package": "robohive"} if has_env else {}
        info = self.describe(release, *NOTES, environment=environment)
        files = tuple(sorted(paths, key=natural))
        return RoboHiveTrials(folder, files, info, release.options.skip_bad_episodes)
