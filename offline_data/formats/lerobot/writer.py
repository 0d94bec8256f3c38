"""LeRobot: Parquet tables, metadata, and mp4 files, as `LeRobotDataset` of versions 3.0 and 2.1 reads them.

```
meta/info.json, meta/stats.json               features, counts; statistics of all rows
meta/tasks.parquet                            text of each task_index
meta/episodes/chunk-000/file-000.parquet      length, files, begin in these, statistics of each episode
data/chunk-000/file-000.parquet               rows of many episodes, a row group for each
videos/<feature>/chunk-000/file-000.mp4       frames of many episodes
```

Version 2.1 has one file for each episode, and JSON lines in place of the tables below `meta`. Row `t`
has the observation and the info before action `t`, the action, and its results: `next.reward`, and as
`next.info.…` the info after it. Source: `lerobot/datasets` of
https://github.com/huggingface/lerobot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import UsageError
from offline_data.base.plurals import shorten
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key
from offline_data.formats.base import Release
from offline_data.formats.lerobot.features import read_features
from offline_data.formats.lerobot.metadata import (
    DATA_PATHS,
    EPISODE,
    FRAME,
    INDEX,
    INFO,
    NUMBERING,
    TASK,
    VIDEO_PATHS,
    fill,
)
from offline_data.formats.lerobot.statistics import (
    Stats,
    merge_stats,
    quantiles_of,
    reduce_image,
    sampled_frames,
    stats_of_images,
    stats_of_rows,
)
from offline_data.formats.registry import get_source
from offline_data.formats.tables.writer import arrow, image_files
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
    Loss,
)
from offline_data.formats.writing.episodes import ExportedEpisodes, ExportMember, Leaf, Table
from offline_data.formats.writing.plan import place_at
from offline_data.raw.video import Mp4Writer, pixel_format
from offline_data.store.quantiles import LEVELS, QuantileSketch

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset
    from offline_data.store.manifest import Manifest

_TASKS = ("task", "language_instruction", "natural_language_instruction", "instruction", "mission")
"""Last parts of names of texts that are the task; the first of these that is there."""
_TASK_TABLE = "meta/tasks"  # place of the leaf that is the task; a name that no column has
_TIME: Key = ("timestamp",)
_NUMBER: Key = ("episode_index",)
_TOLERANCE = 1e-4  # seconds by which a timestamp may differ from `frame_index / fps`, in LeRobot
_SMALLEST = 32  # sides of the smallest uint8 array that is taken for an image
_AT_ONCE = 32  # frames that are in memory at once
_CHUNK = 1000  # files in a folder, and episodes in a file of the list of episodes
_EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_WITHOUT_STATS = {"string", "image", "video"}  # types without numbers in the tables
_DATA_BYTES, _VIDEO_BYTES = 100 << 20, 200 << 20  # size from which on another file is begun


@dataclass(frozen=True)
class _Choices(ExportOptions):
    """The options, and choices that depend on all leaves."""

    state: Key | None = None  # the leaf that is `observation.state`
    task: Key | None = None  # the leaf that is the task
    timed: bool = False  # whether the leaf `timestamp` can be LeRobot's own
    followed: frozenset[Key] = frozenset()  # leaves whose next values are a leaf


class LeRobotTarget(ExportTarget):
    """A folder of LeRobot's format."""

    name = "lerobot"
    title = "LeRobot's Parquet and mp4"
    reads = ("fps", "video", "format_version")
    holds = Holds(
        final_observation=False,
        flags="rows",
        episodes=frozenset({*_TASKS, *_NUMBER}),
        encoded=True,
        dtypes={"float16": "float32", "complex64": None, "complex128": None},
    )
    own: ClassVar = {**dict.fromkeys((*NUMBERING, "task"), ()), "timestamp": (_TIME,)}
    added = frozenset(
        {
            ("episodes", ("episode_index",)),
            ("episodes", ("frame_shift",)),
            ("episodes", ("extra_frames",)),
            ("steps", _TIME),
            ("steps", ("task",)),
        }
    )

    def choose(
        self, episodes: ExportedEpisodes, options: ExportOptions
    ) -> tuple[ExportOptions, Sequence[Loss]]:
        version = options.format_version
        for name, value, known in (
            ("video", options.video, ("h264", "av1", "none")),
            ("format_version", version, ("3.0", "2.1")),
        ):
            if value not in known:
                raise UsageError(f"{name} is {value!r}; expected one of {', '.join(known)}")
        fps, losses = _frames_per_second(episodes.reader.manifest, options.fps)
        leaves = episodes.leaves
        seen = [one for one in leaves if one.key[0] == "observation" and one.dtype != "text"]
        vectors = [one.key for one in seen if not _is_image(one) and len(one.shape) < 2]
        texts = [one.key for one in leaves if one.dtype == "text" and not one.shape]
        tasks = sorted(
            (key for key in texts if key[-1] in _TASKS), key=lambda k: _TASKS.index(k[-1])
        )
        chosen = _Choices(
            fps=fps,
            video=options.video,
            format_version=version,
            state=vectors[0] if len(vectors) == 1 else None,
            task=tasks[0] if tasks else None,
            timed=any(leaf.key == _TIME and leaf.dtype == "float32" for leaf in leaves)
            and all(_keeps_time(member, fps) for member in episodes.members),
            followed=frozenset(leaf.key[1:] for leaf in leaves if leaf.key[0] == "next"),
        )
        for leaf in leaves:
            if (
                leaf.dtype == "uint64"
                and leaf.table != "episodes"
                and _exceeds_int64(leaf, episodes)
            ):
                raise UsageError(
                    f"{shorten(leaf.label)} has values of 2**63 and more, which LeRobot's loader cannot read",
                    hint=f"leave it out: `preprocess ID --step exclude:{leaf.label} --out NAME`",
                )
            odd = _is_video(leaf, chosen) and any(side % 2 for side in leaf.shape[:2])
            if odd and chosen.video == "av1":
                raise UsageError(
                    f"{shorten(leaf.label)} has images of {leaf.shape[0]} x {leaf.shape[1]} pixels; "
                    "av1 has even sizes only",
                    hint="--video h264, or --video none for images",
                )
        return chosen, losses

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:
        options = cast("_Choices", options)
        if leaf.key == options.task:
            return LeafPlace(leaf, _TASK_TABLE, "text", ("task",), "steps")
        if leaf.key == _NUMBER and leaf.table == "episodes":
            return place_at(leaf, f"@{leaf.key[0]}", self.holds)
        if leaf.table == "episodes":
            return "there is no place for columns of episodes"
        name = _feature_name(leaf, options)
        if len(leaf.shape) > 5 or 0 in leaf.shape or (leaf.dtype == "text" and leaf.shape):
            return f"there are no arrays of {leaf.dtype} {list(leaf.shape)}"
        dtype = self.holds.dtypes.get(leaf.dtype) or leaf.dtype
        found, _ = read_features({name: _declaration(leaf, dtype, options)}, name)
        key = found[0].key if found else leaf.key  # names of LeRobot itself are none of a leaf
        table: Table = "observations" if key[0] == "observation" else "steps"
        lossy = f"encoded as {options.video}, lossy" if _is_video(leaf, options) else ""
        apart = leaf.table == "observations" != table and leaf.key not in options.followed
        return LeafPlace(leaf, name, dtype, key, table, lossy, f"next.{name}" * apart)

    def differs(self, leaf: Leaf, episodes: ExportedEpisodes) -> str:
        if leaf.key != _NUMBER:
            return ""
        same = np.array_equal(episodes.column(_NUMBER), np.arange(len(episodes.lengths)))
        return "" if same else "episodes are numbered anew"

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        with ExitStack() as stack:
            writer = _LeRobotWriter(path, job, stack)
            for batch in batches:
                for at in range(len(batch.lengths)):
                    writer.append(batch.part(at, at + 1))
            writer.finish()

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        return get_source("lerobot").open(Release(job.name, "1", local=path), path)

    def card(self, job: ExportJob) -> Mapping[str, Any]:  # noqa: ARG002
        configs = [{"config_name": "default", "data_files": "data/*/*.parquet"}]
        return {"tags": ["LeRobot"], "configs": configs}


def _frames_per_second(manifest: Manifest, asked: float | None) -> tuple[int, list[Loss]]:
    """Return the frames per second as an integer, and what is not so."""
    if asked is not None:
        if not (1 <= asked < 1e6 and asked == int(asked)):
            raise UsageError(f"fps is {asked!r}; expected a whole number, 1 or more")
        return int(asked), []
    about, environment = manifest.about, manifest.environment
    metadata = environment.get("metadata")
    stated = (
        about.get("fps"),
        environment.get("render_fps"),
        metadata.get("render_fps") if isinstance(metadata, dict) else None,
    )
    numbers = (one for one in stated if isinstance(one, int | float))
    found = next((one for one in numbers if 0 < one < 1e6), None)
    if found is None:
        return 1, [
            Loss("timestamp", None, "frames per second are not known, and 1 is written: --fps")
        ]
    whole = max(1, round(found))
    if whole == found:
        return whole, []
    return whole, [Loss("timestamp", None, f"{found:g} frames per second become {whole}")]


def _keeps_time(member: ExportMember, fps: int) -> bool:
    """Return True if the leaf `timestamp` is the time since the begin of the episode."""
    lengths = member.chosen.lengths
    times = np.asarray(member.reader.step(_TIME)[member.rows]).reshape(-1)
    frames = np.arange(len(times)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return bool((np.abs(times - frames / fps) <= _TOLERANCE).all())


def _exceeds_int64(leaf: Leaf, episodes: ExportedEpisodes) -> bool:
    columns = (getattr(batch, leaf.table)[leaf.key] for batch in episodes.batches())
    return any(np.asarray(column).max(initial=0) > np.iinfo(np.int64).max for column in columns)


def _is_image(leaf: Leaf) -> bool:
    if leaf.table != "observations" or leaf.key[0] != "observation":
        return False
    shaped = len(leaf.shape) == 2 or leaf.shape[2:] in {(1,), (3,)}
    large = leaf.dtype == "uint8" and shaped and min(leaf.shape[:2]) >= _SMALLEST
    return leaf.encoding is not None or large


def _is_video(leaf: Leaf, options: ExportOptions) -> bool:
    colour = leaf.dtype == "uint8" and leaf.shape[2:] == (3,)
    return _is_image(leaf) and colour and options.video != "none"


def _feature_name(leaf: Leaf, options: _Choices) -> str:
    root, *below = leaf.key
    if leaf.key == options.state:
        return "observation.state"
    if _is_image(leaf) and below[:1] not in (["image"], ["images"]):
        return ".".join(("observation", "images", *(below or ["camera"])))
    if root == "observation" and not below:
        return "observation.text" if leaf.dtype == "text" else "observation.array"
    if root == "state":
        return ".".join(("environment", *leaf.key))
    if leaf.key == _TIME and not options.timed:
        return "extra.timestamp"
    return ".".join(leaf.key)


def _declaration(leaf: Leaf, dtype: str, options: _Choices) -> dict[str, Any]:
    """Return the entry of a feature in `meta/info.json`."""
    if _is_image(leaf):
        kind = "video" if _is_video(leaf, options) else "image"
        shape = [*leaf.shape, 1][:3]
        return {"dtype": kind, "shape": shape, "names": ["height", "width", "channels"]}
    if leaf.dtype == "text":
        return {"dtype": "string", "shape": [1], "names": None}
    return {"dtype": dtype, "shape": list(leaf.shape) or [1], "names": None}


@dataclass
class _Files:
    """The files of the data or of a camera, of which one is open."""

    folder: Path
    template: str
    most: int  # bytes from which on another one is begun; 0: one for each episode
    open: Callable[[Path], Any]
    number: int = -1
    rows: int = 0  # in the open file
    path: Path = Path()
    writer: Any = None

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def for_episode(self, fields: Mapping[str, int | str]) -> Any:
        """Return the writer of the file that an episode goes to."""
        if self.writer is None or self.size >= self.most:
            self.close()
            self.number, self.rows = self.number + 1, 0
            self.path = self.folder / fill(self.template, {**fields, **self.route()})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = self.open(self.path)
        return self.writer

    def route(self) -> dict[str, int]:
        """Return the numbers of the open file and its folder."""
        return {"chunk_index": self.number // _CHUNK, "file_index": self.number % _CHUNK}

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class _LeRobotWriter:
    """Writes episodes one by one, and keeps what `meta` says of all; `stack` closes open files."""

    def __init__(self, folder: Path, job: ExportJob, stack: ExitStack) -> None:
        options = cast("_Choices", job.options)
        self._folder, self._job, self._fps = folder, job, int(options.fps or 1)
        self._old = options.format_version == "2.1"
        self._tasks: dict[str, int] = {}
        self._total: dict[str, Stats] = {}
        self._sketches: dict[str, QuantileSketch] = {}
        self._count = self._rows = 0
        self._places = {
            one.path: one
            for one in job.places
            if one.path != _TASK_TABLE and one.leaf.key != _NUMBER
        }
        self._after = {one.after: one for one in job.places if one.after}
        self._features = _features(self._places.values(), options, job.episodes.reader.manifest)
        self._schema = _schema(self._features)
        parquet, old = arrow().parquet, self._old

        def film(path: Path, shape: Sequence[int]) -> Mp4Writer:
            return Mp4Writer(path, (shape[0], shape[1]), self._fps, options.video)

        def files(template: str, most: int, begin: Callable[[Path], Any]) -> _Files:
            made = _Files(folder, template, 0 if old else most, begin)
            stack.callback(made.close)
            return made

        self._data = files(
            DATA_PATHS[old], _DATA_BYTES, lambda path: parquet.ParquetWriter(path, self._schema)
        )
        self._films = {
            name: files(VIDEO_PATHS[old], _VIDEO_BYTES, partial(film, shape=one["shape"]))
            for name, one in self._features.items()
            if one["dtype"] == "video"
        }
        (folder / "meta").mkdir()
        self._listed: list[dict[str, Any]] = []
        if old:
            self._lists = [
                stack.enter_context((folder / f"meta/{name}.jsonl").open("w", encoding="utf-8"))
                for name in ("episodes", "episodes_stats")
            ]

    def append(self, episode: EpisodeBatch) -> None:
        length = episode.transitions
        fields = {"episode_index": self._count, "episode_chunk": self._count // _CHUNK}
        texts = self._texts(episode)
        columns, stats = self._own_columns(episode, texts), dict[str, Stats]()
        columns |= {name: one.step_rows(episode, after=True) for name, one in self._after.items()}
        row: dict[str, Any] = {
            "episode_index": self._count,
            "tasks": list(dict.fromkeys(texts)),
            "length": length,
            "dataset_from_index": self._rows,
            "dataset_to_index": self._rows + length,
        }
        for name, place in self._places.items():
            kind = self._features[name]["dtype"]
            if kind not in {"image", "video"}:
                columns.setdefault(name, place.step_rows(episode))
                continue
            column: Any = episode.observations[place.leaf.key][:length]
            sample = sampled_frames(length)
            if kind == "image":
                columns[name] = image_files(column)
                frames = [reduce_image(image) for image in _iter_images(column[sample])]
            else:
                film, wanted, frames = self._films[name], {*sample.tolist()}, []
                writer = film.for_episode({**fields, "video_key": name})
                for number, image in enumerate(_iter_images(column)):
                    writer.write(image)
                    frames += [reduce_image(image)] if number in wanted else []
                times = {"from": film.rows / self._fps, "to": (film.rows + length) / self._fps}
                row |= {f"videos/{name}/{key}": number for key, number in film.route().items()}
                row |= {f"videos/{name}/{key}_timestamp": time for key, time in times.items()}
                film.rows += length
            stats[name] = stats_of_images(np.stack(frames))
        for name, one in self._features.items():
            if (
                one["dtype"] not in _WITHOUT_STATS and "image" not in name
            ):  # else they are of images
                values = np.asarray(columns[name])
                stats[name] = stats_of_rows(values, by_row=self._old)
                if not self._old:
                    values = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1).T
                    sketch = self._sketches.setdefault(name, QuantileSketch(len(values)))
                    sketch.add(values)
        rows = [_column(columns[one.name], one.type) for one in self._schema]
        table = arrow().table(rows, schema=self._schema)
        self._data.for_episode(fields).write_table(table, row_group_size=length)
        row |= {f"data/{key}": number for key, number in self._data.route().items()}
        self._list(row, stats)
        self._total = merge_stats(self._total, stats)
        self._count, self._rows = self._count + 1, self._rows + length

    def _texts(self, episode: EpisodeBatch) -> list[str]:
        """Return the task of each row."""
        task = next((one for one in self._job.places if one.path == _TASK_TABLE), None)
        if task is None:
            return [""] * episode.transitions
        return list(np.asarray(task.step_rows(episode)))

    def _own_columns(self, episode: EpisodeBatch, texts: Sequence[str]) -> dict[str, Any]:
        frames = np.arange(episode.transitions)
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in texts]
        columns: dict[str, Any] = {
            "next.done": np.logical_or(episode.steps[TERMINATED], episode.steps[TRUNCATED]),
            FRAME: frames,
            EPISODE: np.full(len(frames), self._count),
            INDEX: self._rows + frames,
            TASK: np.array(numbers),
        }
        if "timestamp" not in self._places:
            columns["timestamp"] = (frames / self._fps).astype(np.float32)
        return columns

    def _list(self, row: dict[str, Any], stats: Mapping[str, Stats]) -> None:
        if self._old:
            about, figures = self._lists
            listed = {key: row[key] for key in ("episode_index", "tasks", "length")}
            about.write(json.dumps(listed, ensure_ascii=False) + "\n")
            shown = {name: _as_lists(one, quantiles=False) for name, one in stats.items()}
            line = {"episode_index": row["episode_index"], "stats": shown}
            figures.write(json.dumps(line) + "\n")
            return
        for name, one in stats.items():
            row |= {f"stats/{name}/{key}": value for key, value in _as_lists(one).items()}
        self._listed.append(row)
        if len(self._listed) == _CHUNK:
            self._write_list()

    def _write_list(self) -> None:
        """Write a file of the episodes that have been listed since the last one."""
        number = (self._count - 1) // _CHUNK
        route = {"chunk_index": number // _CHUNK, "file_index": number % _CHUNK}
        path = self._folder / fill(_EPISODES_PATH, route)
        path.parent.mkdir(parents=True, exist_ok=True)
        more = {f"meta/episodes/{key}": value for key, value in route.items()}
        table = arrow().Table.from_pylist([row | more for row in self._listed])
        arrow().parquet.write_table(table, path)
        self._listed = []

    def finish(self) -> None:
        folder, old, count = self._folder / "meta", self._old, self._count
        if old:
            lines = [{"task_index": number, "task": text} for text, number in self._tasks.items()]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / "tasks.jsonl").write_text(text, encoding="utf-8")
        else:
            if self._listed:
                self._write_list()
            _write_tasks(self._tasks, folder / "tasks.parquet")
            for name, sketch in self._sketches.items():
                self._total[name] |= quantiles_of(sketch)
            figures = {name: _as_lists(one) for name, one in self._total.items()}
            (folder / "stats.json").write_text(json.dumps(figures, indent=4))
        robot = self._job.episodes.reader.manifest.about.get("robot_type")
        chunks = -(-count // _CHUNK)
        sizes: dict[str, int] = {
            "data_files_size_in_mb": _DATA_BYTES >> 20,
            "video_files_size_in_mb": _VIDEO_BYTES >> 20,
        }
        info = {
            "codebase_version": "v2.1" if old else "v3.0",
            "robot_type": robot if isinstance(robot, str) else None,
            "total_episodes": count,
            "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "chunks_size": _CHUNK,
            **(
                {"total_chunks": chunks, "total_videos": count * len(self._films)} if old else sizes
            ),
            "fps": self._fps,
            "splits": {"train": f"0:{count}"},
            "data_path": DATA_PATHS[old],
            "video_path": VIDEO_PATHS[old] if self._films else None,
            "features": self._features,
        }
        text = json.dumps(info, ensure_ascii=False, indent=4)
        (self._folder / INFO).write_text(text, encoding="utf-8")


def _features(
    places: Iterable[LeafPlace], options: _Choices, manifest: Manifest
) -> dict[str, dict[str, Any]]:
    """Return the features of `meta/info.json`; names of axes are those of a LeRobot source."""
    fps, known = options.fps, manifest.about.get("features")
    features: dict[str, dict[str, Any]] = {}
    for place in places:
        found = _declaration(place.leaf, place.dtype, options)
        stated = known.get(place.path) if isinstance(known, dict) else None
        if isinstance(stated, dict) and stated.get("shape") == found["shape"]:
            found["names"] = stated.get("names")
        if found["dtype"] == "video":
            height, width, _ = found["shape"]
            found["info"] = {
                "video.height": height,
                "video.width": width,
                "video.codec": options.video,
                "video.pix_fmt": pixel_format((height, width)),
                "video.is_depth_map": False,
                "video.fps": fps,
                "video.channels": 3,
                "has_audio": False,
            }
        features |= dict.fromkeys(
            (place.path, place.after) if place.after else (place.path,), found
        )
    own = {"next.done": "bool", "timestamp": "float32", **dict.fromkeys(NUMBERING, "int64")}
    for name, dtype in own.items():
        features.setdefault(name, {"dtype": dtype, "shape": [1], "names": None})
    return features


def _schema(features: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the schema of the data, with the features of `datasets`."""
    pa = arrow()
    fields = []
    described: dict[str, Any] = {}
    for name, one in features.items():
        dtype, shape = one["dtype"], one["shape"]
        if dtype == "video":
            continue
        value = {"dtype": dtype, "_type": "Value"}
        if dtype == "image":
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            described[name] = {"_type": "Image"}
        else:
            kind = pa.string() if dtype == "string" else pa.from_numpy_dtype(dtype)
            described[name] = value
        if dtype != "image" and len(shape) > 1:
            for _ in shape:
                kind = pa.list_(kind)
            described[name] = {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
        elif shape != [1] and dtype != "image":
            kind = pa.list_(kind, shape[0])
            described[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
        fields.append((name, kind))
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    return pa.schema(fields, metadata=metadata)


def _column(values: Any, kind: Any) -> Any:
    """Return the rows of a feature as an array of a type of `_schema`."""
    pa = arrow()
    if pa.types.is_struct(kind):
        parts = [pa.array(values, pa.binary()), pa.nulls(len(values), pa.string())]
        return pa.StructArray.from_arrays(parts, ["bytes", "path"])
    values = np.asarray(values)
    nested = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    sizes = values.shape[1:] if nested else ()
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(sizes):
        if pa.types.is_fixed_size_list(kind):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        else:
            offsets = pa.array(np.arange(0, len(array) + 1, size, dtype=np.int32))
            array = pa.ListArray.from_arrays(offsets, array)
    return array


def _iter_images(column: Any) -> Iterator[NDArray[Any]]:
    """Yield the images of a column."""
    for at in range(0, len(column), _AT_ONCE):
        yield from np.asarray(column[at : at + _AT_ONCE])


def _write_tasks(tasks: Mapping[str, int], path: Path) -> None:
    """Write the table of tasks as pandas does, whose index is the text."""
    pa = arrow()
    table = pa.table({"task_index": pa.array(tasks.values(), pa.int64()), "task": [*tasks]})
    described: list[dict[str, Any]] = [
        {"name": n, "field_name": n, "pandas_type": p, "numpy_type": t, "metadata": None}
        for n, p, t in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas: dict[str, Any] = {
        "index_columns": ["task"],
        "columns": described,
        "pandas_version": "2.0.0",
    }
    blank: dict[str, Any] = {
        "name": None,
        "field_name": None,
        "pandas_type": "unicode",
        "numpy_type": "object",
    }
    pandas["column_indexes"] = [blank | {"metadata": {"encoding": "UTF-8"}}]
    metadata = {"pandas": json.dumps(pandas)}
    arrow().parquet.write_table(table.replace_schema_metadata(metadata), path)


def _as_lists(stats: Stats, *, quantiles: bool = True) -> dict[str, Any]:
    return {
        name: value.tolist() for name, value in stats.items() if quantiles or name not in LEVELS
    }
