"""Rows with images in notebooks: a strip of small pictures for each camera, and a table of features."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from offline_data.analysis.frames import as_rgb, image_layout, to_eight_bits
from offline_data.base.errors import MissingDependencyError
from offline_data.document.blocks import Table, table
from offline_data.document.html import Html, as_html, element, render
from offline_data.episode.fields import join_key
from offline_data.raw.images import encode_image

_MOST_FRAMES = 8
_MOST_CAMERAS = 3
_HEIGHT = 96
"""Pixels of a picture; rows and columns of larger frames are left out."""


def show_frames_of_batches() -> None:
    """Let IPython, where it runs, show frames and a table in place of the text of a batch with images."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell:
        shell.display_formatter.formatters["text/html"].for_type(TensorDict, _batch_html)


def _batch_html(batch: TensorDict) -> Html | None:
    """Return None, for which the text is shown, unless these are rows of a buffer with images."""
    if batch.ndim != 1 or not len(batch) or batch.get("index", None) is None:
        return None
    frames = strips(batch, "row")
    return as_html((frames, render(features_table(batch)))) if frames else None


def features_table(rows: TensorDictBase) -> Table:
    """Return the features of a TensorDict of rows, with the shape of all rows."""
    found = []
    for key in rows.keys(include_nested=True, leaves_only=True):
        leaf: Any = rows.get(key)
        kind = str(getattr(leaf, "dtype", None) or "text").removeprefix("torch.")
        name = key if isinstance(key, str) else join_key(key)
        found.append((name, kind, str(list(getattr(leaf, "shape", ())))))
    return table("feature:code type shape", found)


def strips(rows: TensorDictBase, noun: str = "step") -> Html:
    """Return up to 8 frames of each of the first image features, evenly spaced; empty without images."""
    try:
        return as_html(_strip(name, leaf, noun) for name, leaf in _cameras(rows))
    except MissingDependencyError:  # Pillow
        return Html()


def _cameras(rows: TensorDictBase) -> list[tuple[str, torch.Tensor]]:
    found: list[tuple[str, torch.Tensor]] = []
    for key in rows.keys(include_nested=True, leaves_only=True):
        name, leaf = key if isinstance(key, str) else join_key(key), rows.get(key)
        if isinstance(leaf, torch.Tensor) and not name.startswith("next/") and _layout(leaf):
            found.append((name, leaf))
    return found[:_MOST_CAMERAS]


def _layout(leaf: torch.Tensor) -> str:
    return image_layout(str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape[1:]))


def _strip(name: str, leaf: torch.Tensor, noun: str) -> Html:
    rows = np.unique(np.linspace(0, len(leaf) - 1, _MOST_FRAMES).round().astype(int))
    images = np.stack([leaf[row].cpu().numpy() for row in rows.tolist()])
    pictures = (
        _picture(f"{noun} {row}", frame)
        for row, frame in zip(rows, _frames(leaf, images), strict=True)
    )
    return element("div", element("code", name), element("div", pictures), class_="scroll")


def _frames(leaf: torch.Tensor, images: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    low, high = (0, 255) if images.dtype == np.uint8 else (int(images.min()), int(images.max()))
    for image in images:
        frame = as_rgb(to_eight_bits(image, low, high), _layout(leaf))
        step = -(-len(frame) // _HEIGHT)
        yield frame[::step, ::step]


def _picture(title: str, frame: NDArray[np.uint8]) -> Html:
    data = base64.b64encode(encode_image(frame, "png")).decode()
    source = Html(f"data:image/png;base64,{data}")  # a text would be cut
    return element("img", src=source, alt=title, title=title, height=_HEIGHT)
