"""Parts of an episode as people look at them: curves, pictures and texts, bounded in size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.checks.block import all_leaves, is_numeric
from offline_data.episodes.fields import REWARD, Key, join_key
from offline_data.errors import MissingDependencyError, NotFoundError
from offline_data.plurals import plural
from offline_data.readers.images import animate, encode_image
from offline_data.reports.frames import as_rgb, image_layout, image_leaves
from offline_data.reports.stats import MOST_FEATURES
from offline_data.store.reader import DatasetReader

MOST_CURVES = 6
"""Features of a leaf whose values are shown as curves."""

MOST_LEAVES = 6
"""Leaves of curves, of pictures and of texts that are shown, each."""

_MOST_TEXTS = 8
_SIDE = 160
"""Length in pixels to which the longer side of a picture is reduced."""
_LOSSY = 1.5
"""JPEG is used if PNG takes more than this many times as much."""


@dataclass(frozen=True, eq=False)
class Curves:
    """Values of a leaf at some steps."""

    key: str
    """TED key, parts joined by `/`."""
    names: tuple[str, ...]
    """Name of each curve, `action[0]`."""
    values: NDArray[np.float64]
    """`[curves, steps]`."""
    left_out: int
    """Features of the leaf that have no curve here."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Pictures of an image leaf, before the action of some steps."""

    key: str
    steps: tuple[int, ...]
    files: tuple[tuple[str, bytes], ...]
    """Media type and content of each."""
    note: str
    """Conversion of the values to pixels, if they are not pixels."""
    film: tuple[str, bytes] | None = None
    """Media type and content of an animated picture."""


@dataclass(frozen=True, eq=False)
class ExampleEpisode:
    """Steps `[first, stop)` of an episode."""

    number: int
    length: int
    """Transitions of the whole episode, as is the next field of it."""
    returned: float
    terminated: bool
    truncated: bool
    final_observation: bool
    first: int
    stop: int
    steps: NDArray[np.int64]
    """Steps that have a point in each curve."""
    curves: tuple[Curves, ...]
    frames: tuple[Frames, ...]
    texts: tuple[tuple[str, tuple[tuple[int, str | None], ...]], ...]
    """Text leaves: key, and the steps at which the text changes, with the text from there on."""
    notes: tuple[str, ...]
    """A sentence for each value that is not shown."""


def example_episodes(reader: DatasetReader) -> dict[int, str]:
    """Return numbers of up to three episodes, ascending by return, and why each was chosen.

    They are those of the lowest, the median and the highest return; if all are alike or none is
    finite, the first three.
    """
    returns = np.asarray(reader.episodes[("return",)], np.float64)
    known = np.flatnonzero(np.isfinite(returns))
    if len(known) == 0 or returns[known].min() == returns[known].max():
        return dict.fromkeys(range(min(3, len(returns))), "")
    order = known[np.argsort(returns[known], kind="stable")].tolist()
    chosen = {order[0]: "lowest return"}
    if len(order) > 2:
        chosen[order[len(order) // 2]] = "median return"
    return {**chosen, order[-1]: "highest return"}


def read_episode(
    reader: DatasetReader,
    number: int,
    first: int = 0,
    stop: int | None = None,
    *,
    points: int = 400,
    pictures: int = 8,
    film: int = 0,
    budget: int = 1 << 20,
) -> ExampleEpisode:
    """Read steps `[first, stop)` of an episode.

    Args:
        reader: The dataset.
        number: Number of the episode, counted from 0.
        first: First step.
        stop: End of the steps; None: of the episode.
        points: Steps in a curve at most; evenly spaced, the first and the last among them.
        pictures: Pictures of each image leaf, evenly spaced.
        film: Pictures of an animation of each image leaf at most; below 2: no animation.
        budget: Bytes of all pictures at most; there are fewer where it is not enough.

    Raises:
        NotFoundError: There is no such episode or step.
        FormatError: An image cannot be decoded.
    """
    if not 0 <= number < reader.episode_count:
        raise NotFoundError(f"{reader.manifest.id} has no episode {number}")
    length = int(reader.lengths[number])
    stop = length if stop is None else min(stop, length)
    if not 0 <= first < stop <= length:
        raise NotFoundError(f"Episode {number} has {plural(length, 'step')}, not {first}")
    steps, begin = _space_evenly(first, stop, points), int(reader.starts[number])
    leaves = all_leaves(reader)
    images = [leaf.key for leaf in image_leaves(reader).values()]
    numeric = [
        key
        for key, leaf in leaves.items()
        if is_numeric(leaf) and key not in images and 0 < prod(leaf.shape) <= MOST_FEATURES
    ]
    texts = [key for key, leaf in leaves.items() if leaf.text]
    frames: tuple[Frames, ...] = ()
    notes = []
    try:
        share = budget // max(1, min(MOST_LEAVES, len(images)))
        frames = tuple(
            _frames(
                reader, key, begin, _space_evenly(first, stop, pictures), (first, stop, film), share
            )
            for key in images[:MOST_LEAVES]
        )
    except MissingDependencyError as error:
        notes.append(f"No pictures: {error.message} ({error.hint})")
    numeric.sort(key=lambda key: (key != REWARD, key[0] != "action", key))
    for what, keys in (("pictures", images), ("curves", numeric), ("texts", texts)):
        if left := keys[MOST_LEAVES:]:
            notes.append(f"Without {what} here: {', '.join(map(join_key, left))}")

    def of_episode(name: str) -> Any:
        return np.asarray(reader.episodes[(name,)])[number].item()

    return ExampleEpisode(
        number,
        length,
        of_episode("return"),
        of_episode("terminated"),
        of_episode("truncated"),
        of_episode("final_observation"),
        first,
        stop,
        steps,
        _curves(reader, numeric[:MOST_LEAVES], begin, stop, steps),
        frames,
        tuple(_texts(reader, key, begin, first, stop) for key in texts[:MOST_LEAVES]),
        tuple(notes),
    )


def _space_evenly(first: int, stop: int, most: int) -> NDArray[np.int64]:
    """Return up to `most` of the integers `[first, stop)`, evenly spaced, the ends among them."""
    found = np.linspace(first, stop - 1, min(most, stop - first))
    return np.unique(found.round().astype(np.int64))


def _rows(reader: DatasetReader, key: Key, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return a leaf at step rows, for observations before the action; encoded images decoded."""
    if key in reader.observation_leaves:
        return np.asarray(reader.observations_at(key, rows, after=False))
    return np.asarray(reader.step(key)[rows])


def _curves(
    reader: DatasetReader,
    keys: Sequence[Key],
    begin: int,
    stop: int,
    steps: NDArray[np.int64],
) -> tuple[Curves, ...]:
    found = []
    for key in keys:
        values = _rows(reader, key, begin + steps)
        flat = values.reshape(len(steps), -1)[:, :MOST_CURVES].astype(np.float64).T
        name, shape = join_key(key), values.shape[1:]
        places = list(np.ndindex(*shape))[:MOST_CURVES] if prod(shape) > 1 else [()]
        names = tuple(name + (str(list(place)) if place else "") for place in places)
        found.append(Curves(name, names, flat, max(0, prod(shape) - MOST_CURVES)))
        if key == REWARD:
            every = np.asarray(reader.step(key)[begin : begin + stop], np.float64).ravel()
            so_far = np.cumsum(every)[steps]
            found.append(Curves("return so far", ("return so far",), so_far[None], 0))
    return tuple(found)


def _frames(
    reader: DatasetReader,
    key: Key,
    begin: int,
    steps: NDArray[np.int64],
    film: tuple[int, int, int],
    budget: int,
) -> Frames:
    """Return pictures of at most `budget` bytes, unless one takes more, animation included."""
    pixels, note = _pixels(reader, key, begin + steps)
    files = [_encode_smaller(picture) for picture in pixels]
    while len(files) > 1 and sum(len(content) for _, content in files) > budget:
        files, steps = files[::2], steps[::2]
    left, moving = budget - sum(len(content) for _, content in files), None
    shown = begin + _space_evenly(*film)
    pixels = _pixels(reader, key, shown)[0] if len(shown) > 1 else []
    while len(pixels) > 1 and moving is None:
        moving = animate(pixels)
        if len(moving[1]) > left:
            moving, pixels = None, pixels[::2]
    return Frames(join_key(key), tuple(steps.tolist()), tuple(files), note, moving)


def _pixels(
    reader: DatasetReader, key: Key, rows: NDArray[np.int64]
) -> tuple[list[NDArray[np.uint8]], str]:
    """Return uint8 pictures, reduced, and how values of other types were scaled."""
    pictures = []
    for row in rows:  # one by one: a picture may have many times the pixels of a reduced one
        values = _rows(reader, key, row[None])[0]
        picture = as_rgb(values, image_layout(str(values.dtype), values.shape))
        step = -(-max(picture.shape[:2]) // _SIDE)
        pictures.append(_downscale(picture, step) if step > 1 else picture)
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
    blocks = cut.reshape(height // step, step, width // step, step, *picture.shape[2:])
    return np.asarray(blocks.mean((1, 3)).astype(picture.dtype))


def _encode_smaller(picture: NDArray[np.uint8]) -> tuple[str, bytes]:
    exact, lossy = encode_image(picture, "png"), encode_image(picture, "jpeg", 85)
    if len(exact) <= _LOSSY * len(lossy):
        return "image/png", exact
    return "image/jpeg", lossy


def _texts(
    reader: DatasetReader, key: Key, begin: int, first: int, stop: int
) -> tuple[str, tuple[tuple[int, str | None], ...]]:
    codes = _rows(reader, key, np.arange(begin + first, begin + stop)).reshape(stop - first, -1)
    changes = np.flatnonzero((codes[1:] != codes[:-1]).any(axis=1)) + 1
    at = np.concatenate([[0], changes])[:_MOST_TEXTS]
    words = reader.as_text(key, codes[at])
    shown = [", ".join(str(word) for word in row if word is not None) or None for row in words]
    return join_key(key), tuple(zip((at + first).tolist(), shown, strict=True))
