"""OGBench: one npz file, as `ogbench.load_dataset` reads it.

```
observations, actions, terminals     T + 1 rows for an episode of T steps; `terminals` marks the last
qpos, qvel, button_states, …         `info/…`, of the state of their row
oracle_reps                          the goal representation of each state
```

OGBench's scripts record an action in the last state as well. It leads nowhere, and our datasets do not
have it: the one before is repeated there, which is within the bounds of the action space.

Source: `ogbench/utils.py` and `data_gen_scripts/` of https://github.com/seohongpark/ogbench.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episode import EpisodeBatch
from offline_data.formats.base import Release
from offline_data.formats.ogbench.source import NAMES
from offline_data.formats.registry import get_source
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import Leaf
from offline_data.formats.writing.plan import place_at
from offline_data.raw.npy import create_array

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

_ORACLE = "oracle_reps"


class OGBenchTarget(ExportTarget):
    """OGBench's npz file, uncompressed."""

    name = "ogbench"
    title = "OGBench's npz"
    suffix = ".npz"
    reads = ("observation",)
    holds = Holds(
        final_observation=True,
        flags="none",
        nested=False,
        text=False,
        extra=False,
        episodes=False,
        dtypes={"complex64": None, "complex128": None},
    )
    own: ClassVar = {
        "observations": (("observation",),),
        "actions": (("action",),),
        _ORACLE: ((_ORACLE,),),
        **dict.fromkeys(("terminals", *NAMES.never), ()),
    }

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:
        """Return the array of a leaf; names of infos are joined by `_`, as there are no groups."""
        key = leaf.key
        if not prod(leaf.shape):
            return "its rows are empty"
        if key == options.observation:
            return place_at(leaf, "observations", self.holds, ("observation",))
        if key[0] == "action":
            return place_at(leaf, "actions", self.holds, ("action",))
        if key[0] == "info" and key[1:]:
            if leaf.table == "steps":
                return f"it has no row after the last action, where {self.name} has one"
            name = "_".join(key[1:])
            return place_at(leaf, name, self.holds, ("info", name))
        if leaf.table == "observations" and key == (_ORACLE,):
            return place_at(leaf, _ORACLE, self.holds)
        return f"{self.name} has no place for it"

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write one array after the other, reading the episodes for each."""
        lengths = job.episodes.lengths
        rows = int((lengths + 1).sum())
        terminals = np.zeros(rows, bool)
        terminals[np.cumsum(lengths + 1) - 1] = True
        with zipfile.ZipFile(path, "w") as archive:
            with create_array(archive, "terminals", terminals.shape, terminals.dtype) as file:
                file.write(terminals.data)
            for place in job.places:
                kind: np.dtype[Any] = np.dtype(place.dtype).newbyteorder("<")
                with create_array(archive, place.path, (rows, *place.leaf.shape), kind) as file:
                    for batch in batches:
                        column = np.asarray(getattr(batch, place.leaf.table)[place.leaf.key])
                        if place.leaf.table == "steps":
                            last = batch.last_rows
                            column = np.insert(column, last + 1, column[last], axis=0)
                        file.write(np.ascontiguousarray(column, kind).data)

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open the file as a local one of OGBench."""
        return get_source("ogbench").open(Release(job.name, "1", local=path), path)
