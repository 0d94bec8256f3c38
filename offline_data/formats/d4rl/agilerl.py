"""AgileRL: flat HDF5 files with next observations, and no ends of episodes but terminals.

```
<id>_agile-v0/data/main_data.hdf5
    observations, next_observations, actions, rewards, terminals      a row for each transition
```

Source: `minari_to_agile_dataset` in `agilerl/utils/minari_utils.py` of https://github.com/AgileRL/AgileRL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from offline_data.base.errors import FormatError
from offline_data.base.files import is_folder
from offline_data.formats.base import Release, SourceInfo, UnpublishedSource
from offline_data.formats.catalogues.d4rl import EndRule
from offline_data.formats.d4rl import source as d4rl
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.flat.hdf5 import FlatFile, inspect
from offline_data.formats.recognition import ArrayNames
from offline_data.raw.hdf5 import open_hdf5

FORMAT = replace(d4rl.FORMAT, title="AgileRL")
NAMES = ArrayNames((*FORMAT.required_columns, FORMAT.next_observation), exactly=True)
UNMARKED = (
    "An end that is not terminal shows only where the observation changes: two episodes between which it "
    "stays the same are read as one."
)


class AgileRL(UnpublishedSource, d4rl.FlatSource):
    """The user's files; nothing is published in this format."""

    form, names = FORMAT, NAMES
    name, maker = "agilerl", "AgileRL"
    example = "a file of yours: `offline-data convert main_data.hdf5 NAME`"
    title = "AgileRL: the files that its minari_to_agile_dataset writes (HDF5)"

    def has_format(self, path: Path) -> int:
        """Count AgileRL's columns in a file that has no others, or in its folder."""
        if not (file := _file_of(path)).is_file() or file.suffix == ".npz":
            return 0
        with open_hdf5(file) as opened:
            # A Minari dataset is a folder of the same names, with a group for each of many episodes.
            return NAMES.count_in(opened) if len(opened) == len(NAMES.required) else 0

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file, or the folder that AgileRL made for it."""
        file = _file_of(path)
        return Release(name, fingerprint(file, [file]), local=file)

    def inspect(self, path: Path) -> FlatFile:
        path = _file_of(path)
        with open_hdf5(path) as file:
            flat = inspect(file, path, FORMAT)
        if not flat.has_next:
            raise FormatError(
                f"{path} is not an AgileRL file: it has no {FORMAT.next_observation!r}",
                hint="--from d4rl reads files without",
            )
        return flat

    def known_of(self, release: Release, path: Path) -> tuple[EndRule, SourceInfo]:  # noqa: ARG002
        keep = release.options.keep_episodes
        info = self.describe(release, *(() if keep else (UNMARKED,)))
        return EndRule("terminals" if keep else "jumps"), info


def _file_of(path: Path) -> Path:
    return path / "data" / "main_data.hdf5" if is_folder(path) else path
