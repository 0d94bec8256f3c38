"""One LeRobot dataset: shards of whole episodes, whose rows are found by `episode_index`.

Row `t` has the observation before action `t`, the action, and the resulting `next.reward` and
`next.done`. The observation after the last action is not stored.

```
rows of a file          episode_index 3 3 3 4 4 5 5 5 5    frame_index 0 1 2 0 1 0 1 2 3
batches                 [episode 3, episode 4] [episode 5]  of about `_VALUES` numbers
```
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offline_data.episodes import Dropped, EpisodeBatch
from offline_data.episodes.cut import runs_within, with_final_rows
from offline_data.episodes.fields import TERMINATED, TRUNCATED
from offline_data.episodes.joining import concatenate_columns, join_episodes
from offline_data.errors import FormatError
from offline_data.files import human_bytes
from offline_data.plurals import plural
from offline_data.readers.arrow import iter_parquet, iter_ranges, read_table, table_leaves
from offline_data.readers.video import VideoFile
from offline_data.sources.base import RawDataset, Shard, SourceInfo
from offline_data.sources.lerobot.features import (
    FLAGS,
    column_of,
    depth_note,
    read_features,
    select_features,
)
from offline_data.sources.lerobot.metadata import (
    EPISODE,
    FRAME,
    INDEX,
    INFO,
    NUMBERING,
    TASK,
    read_episodes,
    read_info,
    read_tasks,
)
from offline_data.sources.lerobot.video import as_column, frames_of_rows
from offline_data.store.encoded import as_encoded
from offline_data.store.video import StoredVideo, VideoColumn, hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.readers.arrow import ArrowLeaf
    from offline_data.sources.base import Release
    from offline_data.sources.lerobot.features import FeatureLeaf
    from offline_data.sources.lerobot.metadata import Video

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
NOTE_VIDEO = (
    "The frame of a row is the one at its place in the video, if there are as many frames as rows and "
    "none is further than half a frame from its row after the median is taken off, else the nearest; "
    "frame_shift in the episode table is the largest difference of their times in seconds."
)
NO_FILES = "None of its video files is there."
SKIPPED = "Videos are not stored, as requested."

_SHARD_BYTES = 64 << 20
"""Bytes of the files of a shard that has more than one."""
_VALUES = 4 << 20
"""Numbers of the rows that are read at once."""
_IMAGE = 1 << 16
"""Numbers that the row of an image counts as."""


Reading: TypeAlias = "Callable[[], EpisodeBatch]"


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
        self._video = release.video or "keep"
        info = read_info(folder)
        self._fps = info.fps
        self._tasks = read_tasks(folder, sizes)
        features, dropped = read_features(info.features, str(folder / INFO))
        features, left_out = select_features(features, release.only, str(folder / INFO))
        cameras = [one.name for one in features if one.kind == "video"]
        self._episodes = read_episodes(
            folder, info, sizes, [] if self._video == "skip" else cameras
        )
        self._of: dict[str, list[int]] = {}
        for number, file in enumerate(self._episodes.files):
            self._of.setdefault(file, []).append(number)
        self._declared = frozenset(info.features)
        videos = self._episodes.videos
        gone = sorted(set(cameras) - videos.keys())
        self._features = [one for one in features if one.name not in gone]
        why = SKIPPED if self._video == "skip" else NO_FILES
        dropped += [Dropped(name, why) for name in gone]
        flag = next((name for name in FLAGS[:2] if name in info.features), None)
        notes = [NOTE_FINAL, NOTE_NUMBERS]
        notes += [] if flag == FLAGS[1] else [NOTE_DONE if flag else NOTE_TRUNCATED]
        warnings = []
        if absent := self._episodes.absent:
            warnings.append(
                f"No video of {' and '.join(absent)} is there ({', '.join(absent.values())}): "
                "copy or download them, too, and convert again with --force; or --video skip."
            )
        if left_out:
            notes.append(f"Features that were not requested: {', '.join(left_out)}.")
        count = int(self._episodes.lengths.sum())
        if pixels := sum(prod(one.shape) for one in self._features if one.kind == "video"):
            notes.append(NOTE_VIDEO)
            films = [one.name for one in self._features if one.kind == "video"]
            notes += filter(None, (depth_note(name, info.features[name]) for name in films))
            if self._video != "keep":
                size = human_bytes(count * pixels // (1 if self._video == "raw" else 2))
                how = "pixels" if self._video == "raw" else "PNG images"
                warnings.append(
                    f"Frames of videos are stored as {how}, about {size}; --video keep stores the "
                    "mp4 files."
                )
        widths = {"image": _IMAGE, "video": 2 if self._video == "keep" else _IMAGE}
        self._width = sum(widths.get(one.kind, prod(one.shape)) for one in self._features)
        self._shards = self._cut_shards(sizes, release.episodes)
        self.info = SourceInfo(
            transitions=count,
            episodes=len(self._episodes.lengths),
            spaces=_spaces(features),
            about=info.about,
            licence=release.licence,
            notes=tuple(notes),
            warnings=tuple(warnings),
            dropped=tuple(dropped),
        )

    def shards(self) -> Sequence[Shard]:
        """List runs of episodes whose files have some 64 MB, at least one file."""
        return [shard for shard, _ in self._shards.values()]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        """Read the episodes of a shard in order."""
        return join_episodes(self._readings(self._shards[shard.name][1]), skip_bad=self._skip_bad)

    def _cut_shards(
        self, sizes: Mapping[str, int | None], asked: tuple[int | None, int | None] | None
    ) -> dict[str, tuple[Shard, tuple[int, int]]]:
        """Return the shards by name, each with its range of episodes; one begins where `asked` does."""
        found: dict[str, tuple[Shard, tuple[int, int]]] = {}
        lists = [self._episodes.files, *(video.files for video in self._episodes.videos.values())]
        first, taken = 0, dict[str, int]()
        for number, files in enumerate([*zip(*lists, strict=True), ()]):
            new = {file: sizes.get(file) or 0 for file in files if file not in taken}
            full = new and sum(taken.values()) + sum(new.values()) > _SHARD_BYTES
            if taken and (full or not files or number in (asked or ())):
                name = f"episodes {first} to {number - 1}"
                size = sum(taken.values()) or None
                shard = Shard(name, tuple(taken), size, number - first)
                found[name] = shard, (first, number)
                first, taken = number, {}
            taken |= {file: sizes.get(file) or 0 for file in files}
        return found

    def _readings(self, bounds: tuple[int, int]) -> Iterator[tuple[str, Reading]]:
        first, stop = bounds
        with closing(_Films(self._folder, self._episodes.videos, self._video)) as films:
            for file, run in groupby(range(first, stop), self._episodes.files.__getitem__):
                yield from self._of_file(file, np.array(list(run)), films)

    def _of_file(
        self, file: str, wanted: NDArray[np.int64], films: _Films
    ) -> Iterator[tuple[str, Reading]]:
        """Yield what reads the episodes of a file: several at once, or one by one to skip bad ones."""
        path, lengths = self._folder / file, self._episodes.lengths[wanted]
        whole = read_table([path]) if len(self._of[file]) == 1 else None
        rows = _read_rows(path, whole, self._of[file])
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
        if rows.order is None and whole is None:
            tables = iter_ranges(path, ranges, columns, 64 if self._width > _IMAGE else 1024)
        else:
            whole = read_table([path], columns) if whole is None else whole
            whole = whole if rows.order is None else whole.take(rows.order)
            tables = (whole.slice(first, stop - first) for first, stop in ranges)
        others = rows.columns - self._declared - {*NUMBERING, *(() if self._tasks else ("task",))}
        dropped = [Dropped(name, f"{INFO} does not list it.") for name in sorted(others)]
        for first, stop in runs:
            numbers = wanted[first:stop]
            several = len(numbers) > 1
            where = f"{path}, episode{'s' * several} {numbers[0]}"
            where += f" to {numbers[-1]}" * several
            if problem := problems.get(int(numbers[0])):
                yield where, partial(_refuse, problem)
            else:
                yield where, partial(self._batch, next(tables), numbers, dropped, films)

    def _batch(
        self,
        table: Any,
        numbers: NDArray[np.int64],
        undeclared: Sequence[Dropped],
        films: _Films,
    ) -> EpisodeBatch:
        """Return whole episodes from their rows."""
        lengths = self._episodes.lengths[numbers]
        leaves = {leaf.path[0]: leaf for leaf in table_leaves(table) if leaf.path[1:] != ("path",)}
        dropped = list(undeclared)
        notes = []
        steps: dict[Key, Any] = {}
        observations: dict[Key, Any] = {}
        for feature in (one for one in self._features if one.kind != "video"):
            if feature.name not in leaves:
                raise FormatError(f"it has no column {feature.name}, which {INFO} lists")
            column = column_of(leaves[feature.name], feature)
            if feature.key[0] != "observation":
                steps[feature.key] = column
            elif as_encoded(column) is not None:
                observations[feature.key] = column[with_final_rows(np.arange(len(column)), lengths)]
            else:
                observations[feature.key] = with_final_rows(column, lengths)
        episodes: dict[Key, Any] = {(EPISODE,): numbers}
        time = steps.get(("timestamp",))
        step = np.arange(len(table)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        seconds = step / self._fps if time is None else time.reshape(-1).astype(np.float64)
        for feature in (one for one in self._features if one.kind == "video"):
            each = np.split(seconds, np.cumsum(lengths)[:-1])
            frames = [
                films.read(feature.name, number, rows, self._fps)
                for number, rows in zip(numbers.tolist(), each, strict=True)
            ]
            observations[feature.key] = concatenate_columns([column for column, _ in frames])
            shift: Key = ("frame_shift", *feature.key[1:])
            episodes[shift] = np.array([apart for _, apart in frames], np.float32)
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
        if time is not None and (abs(time * self._fps - np.rint(time * self._fps)) > 0.01).any():
            notes.append(NOTE_OFF_GRID)
        if ("task",) not in steps and (task := self._task(leaves)) is not None:
            steps["task",] = task
        return EpisodeBatch(
            lengths,
            steps,
            observations,
            np.zeros(len(lengths), bool),
            episodes,
            tuple(dropped),
            tuple(notes),
        )

    def _task(self, leaves: Mapping[str, Any]) -> Any:
        """Return the text of the task of each row, or its number if there are no texts; or None."""
        if TASK in leaves:
            numbers = _integers(leaves[TASK], "it")
            return numbers if self._tasks is None else self._tasks.of(numbers)
        return leaves["task"].values if "task" in leaves else None


class _Films:
    """The video of each camera that is being read; `how` is the option `video`."""

    def __init__(self, folder: Path, videos: Mapping[str, Video], how: str) -> None:
        self._folder, self._videos, self._how = folder, videos, how
        self._open: dict[str, tuple[str, VideoFile]] = {}
        self._kept: dict[str, StoredVideo] = {}

    def close(self) -> None:
        """Close the files."""
        for _, film in self._open.values():
            film.close()

    def read(self, camera: str, number: int, rows: NDArray[Any], fps: float) -> tuple[Any, float]:
        """Return the frames of an episode, the last one twice, and the largest `frame_shift`."""
        video = self._videos[camera]
        file = video.files[number]
        name, film = self._open.get(camera, ("", None))
        if film is None or name != file:
            if film is not None:
                film.close()
                del self._open[camera]
            film = VideoFile(self._folder / file)
            self._open[camera] = file, film
            if self._how == "keep":
                path = self._folder / file
                self._kept[camera] = StoredVideo(path, *hash_file(path), known=film.index)
        try:
            frames, apart = frames_of_rows(film.times, video.bounds[number], rows, fps)
        except FormatError as error:
            raise FormatError(f"{file}: {error.message}") from None
        if self._how == "keep":
            pairs = np.zeros((len(frames) + 1, 2), np.int32)
            pairs[:, 1] = [*frames, frames[-1]]
            return VideoColumn(
                [self._kept[camera]], pairs, ("video", film.dtype, film.shape), camera
            ), apart
        return as_column(film.read(frames), camera, raw=self._how == "raw"), apart


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


def _read_rows(path: Path, whole: Any, expected: Sequence[int]) -> _NumberedRows:
    """Return how the rows of a file are numbered.

    `whole` is its table, if that has been read; `expected` are the episodes in it.
    """
    names = frozenset((next(iter_parquet(path)) if whole is None else whole).column_names)
    by = next((name for name in (FRAME, INDEX, "timestamp") if name in names), None)
    if by is None:
        raise FormatError(f"{path} has none of {FRAME}, {INDEX} and timestamp: rows have no order")
    wanted = [name for name in (EPISODE, FRAME, INDEX, by) if name in names]
    table = read_table([path], wanted) if whole is None else whole.select(dict.fromkeys(wanted))
    leaves = {leaf.path[0]: leaf for leaf in table_leaves(table)}
    time = leaves[by].values if by == "timestamp" else None
    numbers = {name: _integers(leaves[name], str(path)) for name in leaves if name != "timestamp"}
    if EPISODE in numbers:
        episodes = numbers.pop(EPISODE)
    elif len(expected) == 1:  # as its name tells
        episodes = np.full(len(table), expected[0])
    else:
        raise FormatError(f"{path} has no column {EPISODE}, and {plural(len(expected), 'episode')}")
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
