"""Toy LeRobot datasets of versions 2 and 3, as lerobot 0.3.3 and 0.4.4 write them.

Row `t` of episode `e` has the code `1000·e + t + 1`: the state is the code, the action minus the code,
the reward a tenth of it. An image begins with the bytes `e + 1`, `t // 256` and `t % 256`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_data.readers.images import encode_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


def write_lerobot(
    folder: Path,
    version: str = "v2.1",
    lengths: Sequence[int] = LENGTHS,
    *,
    files: Sequence[int] = (2,),
    images: bool = True,
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
        edit: Changes the rows of an episode.
        info: Fields of `meta/info.json` that differ; None leaves one out.
    """
    starts = np.cumsum([0, *lengths]).tolist()
    tables = [
        edit(toy_table(e, length, starts[e], images=images)) for e, length in enumerate(lengths)
    ]
    features = {name: one for name, one in FEATURES.items() if images or one["dtype"] != "image"}
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
        "video_path": None,
        "features": features,
        **info,
    }
    (folder / "meta").mkdir(parents=True)
    shown = {name: value for name, value in about.items() if value is not None}
    (folder / "meta" / "info.json").write_text(json.dumps(shown, indent=4))
    (_write_v3 if version == "v3.0" else _write_v2)(folder, tables, starts, files)
    return folder


def _write_v2(folder: Path, tables: list[pa.Table], _: Any, __: Any) -> None:
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
    folder: Path, tables: list[pa.Table], starts: list[int], files: Sequence[int]
) -> None:
    file_of = [sum(e >= first for first in files) for e in range(len(tables))]
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
