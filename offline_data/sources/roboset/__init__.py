"""RoboSet: robot manipulation in RoboHive's simulations, by experts and humans (HDF5)."""

from __future__ import annotations

from pathlib import Path

from offline_data.readers.hdf5 import MAGIC
from offline_data.sources.base import RawDataset, Release
from offline_data.sources.hub_folders import HubFolders
from offline_data.sources.roboset.trials import NOTES, RoboHiveTrials, has_trials

CITATION = (
    "Vikash Kumar, Rutav Shah, Gaoyue Zhou, Vincent Moens, Vittorio Caggiano, Abhishek Gupta, Aravind "
    "Rajeswaran: RoboHive: A Unified Framework for Robot Learning, NeurIPS Datasets and Benchmarks, "
    "2023, arXiv:2310.06828"
)

FILES = {".h5": MAGIC, ".hdf5": MAGIC}
SET_NOTES = {
    "failures": "Rollouts of trained policies of several seeds, failures among them.",
    "replayed": "Actions of DAPG's demonstrations, replayed in RoboHive's environment.",
}
"""Sentences for the codes in the catalogue's column `notes`."""


class RoboSet(HubFolders):
    """The simulation datasets on the hub, and the user's files written by RoboHive's logger."""

    name = "roboset"
    title = "RoboSet: an arm in a kitchen and a hand, simulated by RoboHive (HDF5)"
    licence = "CC-BY-4.0"
    citation = CITATION
    action = "continuous"
    repository = "jdvakil/RoboSet_Sim"
    magic = FILES
    notes = SET_NOTES

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
        return RoboHiveTrials(folder, paths, info, skip_bad=release.skip_bad_episodes)
