"""Datasets of kept videos: mp4 files in which no two frames are alike, and what PyAV decodes of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from offline_data.raw.video import VideoFile
from offline_data.store.video import StoredVideo, VideoColumn, hash_file
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.lerobot import write_video

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from offline_data.episode import EpisodeBatch, Key

FILM: Key = ("observation", "film")
NEXT_FILM: Key = ("next", *FILM)
LENGTHS = (3, 1, 11, 2)
SHAPE = (32, 48, 3)


def frames(count: int, seed: int) -> list[NDArray[Any]]:
    """Make frames of which no two are alike."""
    height, width = np.mgrid[:32, :48]
    return [
        np.stack([(37 * n + 3 * height + 5 * width + c + 53 * seed) % 200 + 20 for c in range(3)], -1)
        .astype(np.uint8)
        for n in range(count)
    ]  # fmt: skip


def film(folder: Path, number: int, count: int, seed: int | None = None) -> StoredVideo:
    """Write the file of a number, if it is not there, with a key frame in every five, and B frames."""
    path = folder / f"film{number}.mp4"
    if not path.exists():
        write_video(path, frames(count, number if seed is None else seed))
    return StoredVideo(path, *hash_file(path), known=VideoFile(path).index)


@cache
def decoded(path: Path) -> list[NDArray[Any]]:
    """Decode a file by PyAV alone, from the first frame to the last."""
    with av.open(str(path)) as container:
        return [one.to_ndarray(format="rgb24") for one in container.decode(video=0)]


def film_batch(
    folder: Path, lengths: Sequence[int] = LENGTHS, first_episode: int = 0
) -> tuple[EpisodeBatch, NDArray[Any]]:
    """Make toy episodes, the first half of whose rows are in one file, and what PyAV decodes.

    Frames are in another order than rows: each file is run through backwards.
    """
    batch = toy_batch(lengths, first_episode=first_episode, text=True)
    rows = batch.transitions + len(lengths)
    counts = [(rows + 1) // 2, rows // 2]
    files = [film(folder, 2 * first_episode + n, count) for n, count in enumerate(counts)]
    pairs = [(n, k) for n, count in enumerate(counts) for k in reversed(range(count))]
    column: Any = VideoColumn(files, np.array(pairs, np.int32), ("video", "uint8", SHAPE))
    truth = np.stack([decoded(files[n].path)[k] for n, k in pairs])
    return replace(batch, observations={**batch.observations, FILM: column}), truth


def write_films(folder: Path) -> tuple[Path, NDArray[Any]]:
    """Write a dataset of them; returns its folder, and the frames of its rows of observations."""
    batch, truth = film_batch(folder)
    write_toy(folder / "d", [batch])
    return folder / "d", truth
