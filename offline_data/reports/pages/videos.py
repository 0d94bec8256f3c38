"""Videos of episodes that a dataset keeps as its source has them, for a browser that plays them itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offline_data.analysis.frames import image_leaves
from offline_data.base.errors import MissingDependencyError, NotFoundError
from offline_data.episode.fields import Key, join_key
from offline_data.reports.pages.episodes import MOST_LEAVES
from offline_data.store.reader import DatasetReader
from offline_data.store.video import VideoColumn

LARGEST_PART = 4 << 20
"""Bytes of a file in one answer; a browser asks for more."""


class EpisodeVideo(NamedTuple):
    """The frames of a camera over an episode, in one mp4 file."""

    path: Path
    times: list[float]  # seconds into the file at which the frame of each step is shown


class FileRange(NamedTuple):
    """Bytes `[first, stop)` of a file of `size` bytes."""

    first: int
    stop: int
    size: int
    content: bytes


def episode_videos(reader: DatasetReader, number: int) -> dict[str, EpisodeVideo]:
    """Return the videos of an episode by key of the camera: those whose frames follow each other."""
    begin = int(reader.starts[number])
    rows = np.arange(begin, begin + int(reader.lengths[number]))
    found = {}
    for leaf in [*image_leaves(reader).values()][:MOST_LEAVES]:
        if leaf.dtype == "uint8" and (video := _video(reader, leaf.key, rows)):
            found[join_key(leaf.key)] = video
    return found


def read_range(path: Path, asked: str | None) -> FileRange:
    """Read the bytes that the header `Range` asks for, at most `LARGEST_PART`.

    Raises `NotFoundError` for a range that is none of the file.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        given = all(
            one.isascii() and one.isdigit() and len(one) < 16 for one in (first, last or "0")
        )
        if not given or int(first) >= size or (last and int(last) < int(first)):
            raise NotFoundError(f"The video has no range {asked!r}")
        stop = min(size, int(first) + LARGEST_PART, int(last) + 1 if last else size)
        file.seek(int(first))
        return FileRange(int(first), stop, size, file.read(stop - int(first)))


def _video(reader: DatasetReader, key: Key, rows: Any) -> EpisodeVideo | None:
    column = reader.values_at(key, rows)
    if not isinstance(column, VideoColumn):
        return None
    files, frames = column.used()
    numbers = frames[:, 1]
    if len(files) != 1 or (np.diff(numbers) != 1).any():
        return None
    try:
        with files[0].decoder() as decoder:
            times = decoder.times
    except MissingDependencyError:
        return None
    # Between two frames, where rounding cannot show another one.
    middles = np.append((times[:-1] + times[1:]) / 2, times[-1])
    return EpisodeVideo(files[0].path, np.round(middles[numbers], 6).tolist())
