"""Toy Gen-DGRL episodes, in the formats of its collector and of its published files.

Step `t` of episode `e` has the code `16·e + t + 1` (below 256). A frame, 3 × 4 × 4, has the code in
every element except the first, which is `t`; its last one is the first frame of the next episode. The
action is `t % 15`, the reward a quarter of the code.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FIRST_SEED = 40
"""Level seed of episode 0; it increases by one per episode."""


def toy_arrays(episode: int, length: int) -> dict[str, NDArray[Any]]:
    """Return the arrays in the file of an episode."""
    code = 16 * episode + np.arange(length) + 1
    frames = np.ones((length + 1, 3, 4, 4), np.float32)
    frames[:-1] *= code[:, None, None, None]
    frames[-1] *= 16 * (episode + 1) + 1
    frames[:, 0, 0, 0] = [*range(length), 0]
    return {
        "observations": frames,
        "actions": (np.arange(length) % 15)[:, None],
        "rewards": (code / 4).astype(np.float32)[:, None],
        "dones": (np.arange(length) == length - 1).astype(np.float32),
    }


def toy_name(episode: int, length: int, total: float, suffix: str = "npz") -> str:
    """Return the file name of an episode."""
    time = f"20220101T1200{episode:02d}"
    return f"{time}_{episode}_{length}_{FIRST_SEED + episode}_{total:.2f}.{suffix}"


def toy_files(
    lengths: Sequence[int], folder: str = "bigfish", kind: Literal["npz", "pickle"] = "npz"
) -> dict[str, bytes]:
    """Return the files of episodes of these lengths, by their names in an archive.

    With `pickle`, files are dicts of arrays pickled by `numpy.save`, named `.npy`.
    """
    files = {}
    for episode, length in enumerate(lengths):
        arrays = toy_arrays(episode, length)
        suffix = "npz" if kind == "npz" else "npy"
        name = toy_name(episode, length, float(arrays["rewards"].sum()), suffix)
        files[f"{folder}/{name}"] = packed(arrays, kind)
    return files


def packed(arrays: Mapping[str, Any], kind: Literal["npz", "pickle"] = "npz") -> bytes:
    """Return the bytes of the file of an episode."""
    content = io.BytesIO()
    if kind == "npz":
        np.savez_compressed(content, **arrays)
    else:
        np.save(content, np.array(dict(arrays), object))
    return content.getvalue()


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write an archive in the format of the suffix of `path`; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode: Literal["w:xz", "w"] = "w:xz" if path.suffix == ".xz" else "w"
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path
