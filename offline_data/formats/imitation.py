"""imitation: trajectories in an npz file, as its versions before 1.0 saved them.

```
obs         [N + E, …]   s0  s1  s2  s3   s0  s1  s2    an observation more than actions in each
acts, rews  [N, …]       a0  a1  a2       a0  a1        `rews` may be missing
infos       [N]          a dict for each action, as a pickle
terminal    [E]          True             False         False: cut off before the task ended
indices     [E − 1]                       3             first action of each trajectory but the first
```

Source: `save` in `src/imitation/data/types.py` of https://github.com/HumanCompatibleAI/imitation, version 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from offline_data.formats.files.declared import MappedSource
from offline_data.formats.files.mapping import Ends, FileMapping
from offline_data.formats.recognition import ArrayNames
from offline_data.raw.arrays import NamedArray

NAMES = ArrayNames(("obs", "acts", "terminal", "indices"))


class Imitation(MappedSource):
    """The user's files; nothing is published in this format."""

    name, maker = "imitation", "imitation"
    title = "imitation: the trajectories that its versions before 1.0 saved (npz)"
    example = "a file of yours: `offline-data convert FILE.npz NAME`"
    names = NAMES
    arrays: ClassVar = {"npz": NAMES}

    def mapping_of(self, columns: Mapping[str, NamedArray]) -> FileMapping:
        """Return the mapping, with rewards if there are any."""
        leaves = {"observation": "obs", "action": "acts"}
        leaves |= {"next/reward": "rews"} if "rews" in columns else {}
        ends = Ends(cuts="indices", terminated="terminal", flags_of="episode")
        return FileMapping(leaves, "steps", final_observation="extra_row", ends=ends)
