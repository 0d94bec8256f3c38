"""ALOHA and ACT: an HDF5 file for each episode.

```
episode_7.hdf5                       rows
    action                           T      a0  a1  a2    the leader's joints
    observations/{qpos,qvel,effort}  T      s0  s1  s2    the followers', before the action
    observations/images/CAMERA       T      pixels, or JPEG files: padded with zeros, or of any length
    base_action                      T      of a mobile base; may be missing
    compress_len                     [cameras, T]         bytes of each padded JPEG file
```

Source: `record_sim_episodes.py` of https://github.com/tonyzhaozh/act, and the recorders that follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from offline_data.formats.files.declared import MappedSource
from offline_data.formats.files.mapping import Ends, FileMapping
from offline_data.formats.recognition import ArrayNames
from offline_data.raw.arrays import NamedArray


class Aloha(MappedSource):
    """Folders of episodes, or one of them."""

    name, maker = "aloha", "ALOHA"
    title = "ALOHA and ACT: folders of episode_N.hdf5 with joints and cameras"
    example = "a folder of yours: `offline-data convert FOLDER NAME`"
    each = "episode_*.hdf5"
    names = ArrayNames(("action", "observations/qpos"))
    unused: ClassVar = {"compress_len": "The bytes of a JPEG file show where it ends."}
    notes = (
        "There are no rewards, and the files do not say whether a task succeeded.",
        "An action belongs to the observation of its row; ACT trains on real robots with that of the row before.",
        "Pixels, also of JPEG files, are taken as RGB; whether a recorder wrote BGR is not in the files.",
    )

    def mapping_of(self, columns: Mapping[str, NamedArray]) -> FileMapping:
        """Return a leaf for each array that has a row for each action."""
        rows, leaves = columns["action"].shape[:1], {"action": "action"}
        for name, column in columns.items():
            root, _, rest = name.partition("/")
            fits = column.shape[:1] == rows and not column.problem and name not in self.unused
            if root == "observations" and (fits or name in self.names.required):
                leaves[f"observation/{rest}"] = name
            elif fits and name != "action":
                leaves[f"extra/{name}"] = name
        ends = Ends(otherwise="truncated")
        return FileMapping(leaves, parts="episodes", final_observation="missing", ends=ends)
