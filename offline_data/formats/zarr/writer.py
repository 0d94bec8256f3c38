"""Zarr: a replay buffer of format 2, as Diffusion Policy's `ReplayBuffer` and `zarr.open` read it.

```
data/action, data/NAME, …       a row for each action; data/NAME is the observation before it
meta/episode_ends               one past the last row of each episode
meta/NAME                       columns of episodes
```

Chunks are not compressed, so that every reader of zarr can read them. Source:
`diffusion_policy/common/replay_buffer.py` of https://github.com/real-stanford/diffusion_policy, and
https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import EpisodeBatch
from offline_data.formats.base import Release
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

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

_CHUNK = 4 << 20
"""Bytes of a chunk."""


class ZarrTarget(ExportTarget):
    """A folder of zarr arrays."""

    name = "zarr"
    title = "Diffusion Policy's zarr"
    holds = Holds(
        final_observation=False,
        flags="none",
        text=False,
        info=False,
        extra=False,
    )
    own: ClassVar = {"meta/episode_ends": ()}

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        """Return the array of a leaf; names are joined by `_`, as there are no groups below `data`."""
        key = leaf.key
        if leaf.table == "episodes":
            name = "_".join(key)
            return place_at(leaf, f"meta/{name}", self.holds, (name,))
        if key == ("action",):
            return place_at(leaf, "data/action", self.holds)
        if leaf.table == "observations" and key[0] == "observation":
            name = "_".join(key[1:]) or "state"
            return place_at(leaf, f"data/{name}", self.holds, ("observation", name))
        return "there are observations and actions only"

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write all arrays in one pass, a chunk of each in memory."""
        for group in ("", "data", "meta"):
            (path / group).mkdir(exist_ok=True)
            (path / group / ".zgroup").write_text('{"zarr_format": 2}')
        rows = job.episodes.transitions
        places = [place for place in job.places if place.leaf.table != "episodes"]
        arrays = {p.path: _Chunks(path / p.path, (rows, *p.leaf.shape), p.dtype) for p in places}
        facts: dict[str, list[Any]] = {p.path: [] for p in job.places if p not in places}
        for batch in batches:
            for place in places:
                arrays[place.path].append(np.asarray(place.step_rows(batch)))
            for place in job.places:
                if place.path in facts:
                    facts[place.path].append(batch.episodes[place.leaf.key])
        for array in arrays.values():
            array.finish()
        ends = {"meta/episode_ends": [np.cumsum(job.episodes.lengths)]}
        for name, parts in (ends | facts).items():
            column = np.concatenate(parts)
            whole = _Chunks(path / name, column.shape, column.dtype.name)
            whole.append(column)
            whole.finish()

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open the folder as a local one of Diffusion Policy."""
        return get_source("diffusion_policy").open(Release(job.name, "1", local=path), path)


class _Chunks:
    """An array of zarr that rows are appended to; chunks are along the first axis."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        kind = np.dtype(dtype).newbyteorder("<")
        row = max(1, kind.itemsize * int(np.prod(shape[1:], dtype=np.int64)))
        self._path, self._rows = path, max(1, min(shape[0], _CHUNK // row))
        self._dtype, self._number = kind, 0
        self._name = ".{}".format(".".join(["0"] * (len(shape) - 1))) if len(shape) > 1 else ""
        self._waiting: list[NDArray[Any]] = []
        self._shape = shape
        path.mkdir()
        about = {
            "zarr_format": 2,
            "shape": list(shape),
            "chunks": [self._rows, *shape[1:]],
            "dtype": kind.str,
            "compressor": None,
            "fill_value": None,
            "order": "C",
            "filters": None,
        }
        (path / ".zarray").write_text(json.dumps(about))

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows, and write the chunks that are full."""
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= self._rows:
            rows = np.concatenate(self._waiting)
            whole = len(rows) // self._rows * self._rows
            for first in range(0, whole, self._rows):
                self._write(rows[first : first + self._rows])
            self._waiting = [rows[whole:].copy()]

    def finish(self) -> None:
        """Write the last chunk, which is as long as the others."""
        rows = np.concatenate(self._waiting)
        if len(rows):
            chunk = np.zeros((self._rows, *self._shape[1:]), self._dtype)
            chunk[: len(rows)] = rows
            self._write(chunk)

    def _write(self, chunk: NDArray[Any]) -> None:
        data = np.ascontiguousarray(chunk, self._dtype)
        (self._path / f"{self._number}{self._name}").write_bytes(data.data)
        self._number += 1
