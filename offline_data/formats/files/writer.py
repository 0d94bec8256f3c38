"""npz: an array for each leaf, as `numpy.load` reads them, and the mapping by which `convert` does.

```
NAME.npz         action, next/reward, …     a row for each action
                 observation                a row more for each episode: that after the last action
                 episode_lengths            transitions of each episode
                 episodes/NAME              a row for each episode
NAME.npz.toml    for `offline-data convert NAME.npz --mapping NAME.npz.toml`
```
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import TERMINATED, TRUNCATED, join_key
from offline_data.formats.base import Release
from offline_data.formats.files.mapping import Ends, FileMapping, dump_toml, read_mapping
from offline_data.formats.options import Options
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
from offline_data.store.layout import EPISODES

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

LENGTHS = "episode_lengths"


class NpzTarget(ExportTarget):
    """An uncompressed npz file."""

    name = "npz"
    title = "numpy's npz"
    suffix = ".npz"
    holds = Holds(final_observation=True, flags="ended")
    own: ClassVar = {LENGTHS: ()}

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        """Return the array of a leaf, named like it."""
        if leaf.dtype == "text" and leaf.key[0] in {"action", "next"}:
            return "text is not read back as an action, nor as what it brought"
        key = (EPISODES, *leaf.key) if leaf.table == "episodes" else leaf.key
        return place_at(leaf, "/".join(key), self.holds)

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write one array after the other, reading the episodes for each; and the mapping."""
        count, rows = len(job.episodes.lengths), job.episodes.transitions
        with zipfile.ZipFile(path, "w") as archive:
            with create_array(archive, LENGTHS, (count,), np.dtype(np.int64)) as file:
                file.write(job.episodes.lengths.astype("<i8").data)
            for place in job.places:
                observed = place.leaf.table == "observations"
                kind = _dtype_of(place, job)
                length = count if place.leaf.table == "episodes" else rows + observed * count
                with create_array(archive, place.path, (length, *place.leaf.shape), kind) as file:
                    for batch in batches:
                        column = getattr(batch, place.leaf.table)[place.leaf.key]
                        file.write(np.ascontiguousarray(np.asarray(column).astype(kind)).data)
        mapping = dump_toml(_mapping(job))
        path.with_name(f"{path.name}.toml").write_text(mapping, encoding="utf-8")

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open the file by the mapping next to it."""
        mapping = read_mapping(path.with_name(f"{path.name}.toml"))
        return get_source("files").open(
            Release(job.name, "1", local=path, options=Options(mapping=mapping)), path
        )


def _mapping(job: ExportJob) -> FileMapping:
    flags = (TERMINATED, TRUNCATED)
    leaves = [p for p in job.places if p.leaf.table != "episodes" and p.leaf.key not in flags]
    return FileMapping(
        {join_key(place.leaf.key): place.path for place in leaves},
        "steps",
        final_observation="extra_row",
        ends=Ends(lengths=LENGTHS, terminated=join_key(TERMINATED), truncated=join_key(TRUNCATED)),
        episodes={join_key(k): place.path for k, place in job.places_in("episodes").items()},
    )


def _dtype_of(place: LeafPlace, job: ExportJob) -> np.dtype[Any]:
    if place.dtype != "text":
        kind: np.dtype[Any] = np.dtype(place.dtype).newbyteorder("<")
        return kind
    tables = (EPISODES,) if place.leaf.table == "episodes" else ()
    words = [member.reader.words(place.leaf.key, *tables) or [] for member in job.episodes.members]
    return np.dtype(f"<U{max([1, *(len(word) for some in words for word in some)])}")
