"""V-D4RL: control from pixels in the DeepMind Control Suite, 64 px as npz and 84 px as HDF5."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from offline_data.base.errors import FormatError
from offline_data.formats.base import RawDataset, Release
from offline_data.formats.catalogues.control import VD4RLCatalog
from offline_data.formats.hub_folders import HubFolders
from offline_data.formats.recognition import ArrayNames, array_names
from offline_data.formats.vd4rl import hdf5, npz
from offline_data.formats.vd4rl.rows import DISCOUNT, FIRST, NOTES, REQUIRED
from offline_data.raw.hdf5 import MAGIC

LAYOUTS = {
    ".npz": "Images are [height, width, channel], as in the npz files.",
    ".hdf5": "Images are [channel, height, width], as in the HDF5 files.",
}

FILES = {".npz": npz.MAGIC, ".hdf5": MAGIC}
NAMES = {
    ".npz": ArrayNames((*REQUIRED, DISCOUNT, FIRST)),
    ".hdf5": ArrayNames(hdf5.REQUIRED),
}
"""DreamerV2 writes `discount` and `is_first` into every npz file. Without them an action may belong to
the image of its own row, as in files of others; `--from vd4rl` reads them as DreamerV2's."""


class VD4RL(VD4RLCatalog, HubFolders):
    """The datasets on the hub, and the user's files in their two formats.

    Any npz file written by DreamerV2, of any environment, has the first format.
    """

    repository = "conglu/vd4rl"
    folder = "vd4rl/"
    magic = FILES
    arrays: ClassVar = {"npz": NAMES[".npz"], "HDF5": NAMES[".hdf5"]}

    def accepts_file(self, path: Path) -> int:
        """Count the columns of one of the formats in a file."""
        return NAMES[path.suffix].count_in(array_names(path))

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open it: reads headers of npz files, but no HDF5 files yet."""
        folder, paths = self.paths_in(release, raw)
        suffixes = sorted({Path(path).suffix for path in paths})
        if len(suffixes) != 1:
            found = " and ".join(suffixes) or "no"
            raise FormatError(
                f"{raw} has {found} files; a V-D4RL dataset has either .npz or .hdf5 files",
                hint="name the folder of one resolution, as in main/walker_walk/random/64px",
            )
        info = self.describe(
            release,
            *NOTES,
            LAYOUTS[suffixes[0]],
            environment={"id": release.name.split("/")[1]} if self.published(release) else {},
            about={"action_repeat": 2, "suite": "DeepMind Control Suite"},
        )
        skip_bad = release.options.skip_bad_episodes
        if suffixes == [".npz"]:
            files = [folder / path for path in paths]
            return npz.NpzEpisodes(files, info, skip_bad=skip_bad)
        return hdf5.Hdf5Episodes(folder, paths, info, skip_bad=skip_bad)
