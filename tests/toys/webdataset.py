"""Tar files of pickled episodes like the hub's copy of Open X-Embodiment, with self-identifying values.

| flavour | an image | an action | a text |
|---|---|---|---|
| `array` | pixels | dict | `bytes` |
| `file` | `{"bytes", "path"}` of a PNG | array | `str` |
| `bytes` | the bytes of a JPEG | array | `str` |
| `pil` | an image of Pillow | array | `str` |
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offline_data.raw.images import encode_image

Flavour = Literal["array", "file", "bytes", "pil"]

HEIGHT, WIDTH = 8, 9


def toy_pixels(episode: int, step: int) -> Any:
    """Return the image of a step, uint8 `[8, 9, 3]`."""
    first = 37 * episode + 5 * step
    return ((first + np.arange(HEIGHT * WIDTH * 3)) % 256).astype(np.uint8).reshape(8, 9, 3)


def toy_steps(
    episode: int, length: int, flavour: Flavour, *, only_observation: bool = False
) -> list[dict[str, Any]]:
    """Return the steps of an episode; every second episode ends terminated.

    Args:
        episode: Its number.
        length: Number of steps.
        flavour: Format of images, actions and texts.
        only_observation: Whether the last step only has an observation.
    """
    steps = []
    for t in range(length):
        code = 1000.0 * (episode + 1) + t + 1
        gone = 0.0 if only_observation and t == length - 1 else 1.0
        pixels: Any = toy_pixels(episode, t)
        if flavour == "file":
            pixels = {"bytes": encode_image(pixels, "png"), "path": None}
        elif flavour == "bytes":
            pixels = encode_image(pixels, "jpeg")
        elif flavour == "pil":
            from PIL import Image

            pixels = Image.fromarray(pixels)
        arm = np.full(3, -code * gone, np.float32)
        text = f"put the cup {episode}"
        steps.append(
            {
                "observation": {"image": pixels, "state": np.full(7, code, np.float64)},
                "action": {"arm": arm, "grip": arm[:1]} if flavour == "array" else arm,
                "reward": np.float32(code / 10 * gone),
                "discount": np.float32(gone),
                "language_instruction": text.encode() if flavour == "array" else text,
                "is_first": np.bool_(t == 0),
                "is_last": np.bool_(t == length - 1),
                "is_terminal": np.bool_(t == length - 1 and episode % 2 == 0),
            }
        )
    return steps


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    """Write members by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def write_webdataset(
    folder: Path, name: str, flavour: Flavour, shards: Sequence[Sequence[int]] = ((3, 1), (4,))
) -> Path:
    """Write tar files of episodes of these lengths; returns their folder."""
    episode = 0
    for number, lengths in enumerate(shards):
        members = []
        for length in lengths:
            value = {
                "steps": toy_steps(episode, length, flavour),
                "episode_metadata": {"file_path": f"/x/{episode}", "success": episode % 2 == 0},
            }
            members.append((f"episode_{episode:06d}.data.pickle", pickle.dumps(value)))
            episode += 1
        write_tar(folder / f"{name}_{number:05d}.tar", members)
    return folder
