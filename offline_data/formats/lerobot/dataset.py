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
from functools import partial
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import human_bytes
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.cut import runs_within, with_final_rows
from offline_data.episode.fields import ACTION_ROOTS, TERMINATED, TRUNCATED
from offline_data.episode.joining import concatenate_columns, join_episodes
from offline_data.episode.notes import count_rows
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.lerobot.features import (
    FLAGS,
    column_of,
    depth_note,
    read_features,
    select_features,
)
from offline_data.formats.lerobot.metadata import (
    EPISODE,
    INFO,
    NUMBERING,
    TASK,
    read_episodes,
    read_info,
    read_tasks,
)
from offline_data.formats.lerobot.rows import DataFiles, image_files, integers, read_rows
from offline_data.formats.lerobot.video import AT_ONCE, as_pixels, as_png, frames_of_rows
from offline_data.raw.arrow import iter_ranges, read_table, table_leaves
from offline_data.raw.pixels import at_once, fits
from offline_data.raw.video import VideoFile
from offline_data.store.encoded import PixelColumn, as_encoded
from offline_data.store.video import StoredVideo, VideoColumn, hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episode import Key
    from offline_data.formats.base import Release
    from offline_data.formats.lerobot.features import FeatureLeaf
    from offline_data.formats.lerobot.metadata import Video
    from offline_data.raw.arrow import ArrowLeaf

NOTE_FINAL = (
    "The observation after the last action of an episode is not in the source, and the last one is "
    "repeated there."
)
NOTE_DONE = (
    "An episode whose last row has next.done is terminated, although LeRobot does not tell a time "
    "limit from an end of the task; all others are truncated."
)
NOTE_TRUNCATED = "The source does not say how episodes end: all are truncated."
NOTE_EARLY = "next.done is set before the last row of an episode, which is not cut there."
NOTE_NUMBERS = (
    "Rows are in the order of episode_index and frame_index, which are not kept as features; the episode table "
    "has episode_index, and the text of task_index is the feature task."
)
NOTE_OFF_GRID = "the timestamp is not a multiple of 1/fps; it is as recorded."
NOTE_VIDEO = (
    "The frame of a row is the one at its place in the video, if there are as many frames as rows and "
    "none is further than half a frame from its row after the median is taken off, else the nearest; "
    "frame_shift in the episode table is the largest difference of their times in seconds, extra_frames "
    "how many more frames than rows there are."
)
NO_FILES = "None of its video files is there."
SKIPPED = "Videos are not stored, as requested."

_SHARD_BYTES = 64 << 20  # bytes of the files of a shard that has more than one
_VALUES = 4 << 20  # numbers of the rows that are read at once
_IMAGE = 1 << 16  # numbers that the row of an image counts as


Reading: TypeAlias = "Callable[[], EpisodeBatch]"


class LeRobotDataset(RawDataset):
    """The episodes of a dataset; raises `FormatError` if it is damaged, or of a version not read.

    `folder` is its root: `meta` is there, data files are when they are read. `sizes` are the bytes
    of its files by path, if known.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int | None], release: Release) -> None:
        self._folder, self._skip_bad = folder, release.options.skip_bad_episodes
        self._video = release.options.video or "keep"
        info = read_info(folder)
        self._fps = info.fps
        self._tasks = read_tasks(folder, sizes)
        features, dropped = read_features(info.features, str(folder / INFO))
        features, left_out = select_features(features, release.options.only, str(folder / INFO))
        cameras = [one.name for one in features if one.kind == "video"]
        self._episodes = read_episodes(
            folder, info, sizes, [] if self._video == "skip" else cameras
        )
        self._data = DataFiles(folder, sizes, self._episodes)
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
                f"The videos of {' and '.join(absent)} are missing ({', '.join(absent.values())}): "
                "copy or download them, and convert again with --force; or --video skip."
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
        widths = {"image": _IMAGE}
        if self._video != "raw":  # pixels are in memory
            widths["video"] = 2 if self._video == "keep" else _IMAGE
        self._width = sum(widths.get(one.kind, prod(one.shape)) for one in self._features)
        self._shards = self._cut_shards(sizes, release.options.episodes)
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
        return [shard for shard, _ in self._shards.values()]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        return join_episodes(self._readings(self._shards[shard.name][1]), skip_bad=self._skip_bad)

    def lacking(self, shard: Shard) -> Sequence[str]:
        return self._data.lacking(*self._shards[shard.name][1])

    def _cut_shards(
        self, sizes: Mapping[str, int | None], asked: tuple[int | None, int | None] | None
    ) -> dict[str, tuple[Shard, tuple[int, int]]]:
        """Return the shards by name, each with its range of episodes; one begins where `asked` does."""
        found: dict[str, tuple[Shard, tuple[int, int]]] = {}
        lists: list[Sequence[Any]] = [
            self._episodes.files,
            *(video.files for video in self._episodes.videos.values()),
        ]
        images = image_files(sizes, [one.name for one in self._features if one.kind == "image"])
        lists.append([images.get(number, ()) for number in self._episodes.numbers.tolist()])
        first, taken = 0, dict[str, int]()
        for number, (*some, more) in enumerate([*zip(*lists, strict=True), ((),)]):
            files = (*some, *more)
            new = {file: sizes.get(file) or 0 for file in files if file not in taken}
            full = new and sum(taken.values()) + sum(new.values()) > _SHARD_BYTES
            if taken and (full or not files or number in (asked or ())):
                name = "episodes {} to {}".format(*self._episodes.numbers[[first, number - 1]])
                size = sum(taken.values()) or None
                rows = int(self._episodes.lengths[first:number].sum())
                shard = Shard(name, tuple(taken), size, number - first, rows)
                found[name] = shard, (first, number)
                first, taken = number, {}
            taken |= {file: sizes.get(file) or 0 for file in files}
        return found

    def _readings(self, bounds: tuple[int, int]) -> Iterator[tuple[str, Reading]]:
        first, stop = bounds
        with closing(
            _Films(self._folder, self._episodes.videos, self._video, decode=self._skip_bad)
        ) as films:
            for file, run in groupby(range(first, stop), self._data.of):
                yield from self._of_file(file, np.array(list(run)), films)

    def _of_file(
        self, file: str, places: NDArray[np.int64], films: _Films
    ) -> Iterator[tuple[str, Reading]]:
        """Yield what reads the episodes of a file: several at once, or one by one to skip bad ones."""
        path, lengths = self._folder / file, self._episodes.lengths[places]
        wanted = self._episodes.numbers[places]
        whole = None if self._data.shared else read_table([path])
        rows = read_rows(path, whole, self._data.listed.get(file, []))
        self._data.check_others(file, rows.episodes)
        starts = np.searchsorted(rows.episodes, wanted)
        problems = rows.problems(wanted, starts, lengths)
        apart = bool((starts[1:] != (starts + lengths)[:-1]).any())
        alone = self._skip_bad or apart or bool(problems)
        runs = runs_within(lengths * self._width, 1 if alone else _VALUES)
        ranges = [
            (int(starts[first]), int(starts[stop - 1] + lengths[stop - 1]))
            for first, stop in runs
            if int(wanted[first]) not in problems
        ]
        columns = [*(one.name for one in self._features), TASK, "task"]
        if rows.order is None and whole is None:
            tables = iter_ranges([path], ranges, columns, 64 if self._width > _IMAGE else 1024)
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
                yield where, partial(self._batch, next(tables), places[first:stop], dropped, films)

    def _batch(
        self,
        table: Any,
        places: NDArray[np.int64],
        undeclared: Sequence[Dropped],
        films: _Films,
    ) -> EpisodeBatch:
        """Return whole episodes, by their places in the list, from their rows."""
        lengths = self._episodes.lengths[places]
        leaves: dict[str, ArrowLeaf] = {}
        paths: dict[str, ArrowLeaf] = {}
        for one in table_leaves(table):
            (paths if one.path[1:] == ("path",) else leaves)[one.path[0]] = one
        dropped = list(undeclared)
        notes = []
        steps: dict[Key, Any] = {}
        observations: dict[Key, Any] = {}
        for feature in (one for one in self._features if one.kind != "video"):
            name = feature.name
            leaf = leaves.get(name)
            if feature.kind == "image":
                leaf = self._data.images(leaf, paths.get(name))
            if leaf is None:
                if feature.key[0] in ACTION_ROOTS or self._data.has_column(name):
                    raise FormatError(f"it has no column {name}, which {INFO} lists")
                notes.append(f"{INFO} lists the feature {name}, which no file has.")
                continue
            column = column_of(leaf, feature)
            if feature.key[0] != "observation":
                steps[feature.key] = column
            elif as_encoded(column) is not None:
                observations[feature.key] = column[with_final_rows(np.arange(len(column)), lengths)]
            else:
                observations[feature.key] = with_final_rows(column, lengths)
        episodes: dict[Key, Any] = {(EPISODE,): self._episodes.numbers[places]}
        time = steps.get(("timestamp",))
        step = np.arange(len(table)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        seconds = step / self._fps if time is None else time.reshape(-1).astype(np.float64)
        for feature in (one for one in self._features if one.kind == "video"):
            each = np.split(seconds, np.cumsum(lengths)[:-1])
            frames = [
                films.read(feature.name, place, rows, self._fps)
                for place, rows in zip(places.tolist(), each, strict=True)
            ]
            columns, shifts, more = zip(*frames, strict=True)
            observations[feature.key] = concatenate_columns(list(columns))
            shift: Key = ("frame_shift", *feature.key[1:])
            extra: Key = ("extra_frames", *feature.key[1:])
            episodes[shift] = np.array(shifts, np.float32)
            episodes[extra] = np.array(more, np.int32)
        flags = {name: steps.pop(tuple(name.split(".")), None) for name in FLAGS}
        last = np.zeros((len(table), 1), bool)
        last[np.cumsum(lengths) - 1] = True
        done, terminated, truncated = (
            _flag(name, flag, len(table)) for name, flag in flags.items()
        )
        ended = done if terminated is None else terminated
        terminated = np.zeros_like(last) if ended is None else ended
        if early := int(np.count_nonzero(terminated & ~last)):
            notes.append(count_rows(early, NOTE_EARLY))
        steps[TERMINATED] = terminated
        steps[TRUNCATED] = last & ~terminated
        if truncated is not None:
            steps[TRUNCATED] |= truncated
        frames_at = np.zeros(0) if time is None else time * self._fps
        if off := int(np.count_nonzero(abs(frames_at - np.rint(frames_at)) > 0.01)):
            notes.append(count_rows(off, NOTE_OFF_GRID))
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
            numbers = integers(leaves[TASK], "it")
            return numbers if self._tasks is None else self._tasks.of(numbers)
        return leaves["task"].values if "task" in leaves else None


class _Films:
    """The video of each camera that is being read.

    `how` is the option `video`; `decode`: whether pixels that are decoded later are decoded here, too,
    so that damage is found where an episode can be skipped.
    """

    def __init__(
        self, folder: Path, videos: Mapping[str, Video], how: str, *, decode: bool
    ) -> None:
        self._folder, self._videos, self._how, self._decode = folder, videos, how, decode
        self._open: dict[str, tuple[str, VideoFile]] = {}
        self._kept: dict[str, StoredVideo] = {}

    def close(self) -> None:
        for _, film in self._open.values():
            film.close()

    def read(
        self, camera: str, place: int, rows: NDArray[Any], fps: float
    ) -> tuple[Any, float, int]:
        """Return the frames of an episode, the last one twice, its `frame_shift` and `extra_frames`."""
        video = self._videos[camera]
        file = video.files[place]
        name, film = self._open.get(camera, ("", None))
        if film is None or name != file:
            if film is not None:
                film.close()
                del self._open[camera]
            film = VideoFile(self._folder / file)
            if self._how == "keep":
                film.settle_keys()
                path = self._folder / file
                self._kept[camera] = StoredVideo(path, *hash_file(path), known=film.index)
            self._open[camera] = file, film
        try:
            frames, apart, more = frames_of_rows(film.times, video.bounds[place], rows, fps)
        except FormatError as error:
            raise FormatError(f"{file}: {error.message}", hint=error.shell_hint) from None
        large = self._how == "raw" and not fits(max(len(frames) + 1, AT_ONCE) * film.nbytes)
        if self._how != "keep" and not large:
            images = film.read(frames)
            if self._how == "raw":
                return as_pixels(images, (len(frames) + 1, *film.shape), film.dtype), apart, more
            return as_png(images, camera, min(AT_ONCE, at_once(film.nbytes, copies=3))), apart, more
        pairs = np.zeros((len(frames) + 1, 2), np.int32)
        pairs[:, 1] = [*frames, frames[-1]]
        path = self._folder / file
        kept = StoredVideo(path, 0, str(path), known=film.index) if large else self._kept[camera]
        column = VideoColumn([kept], pairs, ("video", film.dtype, film.shape), camera)
        for _ in column.blocks() if large and self._decode else ():
            pass
        return PixelColumn(column) if large else column, apart, more


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
