"""Frames of an episode from its image features, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.transitions import episode_span
from offline_data.base.errors import UsageError
from offline_data.episode.fields import Key, join_key
from offline_data.store.layout import EPISODE, LeafSpec
from offline_data.store.reader import DatasetReader

SMALLEST = 8  # least height and width of an image
_MOST_STACKED = 16


@dataclass(frozen=True, eq=False)
class Film:
    """Frames of one image feature over one episode."""

    key: str  # TED key of the leaf, parts joined by `/`
    length: int  # frames: one before each action, and the one after the last action if it is known
    height: int
    width: int
    notes: tuple[str, ...]  # changes to the stored values, in sentences
    frames: Iterator[NDArray[np.uint8]]  # `[height, width, 3]` RGB each; can be read once


def image_leaves(reader: DatasetReader) -> dict[str, LeafSpec]:
    """Return the features that are images by dtype and shape: observations first, colour before grey.

    uint8 `[H, W]`, `[H, W, C]` or `[C, H, W]`, and uint16 `[H, W]` or `[H, W, 1]`, where H and W
    are at least `SMALLEST` and C at most 16.
    """
    leaves = {**reader.observation_leaves, **reader.step_leaves}
    found = {
        join_key(key): leaf
        for key, leaf in leaves.items()
        if not leaf.text and key != EPISODE and image_layout(leaf.dtype, leaf.shape)
    }
    order = ("last", "alpha", "first", "stack", "grey")

    def rank(name: str) -> tuple[bool, bool, int, str]:
        leaf = found[name]
        kind = order.index(image_layout(leaf.dtype, leaf.shape))
        return leaf.key not in reader.observation_leaves, leaf.dtype != "uint8", kind, name

    return {name: found[name] for name in sorted(found, key=rank)}


def film(reader: DatasetReader, episode: int, leaf: str | None = None) -> Film:
    """Return the frames of an episode; nothing is read before they are.

    Channels first are moved last, grey becomes RGB, of a stack of frames the newest is shown (the
    last, or the last three channels if their number is a multiple of 3), transparency is dropped.
    uint16 is scaled from the least to the greatest value in the episode, which reads it once more.
    Without `leaf`, the first image feature is shown. Raises `NotFoundError` for an unknown episode,
    `UsageError` if `leaf` is not an image feature, or the dataset has none.
    """
    begin, stop = episode_span(reader, episode)
    known = image_leaves(reader)
    name = leaf or next(iter(known), "")
    if name not in known:
        leaves = {**reader.observation_leaves, **reader.step_leaves}
        listed = [f"{join_key(k)} {one.dtype}{list(one.shape)}" for k, one in leaves.items()]
        raise UsageError(
            f"{reader.manifest.id} has no image feature"
            + (f" named {leaf!r}; image features: {', '.join(known) or 'none'}" if leaf else "")
            + f". Its features: {', '.join(listed[:20])}{', …' * (len(listed) > 20)}",
            hint="--leaf KEY names an image feature" if known else "`offline-data plot ID`",
        )
    spec = known[name]
    kind = image_layout(spec.dtype, spec.shape)
    notes = [_NOTES[kind].format(shape=list(spec.shape))] if _NOTES.get(kind) else []
    if len(known) > 1 and leaf is None:
        others = ", ".join(one for one in known if one != name)
        notes.append(f"{name} is shown; other images (--leaf): {others}")
    rows = stop - begin + _has_final(reader, spec.key, episode)
    low, high = 0, 255
    if spec.dtype == "uint16":
        ends = [(int(c.min()), int(c.max())) for c in _chunks(reader, spec, episode)]
        low, high = min(one for one, _ in ends), max(one for _, one in ends)
        notes.append(f"uint16 values from {low} to {high} are drawn from black to white")
    frames = (
        as_rgb(to_eight_bits(image, low, high), kind)
        for chunk in _chunks(reader, spec, episode)
        for image in chunk
    )
    height, width = spec.shape[-2:] if kind in {"stack", "first"} else spec.shape[:2]
    return Film(name, rows, height, width, tuple(notes), frames)


_NOTES = {
    "stack": "of each stack {shape} the newest frame is shown: the last, or the last three channels",
    "alpha": "the fourth channel, transparency, is not shown",
}


def image_layout(dtype: str, shape: tuple[int, ...]) -> str:
    """Return how a row is an image: `grey`, channels `last` or `first`, `alpha`, or `stack`.

    Example:
        >>> image_layout("uint8", (84, 84, 3)), image_layout("uint8", (4, 84, 84))
        ('last', 'stack')
        >>> image_layout("float32", (84, 84)), image_layout("uint8", (3, 4))
        ('', '')
    """
    big = [side >= SMALLEST for side in shape]
    if dtype == "uint16":
        return "grey" if len(shape) in {2, 3} and all(big[:2]) and shape[2:] in {(), (1,)} else ""
    if dtype != "uint8" or len(shape) not in {2, 3} or sum(big) < 2:
        return ""
    if len(shape) == 2:
        return "grey"
    if all(big[:2]) and shape[2] in {1, 3, 4}:
        return {1: "grey", 3: "last", 4: "alpha"}[shape[2]]
    if all(big[1:]) and 1 <= shape[0] <= _MOST_STACKED:
        return "first" if shape[0] in {1, 3} else "stack"
    return ""


def _has_final(reader: DatasetReader, key: Key, episode: int) -> bool:
    known = bool(reader.final[episode])
    return known and key in reader.observation_leaves


def _chunks(reader: DatasetReader, leaf: LeafSpec, episode: int) -> Iterator[NDArray[Any]]:
    """Yield the images of an episode `[n, *shape]` in order, decoded, a few at a time."""
    begin, stop = episode_span(reader, episode)
    yield from reader.decoded_at(leaf.key, np.arange(begin, stop))
    if _has_final(reader, leaf.key, episode):
        yield from reader.decoded_at(leaf.key, np.array([stop - 1]), after=True)


def to_eight_bits(image: NDArray[Any], low: int, high: int) -> NDArray[np.uint8]:
    """Return an image of uint8 unchanged, and other values from `low` to `high` as 0 to 255."""
    if image.dtype == np.uint8:
        return image
    part = (image.astype(np.float64) - low) / max(high - low, 1)
    return np.asarray(np.rint(255 * part), np.uint8)


def as_rgb(image: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return an image of a layout (see `image_layout`) as C-contiguous RGB `[H, W, 3]`."""
    if kind in {"first", "stack"}:
        newest = image[-3:] if len(image) % 3 == 0 else image[-1:]
        image = np.moveaxis(newest, 0, 2)
    image = image[..., None] if image.ndim == 2 else image[..., :3]
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))
