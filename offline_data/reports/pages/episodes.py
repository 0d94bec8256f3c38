"""An episode as people look at it: curves, pictures and texts, bounded in size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import all_leaves, is_numeric
from offline_data.analysis.figures import MOST_FEATURES
from offline_data.analysis.frames import as_rgb, image_layout, image_leaves
from offline_data.base.errors import MissingDependencyError, NotFoundError
from offline_data.base.plurals import plural
from offline_data.episode.fields import REWARD, Key, join_key
from offline_data.raw.images import encode_image
from offline_data.reports.pictures import (
    MOST_POINTS,
    Curves,
    leaf_curves,
    space_evenly,
)
from offline_data.store.names import feature_names
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    from offline_data.analysis.episodes import EpisodeQuality

RETURN_SO_FAR = "return so far"  # key of the sum of the rewards up to a step

MOST_LEAVES = 6  # leaves of curves, of pictures and of texts that are shown, each

_MOST_TEXTS = 400  # changes of a text in an episode
SIDE = 160  # length in pixels to which the longer side of a picture is reduced
_OUTLIERS, _EXTREME = 8, 4  # episodes that an example begins with: outliers, and of each end
_EXACT = 48 * 48  # pixels of a picture that is not compressed with loss


@dataclass(frozen=True, eq=False)
class Frames:
    """Pictures of an image leaf, before the action of some steps."""

    key: str
    steps: tuple[int, ...]
    files: tuple[tuple[str, bytes], ...]  # media type and content of each
    note: str  # conversion of the values to pixels, if they are not pixels


@dataclass(frozen=True, eq=False)
class ShownEpisode:
    """Parts of an episode that a page shows."""

    number: int
    length: int  # steps
    final_observation: bool
    steps: NDArray[np.int64]  # steps that have a point in each curve
    curves: tuple[Curves, ...]
    frames: tuple[Frames, ...]
    # Text leaves: key, and the steps at which the text changes, with the text from there on.
    texts: tuple[tuple[str, tuple[tuple[int, str | None], ...]], ...]
    notes: tuple[str, ...]  # a sentence for each value that is not shown


def example_episodes(
    reader: DatasetReader, quality: EpisodeQuality | None = None, *, seed: int = 0
) -> Iterator[int]:
    """Yield each episode once: outliers, the best and worst by return, and all others at random.

    The first 24 are at most 8 with the most outliers, 4 of the greatest and 4 of the least return,
    and some at random, so that those come early that people look at first.
    """
    count, seen = reader.episode_count, dict[int, None]()
    if quality is not None:
        outliers = quality["outliers"]
        most = quality.order("outliers")[:_OUTLIERS]
        seen |= dict.fromkeys(most[outliers[most] > 0].tolist())
    returns = np.asarray(reader.episodes[("return",)], np.float64)
    known = np.flatnonzero(np.isfinite(returns))
    if len(known) and returns[known].min() < returns[known].max():
        order = known[np.argsort(returns[known], kind="stable")]
        seen |= dict.fromkeys([*order[::-1][:_EXTREME].tolist(), *order[:_EXTREME].tolist()])
    yield from seen
    for place in map(int, np.random.default_rng(seed).permutation(count)):
        if place not in seen:
            yield place


def curve_leaves(reader: DatasetReader) -> list[Key]:
    """Return the leaves that are drawn as curves: rewards, actions, observations, then all others."""
    images = {leaf.key for leaf in image_leaves(reader).values()}
    numeric = [
        key
        for key, leaf in all_leaves(reader).items()
        if is_numeric(leaf) and key not in images and 0 < prod(leaf.shape) <= MOST_FEATURES
    ]
    order = ["action", "observation"]
    return sorted(
        numeric, key=lambda key: (key != REWARD, *(key[0] != name for name in order), key)
    )


def read_episode(
    reader: DatasetReader,
    number: int,
    *,
    points: int = MOST_POINTS,
    pictures: int = 40,
    side: int = SIDE,
    budget: int = 1 << 20,
) -> ShownEpisode:
    """Read an episode; its number counts from 0.

    Each curve has at most `points` steps, each image leaf `pictures`, evenly spaced, the first and
    the last among the points. A picture's longer side is reduced to `side` pixels; there are fewer
    where all of them would take more than `budget` bytes. Raises `NotFoundError` without such an
    episode, `FormatError` if an image cannot be decoded.
    """
    if not 0 <= number < reader.episode_count:
        raise NotFoundError(f"{reader.manifest.id} has no episode {number}")
    length = int(reader.lengths[number])
    steps, begin = space_evenly(0, length, points), int(reader.starts[number])
    images = [leaf.key for leaf in image_leaves(reader).values()]
    numeric = curve_leaves(reader)
    texts = [key for key, leaf in all_leaves(reader).items() if leaf.text]
    frames: tuple[Frames, ...] = ()
    notes = []
    if pictures:
        try:
            share = budget // max(1, min(MOST_LEAVES, len(images)))
            frames = tuple(
                _frames(reader, key, begin, space_evenly(0, length, pictures), side, share)
                for key in images[:MOST_LEAVES]
            )
            shown = min((len(one.steps) for one in frames), default=length)
            if shown < length:
                notes.append(
                    f"This page has {shown} of {plural(length, 'frame')} of each camera. "
                    f"`offline-data view {reader.manifest.id} {number}` writes a film with all of "
                    "them."
                )
        except MissingDependencyError as error:
            notes.append(f"No pictures: {error.message} ({error.hint})")
    for what, keys in (("pictures", images), ("curves", numeric), ("texts", texts)):
        if left := keys[MOST_LEAVES:]:
            notes.append(f"Without {what} here: {', '.join(map(join_key, left))}")
    final = bool(np.asarray(reader.episodes[("final_observation",)])[number])
    if not final:
        notes.append("The last observation of this episode is unknown.")
    return ShownEpisode(
        number,
        length,
        final,
        steps,
        _curves(reader, numeric[:MOST_LEAVES], number, length, steps),
        frames,
        tuple(_texts(reader, key, begin, length) for key in texts[:MOST_LEAVES]),
        tuple(notes),
    )


def read_frames(
    reader: DatasetReader, number: int, steps: NDArray[np.int64], side: int, camera: int | None
) -> list[Frames]:
    """Read pictures of some steps of an episode, of one camera or all, as a page shows them.

    Raises `NotFoundError` without such an episode, step or camera, and as `read_episode`.
    """
    images = [leaf.key for leaf in image_leaves(reader).values()][:MOST_LEAVES]
    chosen = images if camera is None else images[camera : camera + 1]
    if not 0 <= number < reader.episode_count or not chosen or not len(steps):
        raise NotFoundError(f"{reader.manifest.id} has no such frames")
    if not 0 <= steps.min() <= steps.max() < reader.lengths[number]:
        raise NotFoundError(f"Episode {number} has {plural(int(reader.lengths[number]), 'step')}")
    begin = int(reader.starts[number])
    return [_frames(reader, key, begin, steps, side, None) for key in chosen]


def _curves(
    reader: DatasetReader,
    keys: Sequence[Key],
    episode: int,
    stop: int,
    steps: NDArray[np.int64],
) -> tuple[Curves, ...]:
    found, names, begin = [], feature_names(reader), int(reader.starts[episode])
    for key in keys:
        found.append(leaf_curves(reader, key, episode, names.get(join_key(key), ()), steps))
        if key == REWARD:
            every = np.asarray(reader.step(key)[begin : begin + stop], np.float64).ravel()
            found.append(
                Curves(RETURN_SO_FAR, ("",), episode, steps, np.cumsum(every)[steps][None])
            )
    return tuple(found)


def _frames(
    reader: DatasetReader,
    key: Key,
    begin: int,
    steps: NDArray[np.int64],
    side: int,
    budget: int | None,
) -> Frames:
    """Return pictures of at most `budget` bytes, unless one takes more."""
    pixels, note = read_pictures(reader, key, begin + steps, side)
    files = [encode_picture(picture, fast=budget is None) for picture in pixels]
    while (
        budget is not None and len(files) > 1 and sum(len(content) for _, content in files) > budget
    ):
        files, steps = files[::2], steps[::2]
    return Frames(join_key(key), tuple(steps.tolist()), tuple(files), note)


def read_pictures(
    reader: DatasetReader, key: Key, rows: NDArray[np.int64], side: int
) -> tuple[list[NDArray[np.uint8]], str]:
    """Return uint8 pictures, reduced, and how values of other types were scaled."""
    pictures = []
    for values in chain.from_iterable(reader.decoded_at(key, rows)):
        picture = as_rgb(values, image_layout(str(values.dtype), values.shape))
        step = -(-max(picture.shape[:2]) // side)
        pictures.append(_downscale(picture, step) if step > 1 else picture.copy())
    stack = np.stack(pictures)
    if stack.dtype == np.uint8:
        return list(stack), ""
    low, high = int(stack.min()), int(stack.max())
    scaled = np.rint((stack - float(low)) * (255 / max(1, high - low))).astype(np.uint8)
    return list(scaled), f"{stack.dtype} from {low} (black) to {high} (white)"


def _downscale(picture: NDArray[Any], step: int) -> NDArray[Any]:
    """Return the means of squares of `step` pixels; those left over at the edges are cut off."""
    height, width = (side // step * step for side in picture.shape[:2])
    if not height or not width:
        return picture[::step, ::step]
    cut = picture[:height, :width]
    rows = cut.reshape(height // step, step, -1).sum(
        1, dtype=np.uint32
    )  # whole rows: 20 times faster
    blocks = rows.reshape(height // step, width // step, step, *picture.shape[2:])
    return np.asarray((blocks.sum(2, dtype=np.uint64) // step**2).astype(picture.dtype))


def encode_picture(picture: NDArray[np.uint8], *, fast: bool = False) -> tuple[str, bytes]:
    """Return a picture as WebP, exact if it is small, where every pixel is seen; `fast`: as JPEG."""
    exact = picture.shape[0] * picture.shape[1] <= _EXACT
    if fast and not exact:
        return "image/jpeg", encode_image(picture, "jpeg", quality=85)
    options = {"lossless": True} if exact else {"method": 1}
    return "image/webp", encode_image(picture, "webp", quality=75, **options)


def _texts(
    reader: DatasetReader, key: Key, begin: int, length: int
) -> tuple[str, tuple[tuple[int, str | None], ...]]:
    rows = np.arange(begin, begin + length)
    codes = np.asarray(reader.values_at(key, rows)).reshape(length, -1)
    changes = np.flatnonzero((codes[1:] != codes[:-1]).any(axis=1)) + 1
    at = np.concatenate([[0], changes])[:_MOST_TEXTS]
    words = reader.as_text(key, codes[at])
    shown = [", ".join(str(word) for word in row if word is not None) or None for row in words]
    return join_key(key), tuple(zip(at.tolist(), shown, strict=True))
