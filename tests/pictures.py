"""Images that tell their row, written by Pillow and not by us, and datasets of them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import MANIFEST
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

PIXELS: Key = ("observation", "pixels")
NEXT: Key = ("next", *PIXELS)
WRIST: Key = ("wrist",)
"""A leaf of the steps."""

Kind = tuple[str, str, tuple[int, ...]]
LENGTHS = (3, 1, 4, 2, 6)
ROWS = sum(LENGTHS) + len(LENGTHS)
PNG: Kind = ("png", "uint8", (12, 17, 3))
JPEG: Kind = ("jpeg", "uint8", (40, 33, 3))


def pictures(count: int, kind: Kind = PNG, first: int = 0) -> NDArray[Any]:
    """Make images of which no two are alike, whatever is lost by JPEG."""
    _, dtype, shape = kind
    height, width = np.mgrid[: shape[0], : shape[1]]
    rows = np.arange(first, first + count)[:, None, None]
    made = (rows * 37 + height * 3 + width * 5) % 251
    made = made * 257 + rows if dtype == "uint16" else made
    made = made[..., None] + np.arange(shape[2]) if len(shape) == 3 else made
    return np.asarray(made.astype(dtype))


def written(image: NDArray[Any], encoding: str, **options: Any) -> bytes:
    """Write an image as a source has it."""
    file = io.BytesIO()
    flat = image[..., 0] if image.shape[2:] == (1,) else image
    Image.fromarray(flat).save(file, encoding.upper(), **options)
    return file.getvalue()


def read(data: bytes) -> NDArray[Any]:
    """Read an image by Pillow's public way."""
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image)


def column(count: int, kind: Kind = PNG, first: int = 0) -> Any:
    """Make an encoded column of `pictures`."""
    return EncodedColumn.of([written(one, kind[0]) for one in pictures(count, kind, first)], kind)


def encoded_batch(
    lengths: Sequence[int] = LENGTHS, kind: Kind = PNG, first_episode: int = 0, first: int = 0
) -> EpisodeBatch:
    """Make toy episodes with two encoded leaves: `PIXELS` and, 500 images later, `WRIST`."""
    batch = toy_batch(lengths, first_episode=first_episode, text=True)
    count = batch.transitions
    return replace(
        batch,
        steps={**batch.steps, WRIST: column(count, kind, 500 + first)},
        observations={**batch.observations, PIXELS: column(count + len(lengths), kind, first)},
    )


def with_pixels(values: Any) -> EpisodeBatch:
    """Make toy episodes with another column as `PIXELS`."""
    batch = encoded_batch()
    return replace(batch, observations={**batch.observations, PIXELS: values})


def raw(batch: EpisodeBatch) -> EpisodeBatch:
    """Return the same episodes with pixels in place of encoded images."""
    steps, observations = (
        {key: np.asarray(values) for key, values in table.items()}
        for table in (batch.steps, batch.observations)
    )
    return replace(batch, steps=steps, observations=observations)


def write(folder: Path, *batches: EpisodeBatch) -> Path:
    """Write a dataset with everything audited."""
    write_toy(folder, batches or [encoded_batch()])
    return folder


def restate(folder: Path) -> None:
    """Let a manifest have the sizes and digests of the files as they are."""
    path = folder / MANIFEST
    value = json.loads(path.read_text())
    value.pop("sha256", None)
    for name in value["digests"]:
        data = (folder / name).read_bytes()
        value["digests"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(value))


def images_on_disk(folder: Path, key: Key = PIXELS, *, whole: bool = True) -> list[bytes]:
    """Read an encoded leaf as `cache_layout.md` says, by nothing of ours.

    `whole`: the images are all bytes of the file, as `verify` requires and reading rows does not.
    """
    spec = json.loads((folder / MANIFEST).read_text())["schema"]
    spec = spec["steps" if key == WRIST else "observations"]
    leaf = next(one for one in spec["leaves"] if one["key"] == list(key))
    data = (folder / leaf["file"]).read_bytes()
    offsets = np.fromfile(folder / leaf["file"].replace(".bytes", ".offsets"), "<i8").tolist()
    assert len(offsets) == spec["rows"] + 1
    assert not whole or (offsets[0], offsets[-1]) == (0, len(data))
    return [data[a:b] for a, b in pairwise(offsets)]
