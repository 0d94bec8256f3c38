"""Episodes of ALOHA, written as the recorders of tonyzhaozh/act and MarkFzp/mobile-aloha do."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

CAMERAS = ("cam_high", "cam_left_wrist")
LENGTHS = (5, 3, 4)
JOINTS = 14


def toy_episode(number: int, length: int, *, mobile: bool = False) -> dict[str, Any]:
    """Return the arrays of an episode, pixels for cameras; `qpos` `t` is `100·(number + 1) + t`."""
    code = 100.0 * (number + 1) + np.arange(length)
    rows = np.repeat(code[:, None], JOINTS, axis=1).astype("f4") + np.arange(JOINTS) / 16
    arrays = {
        "observations/qpos": rows.astype("f4"),
        "observations/qvel": -rows.astype("f4"),
        "observations/effort": (rows / 2).astype("f4"),
        "action": (rows * 3).astype("f4"),
    }
    if mobile:
        arrays["base_action"] = np.stack([code, code + 0.5], axis=1).astype("f4")
    for c, camera in enumerate(CAMERAS):
        y, x = np.mgrid[:24, :32]
        frames = [
            np.stack([x * 8, y * 8, np.full_like(x, (40 * number + 9 * t + 70 * c) % 256)], axis=-1)
            for t in range(length)
        ]
        arrays[f"observations/images/{camera}"] = np.array(frames, np.uint8)
    return arrays


def jpeg_files(frames: Any) -> list[bytes]:
    files = []
    for frame in frames:
        Image.fromarray(frame).save(stream := io.BytesIO(), "jpeg", quality=50)
        files.append(stream.getvalue())
    return files


def write_episode(path: Path, arrays: dict[str, Any], images: str = "raw") -> Path:
    """Write an episode with `images` raw, `padded` (JPEG and `compress_len`) or `ragged` (JPEG)."""
    files = {n: jpeg_files(v) for n, v in arrays.items() if "/images/" in n and images != "raw"}
    width = max((len(one) for some in files.values() for one in some), default=0)
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = images == "raw"
        for name, values in arrays.items():
            if name not in files:
                chunks = (1, *values.shape[1:]) if "/images/" in name else None
                file.create_dataset(name, data=values, chunks=chunks)
            elif images == "padded":
                rows = [np.frombuffer(one.ljust(width, b"\0"), np.uint8) for one in files[name]]
                file.create_dataset(name, data=np.array(rows), chunks=(1, width))
            else:
                rows = file.create_dataset(name, (len(values),), h5py.vlen_dtype(np.uint8))
                for row, one in enumerate(files[name]):
                    rows[row] = np.frombuffer(one, np.uint8)
        if images == "padded":
            file.attrs["compress"] = True
            sizes = [[len(one) for one in some] for some in files.values()]
            file.create_dataset("compress_len", data=np.array(sizes, "f4"))
    return path


def write_aloha(folder: Path, images: str = "raw", **more: Any) -> Path:
    """Write episodes of `LENGTHS` with the numbers 0, 2 and 10."""
    folder.mkdir()
    for number, length in zip((0, 2, 10), LENGTHS, strict=True):
        write_episode(
            folder / f"episode_{number}.hdf5", toy_episode(number, length, **more), images
        )
    return folder
