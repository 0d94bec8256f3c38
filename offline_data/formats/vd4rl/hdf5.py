"""V-D4RL with 84 px: HDF5 files of many concatenated episodes, which may span two files.

```
file                0.hdf5                      1.hdf5
row                 0 … 500  501 … 751          0 … 249   250 … 750
step_type           0 … 2    0   …  1           1 … 2     0   …   2
episode             └──0──┘  └────── 1 ─────────────┘     └── 2 ──┘
shard               └─────────── 0 ─────────────┘         └── 1 ──┘
```

A shard is the episodes that begin in a file; it may need the start of the next file of its series: files
whose names differ only in a number (`0_walker_walk_expert.hdf5`, `1_walker_walk_expert.hdf5`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch, Skipped
from offline_data.episode.joining import join_episodes, with_place
from offline_data.episode.notes import count_episodes
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.vd4rl.rows import ACTION, DISCOUNT, IMAGE, REWARDS, episode_of
from offline_data.raw.hdf5 import name_hdf5_damage, open_hdf5
from offline_data.raw.hdf5_tree import datasets_in, dtype_of, lies_elsewhere
from offline_data.raw.inflate import read_rows

OBSERVATION, STEP_TYPE = "observation", "step_type"
REQUIRED = (OBSERVATION, ACTION, REWARDS, DISCOUNT, STEP_TYPE)
FIRST, LAST = 0, 2
"""Step types of dm_env: first and last; 1 is in between."""

HEADLESS = "begins inside an episode that is in no file before it"
LONG = "is all inside one episode, which would be in three files; at most two are read"
UNFINISHED = "the file ends before the last step; the episode is truncated there."

BLOCK = 32 << 20
"""Bytes of a column read at once, unless its chunks are larger."""
LARGEST = 4 * BLOCK
"""Maximum bytes of whole chunks read at once; larger chunks are inflated again for each piece."""

_NUMBER = re.compile(r"[0-9]{1,9}")
_MOST = 10_000  # files of a series


def series_of(paths: Sequence[str]) -> list[list[str]]:
    """Group files by their names without the first number, and sort each group by that number.

    Example:
        >>> series_of(["0_medium.hdf5", "10_expert.hdf5", "9_expert.hdf5"])
        [['9_expert.hdf5', '10_expert.hdf5'], ['0_medium.hdf5']]
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        found = _NUMBER.search(name)
        rest = _NUMBER.sub("#", name, count=1)
        groups.setdefault(folder + slash + rest, []).append((int(found[0]) if found else 0, path))
    return [[path for _, path in sorted(groups[key])] for key in sorted(groups)]


def _missing(group: Sequence[str]) -> list[str]:
    """Return the files whose numbers are missing in a series."""
    folder, slash, name = group[0].rpartition("/")
    found = [_NUMBER.search(path.rpartition("/")[2]) for path in group]
    numbers = [int(one[0]) for one in found if one]
    gaps = (
        sorted({*range(numbers[0], min(numbers[-1], numbers[0] + _MOST))} - {*numbers})
        if numbers
        else []
    )
    return [folder + slash + _NUMBER.sub(str(gap), name, count=1) for gap in gaps]


class Hdf5Episodes(RawDataset):
    """The episodes of some files.

    Args:
        folder: Folder of the files.
        paths: Their paths in it.
        info: Metadata of the source.
        skip_bad: Whether to skip unreadable episodes.

    Raises:
        FormatError: A file is missing in a numbered series.
    """

    def __init__(
        self, folder: Path, paths: Sequence[str], info: SourceInfo, *, skip_bad: bool
    ) -> None:
        groups = series_of(paths)
        missing = [name for group in groups for name in _missing(group)]
        if missing and not skip_bad:
            raise with_place(FormatError("there is no such file, and one after it"), missing[0])
        skipped = tuple(
            Skipped(name, "there is no such file, and one after it") for name in missing
        )
        self.info = replace(info, skipped=skipped)
        self._folder, self._skip_bad = folder, skip_bad
        # previous and next file in the series of each file
        self._around = {
            path: (before, after)
            for group in groups
            for before, path, after in zip([None, *group], group, [*group[1:], None], strict=False)
        }

    def shards(self) -> Sequence[Shard]:
        return [
            Shard(path, (path,) if after is None else (path, after))
            for path, (_, after) in self._around.items()
        ]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        """Read the episodes that begin in the first file of a shard."""
        return join_episodes(self._readings(shard), skip_bad=self._skip_bad)

    def _readings(self, shard: Shard) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        before, after = self._around[shard.files[0]]
        with ExitStack() as stack:
            file = _File(stack.enter_context(open_hdf5(self._folder / shard.files[0])), shard.name)
            starts = np.flatnonzero(file.types == FIRST)
            head = int(starts[0]) if len(starts) else file.rows
            if head and before is None:
                yield f"{shard.name} rows 0 to {head - 1}", partial(_refuse, file.name, HEADLESS)
            if not len(starts):
                return
            following, tail, goes_on = None, 0, False
            if after is not None:
                following = _File(stack.enter_context(open_hdf5(self._folder / after)), after)
                begins = np.flatnonzero(following.types == FIRST)
                tail = int(begins[0]) if len(begins) else following.rows
                further = self._around[after][1]
                goes_on = not len(begins) and following.types[-1] != LAST and further is not None
            if after is not None and tail and file.types[-1] == LAST:
                yield f"{after} rows 0 to {tail - 1}", partial(_refuse, after, HEADLESS)
                tail = 0
            for start, stop in pairwise([*starts.tolist(), file.rows + tail]):
                where = f"{shard.name} rows {start} to {min(stop, file.rows) - 1}"
                reading = partial(self._episode, file, following, start, stop)
                if after is not None and stop > file.rows:
                    where += f" and {after} rows 0 to {tail - 1}"
                    reading = partial(_refuse, after, LONG) if goes_on else reading
                yield where, reading

    def _episode(self, file: _File, following: _File | None, start: int, stop: int) -> EpisodeBatch:
        with name_hdf5_damage(self._folder / file.name):
            return _episode(file, following, start, stop)


def _refuse(name: str, problem: str) -> EpisodeBatch:
    """Raise for an episode that cannot be read, when its turn comes."""
    hint = "a file is missing, or was given without the others of its folder"
    raise FormatError(f"{name} {problem}", hint=hint)


def _episode(file: _File, following: _File | None, start: int, stop: int) -> EpisodeBatch:
    """Read rows from one file, and those from `file.rows` on from the next."""
    types = file.types[start:stop]
    if following is not None and stop > file.rows:
        types = np.concatenate([types, following.types[: stop - file.rows]])
    if (types[:-1] == LAST).any():
        row = start + int((types == LAST).argmax())
        raise FormatError(f"the step after the last one, in row {row}, is not the first of another")
    rows = file.read(start, min(stop, file.rows))
    if following is not None and stop > file.rows:
        rest = following.read(0, stop - file.rows)
        if rest.keys() != rows.keys():
            odd = sorted(rest.keys() ^ rows.keys())
            raise FormatError(f"{following.name} and {file.name} do not both have {odd[0]!r}")
        if odd := [name for name in rows if rows[name].dtype != rest[name].dtype]:
            raise FormatError(f"{odd[0]!r} is of another dtype in {following.name}")
        try:
            rows = {name: np.concatenate([rows[name], rest[name]]) for name in rows}
        except ValueError as error:
            raise FormatError(f"rows in {following.name} are of another shape: {error}") from error
    batch = episode_of({IMAGE: rows.pop(OBSERVATION), **rows}, file.name)
    notes = batch.notes if types[-1] == LAST else (*batch.notes, count_episodes(1, UNFINISHED))
    return replace(batch, dropped=file.dropped, notes=notes)


class _File:
    """An open file whose rows are read in order, possibly with overlaps."""

    def __init__(self, file: Any, name: str) -> None:
        self.name = name
        found, links = datasets_in(file)
        dropped = [
            Dropped(n, f"It is a link to {to!r}, which is not followed.") for n, to in links.items()
        ]
        if missing := [one for one in REQUIRED if one not in found]:
            there = ", ".join(sorted({*found, *links})[:12]) or "none"
            raise FormatError(f"{name} has no dataset {missing[0]!r} of its own; datasets: {there}")
        shape = found[OBSERVATION].shape
        self.rows = shape[0] if shape else 0
        if not self.rows:
            raise FormatError(f"{name} has no rows")
        self._columns: dict[str, _Column] = {}
        for one, dataset in found.items():
            dtype = dtype_of(dataset)
            reason = None
            if lies_elsewhere(dataset):
                reason = "has its values in another file, which is not followed"
            elif dtype is None or dtype.kind not in "biuf":
                reason = f"has dtype {dtype or 'unknown to numpy'}, which is not a number"
            elif not dataset.shape or dataset.shape[0] != self.rows:
                reason = (
                    f"has shape {list(dataset.shape or ())}, expected {plural(self.rows, 'row')}"
                )
            if reason is None:
                self._columns[one] = _Column(dataset)
            elif one in REQUIRED:
                raise FormatError(f"{name}: {one!r} {reason}")
            else:
                dropped.append(Dropped(one, f"It {reason}."))
        self.dropped = tuple(dropped)

    @cached_property
    def types(self) -> NDArray[Any]:
        """`[rows]` step type of each row."""
        types = self._columns[STEP_TYPE].read(0, self.rows).reshape(self.rows, -1)
        if types.shape[1] != 1 or not np.isin(types, (0, 1, 2)).all():
            raise FormatError(f"{self.name}: {STEP_TYPE!r} is not 0, 1 or 2 in every row")
        return types[:, 0]

    def read(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Read rows of all columns except the step type, without copying within a block."""
        columns = self._columns.items()
        return {name: c.read(start, stop) for name, c in columns if name != STEP_TYPE}


class _Column:
    """One column, read in blocks of whole chunks, so that no chunk is inflated twice.

    ```
    block             0                   1
    chunks            0     1     2       3     4     5
    episode        └──── a ────┘└──── b ────┘└───── c ─ …       b needs both blocks; the last is cached
    ```
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        row = max(1, dataset.dtype.itemsize * prod(dataset.shape[1:]))
        chunk = dataset.chunks[0] if dataset.chunks else 1
        self._height = max(1, BLOCK // (row * chunk)) * chunk
        if self._height * row > LARGEST:
            self._height = max(1, BLOCK // row)
        self._last: tuple[int, NDArray[Any] | None] = (-1, None)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `[n, …]` in native byte order."""
        pieces = []
        while start < stop:
            number, first = divmod(start, self._height)
            piece = self._block(number)[first : first + stop - start]
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _block(self, number: int) -> NDArray[Any]:
        if self._last[0] != number or self._last[1] is None:
            begin = number * self._height
            end = min(begin + self._height, len(self._dataset))
            self._last = (-1, None)  # frees memory before allocating the next
            rows = read_rows(self._dataset, begin, end)
            self._last = number, rows.astype(rows.dtype.newbyteorder("="), copy=False)
        rows_now = self._last[1]
        assert rows_now is not None  # noqa: S101 -- for the type checker
        return rows_now
