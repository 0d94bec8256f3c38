"""The files below `meta`: version, features, tasks, and the file of each episode.

Version 2 has a data file per episode and JSON lines, version 3 files of many episodes and Parquet.
Everything is looked up by the values of `episode_index` and `task_index`: positions in these files
mean nothing, as the sets of several tools have gaps or another order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import check_relative
from offline_data.base.json import count_of, parse_json, read_json, read_whole, shown
from offline_data.base.plurals import plural
from offline_data.raw.arrow import read_table, table_leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

EPISODE, FRAME, INDEX, TASK = "episode_index", "frame_index", "index", "task_index"
NUMBERING = (EPISODE, FRAME, INDEX, TASK)  # of every dataset; rows are found by these columns
INFO, OLD_INFO = "meta/info.json", "meta_data/info.json"
_EPISODES, _TASKS = "meta/episodes", "meta/tasks"
_ROUTE, _BEGIN = ("chunk_index", "file_index"), "from_timestamp"
_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(\.\d{1,9})?")
_FIELD = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")
_MOST_BYTES = 1 << 29  # of a file of JSON lines: a hundred bytes for each of five million episodes
DATA_PATHS = (
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
)
VIDEO_PATHS = (  # of versions 3 and 2
    "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
)


def is_metadata(path: str) -> bool:
    """Return True for the path of a file that is read when a dataset is opened."""
    folder, _, name = path.rpartition("/")
    return (
        path == INFO
        or (f"{path}/".startswith(f"{_EPISODES}/") and name.endswith(".parquet"))
        or (folder == "meta" and name in {"episodes.jsonl", "tasks.jsonl", "tasks.parquet"})
    )


def old_version(where: str, version: str) -> FormatError:
    """Return the error for a dataset of version 1."""
    return FormatError(
        f"{where} is a LeRobot dataset of version {version}; 2.0 to 3.0 are read",
        hint="lerobot 0.3 converts it: lerobot/datasets/v2/convert_dataset_v1_to_v2.py",
    )


@dataclass(frozen=True)
class Info:
    """`meta/info.json`."""

    version: str  # `codebase_version`, of major version 2 or 3
    fps: float
    features: Mapping[str, Mapping[str, Any]]  # columns, videos: each with `dtype`, `shape`
    data_path: str
    video_path: str  # templates of the paths of files; empty if not stated
    chunks_size: int  # data files of version 2 in a folder
    total_episodes: int | None
    about: Mapping[str, Any]  # everything else that describes the dataset


def read_info(folder: Path) -> Info:
    """Read `meta/info.json`; raises `FormatError`, also for versions and storages that are not read."""
    where = str(folder / INFO)
    value = read_json(folder / INFO)
    if not isinstance(value, dict) or "codebase_version" not in value:
        raise FormatError(f"{where} has no codebase_version: it is not of a LeRobot dataset")
    stated = value["codebase_version"]
    match = _VERSION.fullmatch(stated) if isinstance(stated, str) else None
    if match is None:
        raise FormatError(
            f"{where}: codebase_version is {shown(stated)}; expected v2.1, for example"
        )
    major = int(match[1])
    if major < 2:
        raise old_version(str(folder), stated)
    if major > 3:
        raise FormatError(f"{folder} is a LeRobot dataset of version {stated}; 2.0 to 3.0 are read")
    storage = value.get("storage_format") or "parquet"
    if storage != "parquet":
        raise FormatError(
            f"{where}: storage_format is {shown(storage)}; only Parquet is read",
            hint="use a revision of the dataset in Parquet",
        )
    fps, features = value.get("fps"), value.get("features")
    if not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
        raise FormatError(f"{where}: fps is {shown(fps)}; expected a number above 0")
    if not isinstance(features, dict) or not all(
        isinstance(one, dict) for one in features.values()
    ):
        raise FormatError(f"{where}: features are not an object of objects")
    total = value.get("total_episodes")
    names = ("codebase_version", "robot_type", "fps", "splits")
    data, video = (value.get(f"{name}_path") for name in ("data", "video"))
    return Info(
        stated,
        float(fps),
        features,
        data if isinstance(data, str) else "",
        video if isinstance(video, str) else "",
        max(1, count_of(value.get("chunks_size", 1000), f"{where}: chunks_size")),
        None if total is None else count_of(total, f"{where}: total_episodes"),
        {name: value[name] for name in names if name in value}
        | {"features": {name: one for name, one in features.items() if name not in NUMBERING}},
    )


@dataclass(frozen=True)
class Tasks:
    """The texts of tasks by `task_index`."""

    numbers: NDArray[np.int64]  # ascending
    texts: NDArray[np.object_]

    def of(self, wanted: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the texts of some numbers; raises `FormatError` for an unknown one."""
        places = np.searchsorted(self.numbers, wanted).clip(max=len(self.numbers) - 1)
        odd = self.numbers[places] != wanted
        if odd.any():
            raise FormatError(f"task_index is {wanted[odd.argmax()]}, which {_TASKS} does not list")
        return np.asarray(self.texts[places], object)


def read_tasks(folder: Path, paths: Collection[str]) -> Tasks | None:
    """Read the tasks; None if there is no file of them."""
    # pandas stores the text, which is its index, as `__index_level_0__` or by its name.
    for path in (f"{_TASKS}.parquet", f"{_TASKS}.jsonl"):
        if path not in paths:
            continue
        columns = _columns(folder, [path], ["task_index", "task"])
        texts = [c for name, c in columns.items() if c.dtype == object and name != "task"]
        text = columns.get("task", texts[0] if len(texts) == 1 else None)
        numbers = _integers(columns, "task_index", path)
        if text is None or not all(isinstance(one, str) for one in text):
            raise FormatError(f"{folder / path} has no column of texts")
        order = _by_number(numbers, "task_index", str(folder / path))
        return Tasks(numbers[order], text[order]) if len(order) else None
    return None


@dataclass(frozen=True)
class Video:
    """The videos of a camera."""

    files: Sequence[str]  # of each episode
    bounds: Sequence[tuple[float | None, float | None]]
    """Seconds of the file at which each begins, and the next one does; None: the file."""


@dataclass(frozen=True)
class Episodes:
    """The episodes, in the order of their numbers, which may have gaps."""

    numbers: NDArray[np.int64]  # `episode_index` of each
    lengths: NDArray[np.int64]
    files: Sequence[str]  # data file of each
    videos: Mapping[str, Video]  # by camera; one is missing if none of its files is there
    absent: Mapping[str, str]  # the first file of each of these


def read_episodes(
    folder: Path, info: Info, paths: Collection[str], cameras: Sequence[str]
) -> Episodes:
    """Read the table of episodes and find their files among `paths`; raises `FormatError`."""
    listed = sorted(path for path in paths if path.startswith(f"{_EPISODES}/"))
    listed = listed or [path for path in paths if path == f"{_EPISODES}.jsonl"]
    if not listed:
        raise FormatError(f"{folder} has neither {_EPISODES}/… .parquet nor {_EPISODES}.jsonl")
    places = ["data", *(f"videos/{camera}" for camera in cameras)]
    names = [f"{place}/{name}" for place in places for name in (*_ROUTE, _BEGIN)]
    columns = _columns(folder, listed, ["episode_index", "length", *names])
    where = str(folder / _EPISODES)
    numbers, lengths = (_integers(columns, name, where) for name in ("episode_index", "length"))
    order = _by_number(numbers, "episode_index", where)
    numbers, lengths = numbers[order], lengths[order]
    total = len(numbers) if info.total_episodes is None else info.total_episodes
    if len(numbers) != total or not total:
        raise FormatError(
            f"{where} has {plural(len(numbers), 'episode')}; {INFO} counts {total}",
            hint="copy or download the whole dataset; if it is whole, correct total_episodes",
        )
    if lengths.min() < 1:
        raise FormatError(
            f"{where}: the length of episode {numbers[lengths.argmin()]} is {lengths.min()}"
        )

    def fields(place: str) -> list[dict[str, int | str]]:
        known = {"episode_index": numbers, "episode_chunk": numbers // info.chunks_size}
        for name in _ROUTE:
            if f"{place}/{name}" in columns:
                known[name] = _integers(columns, f"{place}/{name}", where)[order]
        rows = zip(*(column.tolist() for column in known.values()), strict=True)
        key = {"video_key": place.removeprefix("videos/")}
        return [{**key, **dict(zip(known, row, strict=True))} for row in rows]

    files = _find_files(folder, (info.data_path, *DATA_PATHS), fields("data"), paths)
    videos: dict[str, Video] = {}
    absent: dict[str, str] = {}
    for camera in cameras:
        place, templates = f"videos/{camera}", (info.video_path, *VIDEO_PATHS)
        found = _find_files(folder, templates, fields(place), paths)
        begins = columns.get(f"{place}/{_BEGIN}")
        if begins is not None and (begins.dtype.kind != "f" or not np.isfinite(begins).all()):
            raise FormatError(f"{where}: {place}/{_BEGIN} are not seconds")
        begins = None if begins is None else begins[order]
        if found:
            videos[camera] = Video(found, _bounds(found, begins, f"{where}: {place}"))
        else:
            first = fields(place)[0]
            absent[camera] = fill(next(_usable(templates, first)), first)
    files = files or _only_file(folder, info, fields("data"), paths)
    return Episodes(numbers, lengths, files, videos, absent)


def _bounds(
    files: Sequence[str], begins: NDArray[np.float64] | None, where: str
) -> list[tuple[float | None, float | None]]:
    if begins is None:
        if len(set(files)) < len(files):
            raise FormatError(f"{where} has no {_BEGIN}, and a file of several episodes")
        return [(None, None)] * len(files)
    bounds: list[tuple[float | None, float | None]] = [(one, None) for one in begins.tolist()]
    order = sorted(range(len(files)), key=lambda n: (files[n], begins[n]))
    for one, after in pairwise(order):
        if files[one] == files[after]:
            bounds[one] = (bounds[one][0], bounds[after][0])
    return bounds


def _find_files(
    folder: Path,
    templates: Sequence[str],
    fields: Sequence[Mapping[str, int | str]],
    paths: Collection[str],
) -> list[str] | None:
    """Return episodes' files by the first template with any, else None; raises `FormatError`."""
    # Sets that were converted by hand may state a template of the other version. It is an error if
    # only some files are there.
    for template in _usable(templates, fields[0]):
        found = [fill(template, one) for one in fields]
        missing = [path for path in dict.fromkeys(found) if path not in paths]
        if len(missing) < len(set(found)):
            if missing:
                more = " …" if len(missing) > 1 else ""
                raise FormatError(
                    f"{folder} lacks {plural(len(missing), 'file')}: {missing[0]}{more}",
                    hint="copy or download the whole dataset",
                )
            return found
    return None


def _usable(templates: Sequence[str], fields: Mapping[str, int | str]) -> Iterator[str]:
    """Yield the templates all of whose fields are known."""
    for template in filter(None, templates):
        if all(name in fields for name, _ in _FIELD.findall(template)):
            yield template


def _only_file(
    folder: Path, info: Info, fields: Sequence[Mapping[str, int | str]], paths: Collection[str]
) -> list[str]:
    """Return the only data file for each episode, or raise `FormatError`: that is certain."""
    data = [path for path in paths if path.endswith(".parquet") and not is_metadata(path)]
    if len(data) == 1:
        return data * len(fields)
    template = info.data_path or DATA_PATHS[0]
    unknown = [name for name, _ in _FIELD.findall(template) if name not in fields[0]]
    if unknown and data:
        raise FormatError(
            f"{folder / _EPISODES} does not state data/{unknown[0]}: which of the "
            f"{plural(len(data), 'data file')} an episode is in is unknown"
        )
    example = "" if unknown else f", {fill(template, fields[0])} for one"
    raise FormatError(
        f"{folder} lacks its data files{example}", hint="copy or download the whole dataset"
    )


def fill(template: str, fields: Mapping[str, int | str]) -> str:
    """Return a path for a template of `info.json`, which is not given to `str.format`.

    Raises `FormatError`, and `IntegrityError` for a path that leaves the folder.

    Example:
        >>> fill(
        ...     "data/chunk-{episode_chunk:03d}/{episode_index:06d}",
        ...     {"episode_chunk": 1, "episode_index": 7},
        ... )
        'data/chunk-001/000007'
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise FormatError(f"{INFO}: {shown(template)} has the unknown field {shown(match[1])}")
        return f"{fields[match[1]]!s:0>{match[2] or 0}}"

    return check_relative(_FIELD.sub(value, template))


def _columns(folder: Path, paths: Sequence[str], wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read columns of Parquet files, or of one file of JSON lines; of tasks, all of text, too."""
    if paths[0].endswith(".jsonl"):
        rows = list(_lines(folder / paths[0]))
        there = [name for name in wanted if all(name in row for row in rows)]
        found = {name: np.empty(len(rows), object) for name in there}
        for name, column in found.items():
            column[:] = [row[name] for row in rows]
        return found
    names = None if paths[0].startswith(_TASKS) else wanted
    table = read_table([folder / path for path in paths], names)
    return {
        "/".join(leaf.path): leaf.values
        for leaf in table_leaves(table)
        if leaf.values is not None and leaf.nulls is None
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_whole(path, _MOST_BYTES).splitlines(), 1):
        if line.strip():
            row = parse_json(line, f"{path}:{number}")
            if not isinstance(row, dict):
                raise FormatError(f"{path}:{number} is {shown(row)}; expected an object")
            yield row


def _integers(columns: Mapping[str, NDArray[Any]], name: str, where: str) -> NDArray[np.int64]:
    column = columns.get(name)
    if column is None:
        raise FormatError(f"{where} has no column {name}, or not in every row")
    if column.dtype == object:
        column = np.array([count_of(one, f"{where}: {name}") for one in column], np.int64)
    if column.dtype.kind not in "iu" or column.ndim != 1:
        raise FormatError(f"{where}: {name} is {column.dtype}; expected integers")
    return column.astype(np.int64)


def _by_number(numbers: NDArray[np.int64], name: str, where: str) -> NDArray[np.intp]:
    """Return the order of the rows by their number; raises `FormatError` if one occurs twice."""
    order = np.argsort(numbers, kind="stable")
    twice = np.flatnonzero(np.diff(numbers[order]) == 0)
    if len(twice):
        raise FormatError(f"{where} has {name} {numbers[order[twice[0]]]} twice")
    return order
