"""Rows of OGBench files: trajectories one after the other, read as a stream.

```
row of the file        0    1    2    3        a trajectory of three steps
observations           s0   s1   s2   s3
actions                a0   a1   a2   (a3)     the last action leads nowhere, and is left out
terminals              0    0    0    1        marks the last row
qpos, button_states    of the state of their row, as are the rewards of a task
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.cut import lengths_of
from offline_data.episode.fields import REWARD, Key, check_key
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.files.episodes import read_runs, steps_of
from offline_data.formats.ogbench.names import Name
from offline_data.raw.arrays import npz_arrays
from offline_data.raw.npy import NpyHeader, NpzArrays, open_npz
from offline_data.store.arrays import MASK

REQUIRED = ("observations", "actions", "terminals")
BUDGET = 1 << 42
"""Bytes of all arrays of a file, of which some megabytes are in memory at a time."""
_LARGEST = 1 << 31
"""Bytes of one trajectory, and of the column that marks their ends."""

_LEAVES: dict[str, Key] = {"observations": ("observation",), "oracle_reps": ("oracle_reps",)}

_ENDS = (
    "Trajectories end after a fixed number of steps: each is truncated, and its last observation is "
    "in the file."
)
_NO_REWARDS = "A name with singletask, as in {stem}-singletask-task1-v0, has the rewards of a task."
_TASK = (
    "next/reward and next/mask are those of task {task} in the state of their row, before the action, as "
    "OGBench computes them: a step is rewarded when it starts at the goal. No step is terminated; "
    "agents bootstrap where next/mask is 1."
)


@dataclass(frozen=True)
class OGBenchFiles(RawDataset):
    """The trajectories of some files, a shard each.

    Attributes:
        folder: Folder of the files.
        paths: Their paths in it.
        info: Description of the dataset.
        name: Parts of its name; None: a file of the user.
        stated: Number of trajectories that the catalogue states.
    """

    folder: Path
    paths: tuple[str, ...]
    info: SourceInfo
    name: Name | None = None
    stated: int | None = None

    def with_counts(self) -> OGBenchFiles:
        """Return the same with notes, and with the counts of a single file."""
        notes = [_ENDS]
        if self.name is not None:
            said = _NO_REWARDS if self.name.task is None else _TASK
            notes.append(said.format(stem=self.name.stem, task=self.name.task))
        info = replace(self.info, notes=(*self.info.notes, *notes))
        if len(self.paths) > 1:
            return replace(self, info=info)
        with open_npz(self.folder / self.paths[0], budget=BUDGET) as arrays:
            _, lengths, dropped = self._describe(arrays)
        warnings: tuple[str, ...] = ()
        if self.stated not in {None, len(lengths)}:
            recorded = plural(self.stated or 0, "trajectory", "trajectories")
            warnings = (f"OGBench's scripts record {recorded}; the file has {len(lengths):,}.",)
        info = replace(
            info,
            transitions=int(lengths.sum()),
            episodes=len(lengths),
            notes=(*info.notes, *warnings),
            warnings=warnings,
            dropped=dropped,
        )
        return replace(self, info=info)

    def shards(self) -> Sequence[Shard]:
        return tuple(Shard(path, (path,)) for path in self.paths)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        """Read whole trajectories, some megabytes at a time; raises `FormatError`."""
        with open_npz(self.folder / shard.files[0], budget=BUDGET) as arrays:
            columns, lengths, dropped = self._describe(arrays)
            size = sum(one.dtype.itemsize * prod(one.shape[1:]) for one in columns.values())
            if (largest := int(lengths.max() + 1) * size) > _LARGEST:
                raise FormatError(f"{shard.name}: a trajectory has {largest:,} bytes")
            states = dict.fromkeys(columns, True)
            for run, rows in read_runs(npz_arrays(arrays), states, lengths):
                batch = self._batch(rows, lengths[run])
                yield replace(batch, dropped=() if run.start else dropped)

    def _describe(
        self, arrays: NpzArrays
    ) -> tuple[dict[str, NpyHeader], NDArray[np.int64], tuple[Dropped, ...]]:
        """Return the headers of arrays with a row for each state, steps of trajectories, and what is left out."""
        where = arrays.path.name
        headers = {name: arrays.header(name) for name in arrays}
        needed = (*REQUIRED, *(self.name.needs if self.name else ()))
        if missing := [name for name in needed if name not in headers]:
            raise FormatError(
                f"{where} has no array {' and no '.join(map(repr, missing))}; arrays: "
                f"{', '.join(headers) or 'none'}"
            )
        rows = headers["terminals"].shape[:1]
        columns, dropped = {}, []
        for name, header in headers.items():
            if header.shape[:1] == rows and header.dtype.kind in "biuf":
                columns[name] = header
                continue
            found = f"{header.dtype} {list(header.shape)}"
            if name in needed:
                raise FormatError(
                    f"{where}: {name!r} is {found}; expected numbers, {rows[0] if rows else 'n'} rows"
                )
            dropped.append(Dropped(name, f"It is {found}: no number for each state."))
        ends = columns.pop("terminals")
        empty = rows in {(), (0,)} or ends.shape != rows
        if empty or rows[0] * ends.dtype.itemsize > _LARGEST:
            raise FormatError(
                f"{where}: 'terminals' is {ends.dtype} {list(ends.shape)}; expected a flag for each row"
            )
        lengths = lengths_of(arrays["terminals"] != 0) - 1
        if int(lengths.min()) < 1:
            raise FormatError(
                f"{where}: trajectory {int(lengths.argmin())} has one row, and no action that leads anywhere"
            )
        for name, header in columns.items():
            if not prod(header.shape[1:]):
                raise FormatError(f"{where}: rows of {name!r} are empty")
            if header.order == "F" and len(header.shape) > 1:
                raise FormatError(
                    f"{where}: {name!r} has columns one after the other; expected rows"
                )
        return columns, lengths, tuple(dropped)

    def _batch(self, rows: Mapping[str, NDArray[Any]], lengths: NDArray[np.int64]) -> EpisodeBatch:
        """Return trajectories of that many steps each."""
        steps: dict[Key, NDArray[Any]] = {("action",): steps_of(rows["actions"], lengths)}
        observed = {
            _LEAVES.get(name) or check_key(("info", name)): column
            for name, column in rows.items()
            if name != "actions"
        }
        if self.name is not None and self.name.task is not None:
            solved = steps_of(self.name.successes(rows), lengths)
            reward = solved.sum(axis=-1, keepdims=True) - solved.shape[-1]
            steps[REWARD] = reward.astype(np.float32)
            steps[MASK] = 1 - solved.all(axis=-1, keepdims=True).astype(np.float32)
        if self.name is not None and self.name.has_oracle:
            observed[_LEAVES["oracle_reps"]] = self.name.oracle_reps(rows)
        return assemble(lengths, steps, observed)
