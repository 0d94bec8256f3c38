"""Hostile LeRobot datasets: Parquet, JSON and mp4 files that are damaged, or say what is not so."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.mutations import NASTY, spoil_bytes, spoil_json, spoil_json_file
from tests.fuzz.source_kinds import Leaves, Truth, source_kind
from tests.toys.lerobot import edit_table, toy_frame, write_lerobot, write_video

_WAYS = (
    "none", "order", "number", "number", "number", "column", "column", "parquet", "parquet", "bytes",
    "info", "info", "lines", "video", "video", "video",
)  # fmt: skip
_ODD_NUMBERS = (0, 1, 2, 3, -1, 7, 2**31, 2**62, -(2**63))
_ODD_SECONDS = (0.0, 0.049, 0.1, -1.0, 1e30, float("nan"), float("inf"))


def _make_lerobot(random: Random, folder: Path) -> Truth:
    version = random.choice(("v2.0", "v2.1", "v3.0"))
    lengths = [random.randint(1, 6) for _ in range(random.randint(1, 4))]
    way = random.choice(_WAYS)
    files = sorted(random.sample(range(1, len(lengths)), random.randrange(len(lengths))))
    root = write_lerobot(
        folder / "in",
        version,
        lengths,
        files=files,
        images=random.random() < 0.3,
        videos=files if way == "video" else None,
    )
    truth = Truth(
        [(_leaves(e, n), way not in {"none", "order"}) for e, n in enumerate(lengths)],
        changed=way not in {"none", "order"},
    )
    table = random.choice(sorted(root.glob("data/*/*.parquet")))
    if way == "order":
        edit_table(table, lambda rows: rows.take(random.sample(range(len(rows)), len(rows))))
    elif way == "number":
        _change_number(random, random.choice([table, *root.glob("meta/episodes/*/*.parquet")]))
    elif way == "column":
        truth.known = _add_column(random, table)
    elif way in {"parquet", "bytes"}:
        path = random.choice([*root.rglob("*.parquet")])
        data = path.read_bytes()
        end = 800 if way == "parquet" else 0  # most of what is to be parsed is at the end
        path.write_bytes(
            data[: len(data) - end] + spoil_bytes(random, data[len(data) - end :] or data)
        )
        truth.known = False
    elif way == "info":
        spoil_json_file(random, root / "meta/info.json")
        truth.known = False
    elif way == "lines":
        truth.known = not _spoil_lines(random, root)
    elif way == "video":
        _spoil_video(random, random.choice(sorted(root.rglob("*.mp4"))))
    return truth


def _leaves(episode: int, length: int) -> Leaves:
    """Return what `toy_table` has: the action of the code, its reward a tenth, and the state."""
    code = 1000.0 * episode + np.arange(length) + 1
    return {
        ("action",): np.stack([-code, -code - 1 / 4], 1).astype(np.float32),
        ("next", "reward"): (code / 10).astype(np.float32),
        ("observation", "state"): np.stack([code, code + 1 / 4, code + 1 / 2], 1).astype(
            np.float32
        ),
        ("episodes", "episode_index"): episode,
    }


def _change_number(random: Random, path: Path) -> None:
    """Change a number by which rows, episodes or files are found."""
    rows = pq.read_table(path)
    names = [
        name
        for name in rows.column_names
        if pa.types.is_integer(rows[name].type) or name.endswith("timestamp")
    ]
    name = random.choice(names)
    values, seconds = rows[name].to_pylist(), name.endswith("timestamp")
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(values))
        odd = _ODD_SECONDS if seconds else _ODD_NUMBERS
        values[at] = random.choice((*odd, random.choice(values)))
    column = pa.array(values, rows[name].type)
    if random.random() < 0.1:
        rows = rows.drop_columns([name])
    else:
        rows = rows.set_column(rows.column_names.index(name), name, column)
    pq.write_table(rows, path)


def _add_column(random: Random, path: Path) -> bool:
    """Add a column of an odd type, or put it in the place of another; returns whether it is more."""
    rows = pq.read_table(path)
    n = len(rows)
    image = {"bytes": random.choice((b"", b"x", b"\x89PNG\r\n\x1a\n" + bytes(40))), "path": "../x"}
    odd = [
        pa.array([[1.0, 2.0]] * n), pa.array([image] * n), pa.array([None] * n), pa.array([b"\xff"] * n),
        pa.array([1] * n, pa.timestamp("ns")), pa.array([2**60] * n), pa.array([True, None] * n)[:n],
        pa.array([[]] * n, pa.list_(pa.int8())), pa.array(["x"] * n, pa.large_string()),
        pa.array([2**64 - 1] * n, pa.uint64()), pa.array([1] * n, pa.decimal128(9, 2)),
        pa.array([[1.0], [1.0, 2.0]] * n)[:n], pa.array([5] * n).dictionary_encode(),
        pa.array([float("nan")] * n), pa.array([[[1.0]] * 2] * n), pa.array([1.5] * n, pa.float16()),
    ]  # fmt: skip
    column = random.choice(odd)
    more = random.random() < 0.3
    name = random.choice(("more", "../x", "", "a.b")) if more else random.choice(rows.column_names)
    if more:
        rows = rows.append_column(name, column)
    else:
        rows = rows.set_column(rows.column_names.index(name), name, column)
    pq.write_table(rows, path)
    return more


def _spoil_lines(random: Random, root: Path) -> bool:
    """Spoil a line of a file of JSON lines; returns whether there is one."""
    paths = sorted(root.glob("meta/*.jsonl"))
    if not paths:
        return False
    path = random.choice(paths)
    lines = path.read_text().splitlines()
    at = random.randrange(len(lines))
    if random.random() < 0.5:
        lines[at] = json.dumps(spoil_json(random, json.loads(lines[at])))
    else:
        lines[at] = random.choice(
            ("", "x", "{}", "[1]", lines[0], json.dumps(random.choice(NASTY)))
        )
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    return True


def _spoil_video(random: Random, path: Path) -> None:
    """Change bytes of a video, cut it, delete it, or write another number of frames, or other times."""
    way = random.choice(("bytes", "bytes", "cut", "gone", "count", "times", "size"))
    data: Any = path.read_bytes()
    if way == "bytes":
        path.write_bytes(spoil_bytes(random, data, head=64))
    elif way == "cut":
        path.write_bytes(data[: random.randrange(len(data))])
    elif way == "gone":
        path.unlink()
    elif way == "size":
        write_video(path, [np.zeros((16, 16, 3), np.uint8)] * 3)
    else:
        count = random.randint(1, 12)
        ticks = sorted({max(0, 100 * n + random.randint(-90, 90)) for n in range(count)})
        frames = [toy_frame(0, n) for n in range(len(ticks))]
        write_video(path, frames, ticks=ticks if way == "times" else None)


LEROBOT_KINDS = (source_kind("lerobot", "lerobot", _make_lerobot),)
