"""Toy LeRobot datasets of versions 2 and 3, as lerobot 0.3.3 and 0.4.4 write them.

Row `t` of episode `e` has the code `1000·e + t + 1`: the state is the code, the action minus the code,
the reward a tenth of it. An image begins with the bytes `e + 1`, `t // 256` and `t % 256`, a frame of video is grey.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_data.raw.images import encode_image

LENGTHS = (5, 1, 3, 4)
FPS = 10
TASKS = ("push the block", "open drawer é")
HEIGHT, WIDTH = 8, 9

V2_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
V3_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "observation.environment_state": {"dtype": "float64", "shape": [2, 2], "names": None},
    "observation.flag": {"dtype": "bool", "shape": [1], "names": None},
    "observation.images.cam": {
        "dtype": "image",
        "shape": [HEIGHT, WIDTH, 3],
        "names": ["height", "width", "channels"],
    },
    "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "next.success": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
VIDEO: dict[str, Any] = {
    "dtype": "video",
    "shape": [32, 48, 3],
    "names": ["height", "width", "channels"],
    "info": {"video.fps": FPS, "video.codec": "h264", "video.is_depth_map": False},
}
CAMERA = "observation.images.vid"
V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
V3_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def toy_image(episode: int, step: int) -> Any:
    """Return the image of a row, uint8 `[8, 9, 3]`."""
    image = np.full((HEIGHT, WIDTH, 3), 7 * episode + step, np.uint8)
    image[0, 0] = episode + 1, step // 256, step % 256
    return image


def toy_table(episode: int, length: int, first: int, *, images: bool = True) -> pa.Table:
    """Return the rows of an episode, of which `first` is the number of the first."""
    step = np.arange(length)
    code = 1000.0 * episode + step + 1
    state = np.stack([code, code + 1 / 4, code + 1 / 2], 1).astype(np.float32)
    action = np.stack([-code, -code - 1 / 4], 1).astype(np.float32)
    last = step == length - 1
    columns = {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.ravel()), 3),
        "observation.environment_state": pa.array(
            (code[:, None, None] + np.arange(4).reshape(2, 2) / 8).tolist()
        ),
        "observation.flag": pa.array(step % 2 == 1),
        "action": pa.FixedSizeListArray.from_arrays(pa.array(action.ravel()), 2),
        "next.reward": pa.array((code / 10).astype(np.float32)),
        "next.done": pa.array(last & (episode % 2 == 0)),
        "next.success": pa.array(last & (episode % 3 == 0)),
        "timestamp": pa.array((step / FPS).astype(np.float32)),
        "frame_index": pa.array(step),
        "episode_index": pa.array(np.full(length, episode)),
        "index": pa.array(first + step),
        "task_index": pa.array(np.full(length, episode % 2)),
    }
    if images:
        files = [
            {"bytes": encode_image(toy_image(episode, int(t)), "png"), "path": f"{t}.png"}
            for t in step
        ]
        columns["observation.images.cam"] = pa.array(files, IMAGE)
    return pa.table(columns)


def toy_frame(episode: int, step: int) -> Any:
    """Return the frame of a row, uint8 `[32, 48, 3]`: all of one grey."""
    return np.full((32, 48, 3), (40 * episode + 4 * step) % 216 + 20, np.uint8)


def write_video(
    path: Path,
    frames: Sequence[Any],
    *,
    codec: str = "libx264",
    form: str = "yuv420p",
    ticks: Sequence[int] | None = None,
) -> None:
    """Write an mp4 file with a key frame in every five, and B frames.

    `ticks` are the times of the frames in hundredths of a frame; None: one after the other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=FPS)
        stream.width, stream.height = frames[0].shape[1], frames[0].shape[0]
        stream.pix_fmt = form
        stream.time_base = stream.codec_context.time_base = Fraction(1, 100 * FPS)
        if codec == "libx264":
            stream.options = {"g": "5", "bf": "2", "crf": "5"}
        for number, pixels in enumerate(frames):
            grey = pixels.ndim == 2
            frame: Any = (
                av.VideoFrame(pixels.shape[1], pixels.shape[0], form)
                if grey
                else av.VideoFrame.from_ndarray(pixels, format="rgb24")
            )
            if grey:
                row = frame.planes[0].line_size // 2
                padded = np.zeros((pixels.shape[0], row), np.uint16)
                padded[:, : pixels.shape[1]] = pixels
                frame.planes[0].update(padded.tobytes())
            frame.time_base = Fraction(1, 100 * FPS)
            frame.pts = 100 * number if ticks is None else ticks[number]
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_lerobot(
    folder: Path,
    version: str = "v2.1",
    lengths: Sequence[int] = LENGTHS,
    *,
    files: Sequence[int] = (2,),
    images: bool = True,
    videos: Sequence[int] | None = None,
    edit: Callable[[pa.Table], pa.Table] = lambda table: table,
    **info: Any,
) -> Path:
    """Write a dataset; returns its folder.

    Args:
        folder: Created.
        version: `v2.0`, `v2.1` or `v3.0`.
        lengths: Length of each episode.
        files: Of version 3, the numbers of the first episodes of all data files but the first.
        images: Whether there is a feature of images.
        videos: The same as `files` of video files, which version 2 has one of for each episode; None:
            there is no camera.
        edit: Changes the rows of an episode.
        info: Fields of `meta/info.json` that differ; None leaves one out.
    """
    starts = np.cumsum([0, *lengths]).tolist()
    tables = [
        edit(toy_table(e, length, starts[e], images=images)) for e, length in enumerate(lengths)
    ]
    features = {name: one for name, one in FEATURES.items() if images or one["dtype"] != "image"}
    if videos is not None:
        features[CAMERA] = VIDEO
    about = {
        "codebase_version": version,
        "robot_type": "toy",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(TASKS),
        "chunks_size": 3,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": V3_PATH if version == "v3.0" else V2_PATH,
        "video_path": None if videos is None else V3_VIDEO if version == "v3.0" else V2_VIDEO,
        "features": features,
        **info,
    }
    (folder / "meta").mkdir(parents=True)
    shown = {name: value for name, value in about.items() if value is not None}
    (folder / "meta" / "info.json").write_text(json.dumps(shown, indent=4))
    frames = [[toy_frame(e, t) for t in range(length)] for e, length in enumerate(lengths)]
    if version == "v3.0":
        _write_v3(folder, tables, starts, files, frames, videos)
        return folder
    _write_v2(folder, tables)
    for e, some in enumerate(frames if videos is not None else []):
        place = V2_VIDEO.format(episode_chunk=e // 3, video_key=CAMERA, episode_index=e)
        write_video(folder / place, some)
    return folder


def _write_v2(folder: Path, tables: list[pa.Table]) -> None:
    rows = [
        {"episode_index": e, "tasks": [TASKS[e % 2]], "length": len(table)}
        for e, table in enumerate(tables)
    ]
    write_lines(folder / "meta" / "episodes.jsonl", rows)
    tasks = [{"task_index": n, "task": text} for n, text in enumerate(TASKS)]
    write_lines(folder / "meta" / "tasks.jsonl", tasks[::-1])
    for e, table in enumerate(tables):
        path = folder / V2_PATH.format(episode_chunk=e // 3, episode_index=e)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)


def _write_v3(
    folder: Path,
    tables: list[pa.Table],
    starts: list[int],
    files: Sequence[int],
    frames: list[list[Any]],
    videos: Sequence[int] | None,
) -> None:
    file_of = [sum(e >= first for first in files) for e in range(len(tables))]
    film_of = [sum(e >= first for first in videos or ()) for e in range(len(tables))]
    rows = [
        {
            "episode_index": e,
            "tasks": [TASKS[e % 2]],
            "length": len(table),
            "data/chunk_index": 0,
            "data/file_index": file_of[e],
            "dataset_from_index": starts[e],
            "dataset_to_index": starts[e + 1],
            "stats/action/min": [0.0],
        }
        for e, table in enumerate(tables)
    ]
    if videos is not None:
        for number in range(len(videos) + 1):
            path = folder / V3_VIDEO.format(video_key=CAMERA, chunk_index=0, file_index=number)
            some = [e for e, film in enumerate(film_of) if film == number]
            write_video(path, [frame for e in some for frame in frames[e]])
        for e, row in enumerate(rows):
            begin = (starts[e] - starts[film_of.index(film_of[e])]) / FPS
            row |= {
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": film_of[e],
                f"videos/{CAMERA}/from_timestamp": begin,
                f"videos/{CAMERA}/to_timestamp": begin + len(frames[e]) / FPS,
            }
    place = folder / "meta" / "episodes" / "chunk-000"
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows[::-1]), place / "file-000.parquet")
    tasks = {"task_index": [1, 0], "__index_level_0__": TASKS[::-1]}
    pq.write_table(pa.table(tasks), folder / "meta" / "tasks.parquet")
    for number in range(len(files) + 1):
        path = folder / V3_PATH.format(chunk_index=0, file_index=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [table for table, file in zip(tables, file_of, strict=True) if file == number]
        with pq.ParquetWriter(path, parts[0].schema) as writer:
            for part in parts:
                writer.write_table(part)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def edit_table(path: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Change a Parquet file."""
    pq.write_table(edit(pq.read_table(path)), path)
