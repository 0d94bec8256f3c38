"""One LeRobot dataset: shards of whole episodes, whose rows are found by `episode_index`.

Row `t` has the observation before action `t`, the action, and the resulting `next.reward` and
`next.done`. The observation after the last action is not stored.

```
rows of a file          episode_index 3 3 3 4 4 5 5 5 5    frame_index 0 1 2 0 1 0 1 2 3
batches                 [episode 3, episode 4] [episode 5]  of about `_VALUES` numbers
```
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import Dropped, EpisodeBatch
from offline_data.episodes.cut import runs_within, with_final_rows
from offline_data.episodes.fields import TERMINATED, TRUNCATED
from offline_data.episodes.joining import join_episodes
from offline_data.errors import FormatError
from offline_data.plurals import plural
from offline_data.readers.arrow import iter_parquet, iter_ranges, read_table, table_leaves
from offline_data.sources.base import RawDataset, Shard, SourceInfo
from offline_data.sources.lerobot.features import (
    EPISODE,
    FLAGS,
    FRAME,
    INDEX,
    NUMBERING,
    TASK,
    column_of,
    read_features,
)
from offline_data.sources.lerobot.metadata import INFO, read_episodes, read_info, read_tasks
from offline_data.store.encoded import as_encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.readers.arrow import ArrowLeaf
    from offline_data.sources.base import Release
    from offline_data.sources.lerobot.features import FeatureLeaf

NOTE_FINAL = (
    "The observation after the last action of an episode is not in the source, and the last one is "
    "repeated there."
)
NOTE_DONE = (
    "An episode whose last row has next.done is terminated, although LeRobot does not tell a time "
    "limit from an end of the task; all others are truncated."
)
NOTE_TRUNCATED = "The source does not say how episodes end: all are truncated."
NOTE_EARLY = "next.done is set before the last row of some episodes, which are not cut there."
NOTE_NUMBERS = (
    "Rows are in the order of episode_index and frame_index, which are not leaves; the episode table "
    "has episode_index, and the text of task_index is the leaf task."
)
NOTE_OFF_GRID = "The timestamps of some episodes are not multiples of 1/fps; they are as recorded."
NO_VIDEO = "It is video, which is not read yet."

_SHARD_BYTES = 64 << 20
"""Bytes of the files of a shard that has more than one."""
_VALUES = 4 << 20
"""Numbers of the rows that are read at once."""
_IMAGE = 1 << 16
"""Numbers that the row of an image counts as."""


class LeRobotDataset(RawDataset):
    """The episodes of a dataset.

    Args:
        folder: The root of the dataset; `meta` is there, data files are when they are read.
        sizes: Bytes of the files of the dataset, if known, by path.
        release: Options, licence, and the name for messages.

    Raises:
        FormatError: It is of a version or storage that is not read, or damaged.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int | None], release: Release) -> None:
        self._folder, self._skip_bad = folder, release.skip_bad_episodes
        info = read_info(folder)
        self._fps = info.fps
        self._tasks = read_tasks(folder, sizes)
        self._episodes = read_episodes(folder, info, sizes)
        self._of: dict[str, list[int]] = {}
        for number, file in enumerate(self._episodes.files):
            self._of.setdefault(file, []).append(number)
        features, dropped = read_features(info.features, str(folder / INFO))
        self._declared = frozenset(info.features)
        self._features = [one for one in features if one.kind != "video"]
        videos = [one.name for one in features if one.kind == "video"]
        dropped += [Dropped(name, NO_VIDEO) for name in videos]
        done = next((name for name in FLAGS[:2] if name in info.features), None)
        how = NOTE_DONE if done == FLAGS[0] else NOTE_TRUNCATED if done is None else None
        self._width = sum(_IMAGE if f.kind == "image" else prod(f.shape) for f in self._features)
        self._shards = self._cut_shards(sizes)
        self.info = SourceInfo(
            transitions=int(self._episodes.lengths.sum()),
            episodes=len(self._episodes.lengths),
            spaces=_spaces(features),
            about=info.about,
            licence=release.licence,
            notes=(NOTE_FINAL, NOTE_NUMBERS, *([how] if how else [])),
            warnings=(f"Videos are left out: {', '.join(videos)}.",) if videos else (),
            dropped=tuple(dropped),
        )

    def shards(self) -> Sequence[Shard]:
        """List runs of episodes whose files have some 64 MB, at least one file."""
        return [shard for shard, _ in self._shards.values()]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        """Read the episodes of a shard in order."""
        return join_episodes(self._readings(self._shards[shard.name][1]), skip_bad=self._skip_bad)

    def _cut_shards(
        self, sizes: Mapping[str, int | None]
    ) -> dict[str, tuple[Shard, tuple[int, int]]]:
        """Return the shards by name, each with its range of episodes."""
        found: dict[str, tuple[Shard, tuple[int, int]]] = {}
        files = self._episodes.files
        runs = [(file, len(list(run))) for file, run in groupby(files)]
        first = stop = 0
        taken: dict[str, int] = {}
        for number, (file, count) in enumerate(runs):
            taken[file] = sizes.get(file) or 0
            stop += count
            after = sizes.get(runs[number + 1][0]) or 0 if number + 1 < len(runs) else _SHARD_BYTES
            if sum(taken.values()) + after >= _SHARD_BYTES:
                name = f"episodes {first} to {stop - 1}"
                size = sum(taken.values()) or None
                found[name] = Shard(name, tuple(taken), size, stop - first), (first, stop)
                first, taken = stop, {}
        return found

    def _readings(
        self, bounds: tuple[int, int]
    ) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        first, stop = bounds
        for file, run in groupby(range(first, stop), self._episodes.files.__getitem__):
            yield from self._of_file(file, np.array(list(run)))

    def _of_file(
        self, file: str, wanted: NDArray[np.int64]
    ) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        """Yield what reads the episodes of a file: several at once, or one by one to skip bad ones."""
        path, lengths = self._folder / file, self._episodes.lengths[wanted]
        rows = _read_rows(path, self._of[file])
        starts = np.searchsorted(rows.episodes, wanted)
        problems = rows.problems(wanted, starts, lengths)
        alone = self._skip_bad or bool(problems)
        runs = runs_within(lengths * self._width, 1 if alone else _VALUES)
        ranges = [
            (int(starts[first]), int(starts[stop - 1] + lengths[stop - 1]))
            for first, stop in runs
            if int(wanted[first]) not in problems
        ]
        columns = [*(one.name for one in self._features), TASK, "task"]
        if rows.order is None:
            at_once = 64 if self._width > _IMAGE else 1024
            tables = iter_ranges(path, ranges, columns, at_once)
        else:
            whole = read_table([path], columns)
            tables = (whole.take(rows.order[first:stop]) for first, stop in ranges)
        others = (
            rows.columns - self._declared - {*NUMBERING, *(["task"] if self._tasks is None else [])}
        )
        dropped = [Dropped(name, f"{INFO} does not list it.") for name in sorted(others)]
        for first, stop in runs:
            numbers = wanted[first:stop]
            where = f"{path}, episode{'s' * (len(numbers) > 1)} {numbers[0]}"
            where += f" to {numbers[-1]}" if len(numbers) > 1 else ""
            if problem := problems.get(int(numbers[0])):
                yield where, partial(_refuse, problem)
            else:
                yield where, partial(self._batch, next(tables), numbers, dropped)

    def _batch(
        self, table: Any, numbers: NDArray[np.int64], undeclared: Sequence[Dropped]
    ) -> EpisodeBatch:
        """Return whole episodes from their rows."""
        lengths = self._episodes.lengths[numbers]
        leaves = {leaf.path[0]: leaf for leaf in table_leaves(table) if leaf.path[1:] != ("path",)}
        dropped = list(undeclared)
        notes = []
        steps: dict[Any, Any] = {}
        observations: dict[Any, Any] = {}
        for feature in self._features:
            if feature.name not in leaves:
                raise FormatError(f"it has no column {feature.name}, which {INFO} lists")
            column = column_of(leaves[feature.name], feature)
            if isinstance(column, Dropped):
                dropped.append(column)
            elif feature.key[0] != "observation":
                steps[feature.key] = column
            elif as_encoded(column) is not None:
                observations[feature.key] = column[with_final_rows(np.arange(len(column)), lengths)]
            else:
                observations[feature.key] = with_final_rows(column, lengths)
        flags = {name: steps.pop(tuple(name.split(".")), None) for name in FLAGS}
        last = np.zeros((len(table), 1), bool)
        last[np.cumsum(lengths) - 1] = True
        done, terminated, truncated = (
            _flag(name, flag, len(table)) for name, flag in flags.items()
        )
        ended = done if terminated is None else terminated
        terminated = np.zeros_like(last) if ended is None else ended
        if (terminated & ~last).any():
            notes.append(NOTE_EARLY)
        steps[TERMINATED] = terminated
        steps[TRUNCATED] = last & ~terminated
        if truncated is not None:
            steps[TRUNCATED] |= truncated
        time = steps.get(("timestamp",))
        if time is not None and (abs(time * self._fps - np.rint(time * self._fps)) > 0.01).any():
            notes.append(NOTE_OFF_GRID)
        if ("task",) not in steps and (task := self._task(leaves)) is not None:
            steps["task",] = task
        return EpisodeBatch(
            lengths,
            steps,
            observations,
            np.zeros(len(lengths), bool),
            {(EPISODE,): numbers},
            tuple(dropped),
            tuple(notes),
        )

    def _task(self, leaves: Mapping[str, Any]) -> Any:
        """Return the text of the task of each row, or its number if there are no texts; or None."""
        if TASK in leaves:
            numbers = _integers(leaves[TASK], "it")
            return numbers if self._tasks is None else self._tasks.of(numbers)
        return leaves["task"].values if "task" in leaves else None


@dataclass(frozen=True)
class _NumberedRows:
    """The rows of a file, ordered by `episode_index` and `frame_index`."""

    columns: frozenset[str]
    """Names of the columns of the file."""
    episodes: NDArray[np.int64]
    """`[N]` episode of each row, ascending."""
    numbers: Mapping[str, NDArray[np.int64]]
    """`frame_index` and `index` `[N]`, if there."""
    order: NDArray[np.intp] | None
    """`[N]` the row in the file; None: the same."""

    def problems(
        self, wanted: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> dict[int, str]:
        """Return why an episode cannot be read, by its number: rows are missing, or there twice."""
        found: dict[int, str] = {}
        step = np.arange(len(self.episodes)) - np.searchsorted(self.episodes, self.episodes)
        for name, values in self.numbers.items():
            first = values - step
            odd = first != (0 if name == FRAME else first[np.arange(len(first)) - step])
            rows = np.flatnonzero(odd)
            for row in rows[np.unique(self.episodes[rows], return_index=True)[1]].tolist():
                before = f" after {values[row - 1]}" if step[row] else ""
                found.setdefault(int(self.episodes[row]), f"its {name} is {values[row]}{before}")
        counts = np.searchsorted(self.episodes, wanted, side="right") - starts
        for place in np.flatnonzero(counts != lengths).tolist():
            found.setdefault(
                int(wanted[place]),
                f"it has {plural(int(counts[place]), 'row')}; meta/episodes says {lengths[place]}",
            )
        return found


def _read_rows(path: Path, expected: Sequence[int]) -> _NumberedRows:
    """Read the columns of a file that number its rows; `expected` are the episodes in it."""
    names = frozenset(next(iter_parquet(path)).column_names)
    by = next((name for name in (FRAME, INDEX, "timestamp") if name in names), None)
    if by is None:
        raise FormatError(f"{path} has none of {FRAME}, {INDEX} and timestamp: rows have no order")
    table = read_table([path], [EPISODE, FRAME, INDEX, by])
    leaves = {leaf.path[0]: leaf for leaf in table_leaves(table)}
    time = leaves[by].values if by == "timestamp" else None
    numbers = {name: _integers(leaves[name], str(path)) for name in leaves if name != "timestamp"}
    if EPISODE in numbers:
        episodes = numbers.pop(EPISODE)
    elif len(expected) == 1:  # as its name tells
        episodes = np.full(len(table), expected[0])
    else:
        raise FormatError(f"{path} has no column {EPISODE}, and {len(expected)} episodes")
    others = np.setdiff1d(episodes, expected)
    if len(others):
        raise FormatError(
            f"{path} has rows of episode {others[0]}, which meta/episodes does not list there"
        )
    order = np.lexsort((numbers[by] if time is None else time, episodes))
    if (order == np.arange(len(order))).all():
        return _NumberedRows(names, episodes, numbers, None)
    numbers = {name: values[order] for name, values in numbers.items()}
    return _NumberedRows(names, episodes[order], numbers, order)


def _integers(leaf: ArrowLeaf, where: str) -> NDArray[np.int64]:
    values = leaf.values
    if (
        values is None
        or values.dtype.kind not in "iu"
        or values.size != len(values)
        or leaf.nulls is not None
    ):
        raise FormatError(
            f"{where}: {leaf.path[0]} is {leaf.kind}; expected an integer in each row"
        )
    return values.reshape(-1).astype(np.int64)


def _refuse(problem: str) -> EpisodeBatch:
    raise FormatError(problem)


def _flag(name: str, column: Any, rows: int) -> NDArray[np.bool_] | None:
    if column is None:
        return None
    if column.size != rows or column.dtype.kind not in "biu":
        raise FormatError(
            f"{name} is {column.dtype} {list(column.shape)}; expected a flag in each row"
        )
    return np.asarray(column.reshape(rows, 1), bool)


def _spaces(features: Sequence[FeatureLeaf]) -> dict[str, Any]:
    """Return observations and actions, as `{"observation": {name: "float32 [7]"}, …}`."""
    spaces: dict[str, Any] = {}
    for feature in features:
        root, *below = feature.key
        if root in {"observation", "action"}:
            kind = feature.dtype if feature.kind == "number" else feature.kind
            what = f"{kind} {list(feature.shape)}"
            if below:
                spaces.setdefault(root, {})["/".join(below)] = what
            else:
                spaces[root] = what
    return spaces
