"""Replay buffers in zarr, written as `ReplayBuffer` of Diffusion Policy writes them with zarr 2.

See its `diffusion_policy/common/replay_buffer.py`: arrays are chunked along time only, and compressed by
Blosc where `compressed` is set (`resolve_compressor`); `write_umi` has the names of UMI's
`scripts_slam_pipeline/07_generate_replay_buffer.py`. Step `t` of episode `e` has the code
`100·(e + 1) + t`.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (4, 1, 6, 3)
GROUP = '{\n    "zarr_format": 2\n}'


def code_of(lengths: tuple[int, ...] = LENGTHS) -> Any:
    return np.concatenate([100.0 * (e + 1) + np.arange(n) for e, n in enumerate(lengths)])


def toy_arrays(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Return the arrays of the pusht set."""
    code = code_of(lengths)[:, None].astype(np.float32)
    pixels = np.repeat(np.repeat(code[:, None, None] % 97, 4, axis=1), 4, axis=2)
    return {
        "data/img": np.repeat(pixels, 3, axis=3),
        "data/state": np.repeat(code, 5, axis=1),
        "data/action": -np.repeat(code, 2, axis=1),
        "data/keypoint": np.repeat(code[:, None], 9, axis=1).repeat(2, axis=2) + 0.5,
        "data/n_contacts": code % 2,
        "meta/episode_ends": np.cumsum(lengths),
    }


def umi_arrays(lengths: tuple[int, ...] = LENGTHS, robots: int = 1) -> dict[str, Any]:
    """Return the arrays of UMI, which has no actions."""
    code = code_of(lengths)[:, None]
    found: dict[str, Any] = {"meta/episode_ends": np.cumsum(lengths)}
    for robot in range(robots):
        start = np.repeat(code // 100, 6, axis=1)  # float64, as of `demo_start_pose`
        found |= {
            f"data/robot{robot}_eef_pos": np.repeat(code + robot, 3, axis=1).astype(np.float32),
            f"data/robot{robot}_eef_rot_axis_angle": np.repeat(code / 8, 3, 1).astype(np.float32),
            f"data/robot{robot}_gripper_width": (code / 64).astype(np.float32),
            f"data/robot{robot}_demo_start_pose": start,
            f"data/robot{robot}_demo_end_pose": start + 1,
        }
    return found


def write_zarr(
    path: Path, arrays: dict[str, Any], *, chunk: int = 3, compressed: bool = False, **changed: Any
) -> Path:
    """Write a folder; `changed`: metadata of all arrays of `data`."""
    for group in ("", "data", "meta"):
        (path / group).mkdir(parents=True, exist_ok=True)
        (path / group / ".zgroup").write_text(GROUP)
    for name, values in arrays.items():
        write_array(path / name, np.asarray(values), chunk if name.startswith("data") else None, compressed, changed)  # fmt: skip
    return path


def write_array(
    folder: Path, values: Any, chunk: int | None, compressed: bool, changed: dict[str, Any]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    codec: Any = None
    if compressed and chunk:
        import numcodecs

        codec = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.NOSHUFFLE)
    chunk = chunk or max(1, len(values))
    metadata = {
        "chunks": [chunk, *values.shape[1:]],
        "compressor": codec and codec.get_config(),
        "dtype": values.dtype.str,
        "fill_value": 0.0 if values.dtype.kind == "f" else 0,
        "filters": None,
        "order": "C",
        "shape": list(values.shape),
        "zarr_format": 2,
    }
    (folder / ".zarray").write_text(json.dumps({**metadata, **changed}, indent=4, sort_keys=True))
    for number, start in enumerate(range(0, len(values), chunk)):
        rows = np.zeros((chunk, *values.shape[1:]), values.dtype)
        rows[: len(values[start : start + chunk])] = values[start : start + chunk]
        data = rows.tobytes() if codec is None else codec.encode(rows)
        (folder / ".".join([str(number)] + ["0"] * (values.ndim - 1))).write_bytes(data)


def write_zip(path: Path, folder: Path, top: str = "") -> Path:
    """Write a zip of a folder as `zarr.ZipStore` does, stored; `top`: folder of all names in it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, top + file.relative_to(folder).as_posix())
    return path
