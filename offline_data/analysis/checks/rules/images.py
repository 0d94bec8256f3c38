"""Rules on images: black, frozen, order of channels, lossy.

Encoded images are not all decoded: at most 256 frames of a feature are, spread over the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, RowPlace, all_leaves, is_image, zero_rows
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.rule import Measured, Rule, Tally
from offline_data.base.plurals import plural_of
from offline_data.episode.fields import Key, join_key, next_of
from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import OBSERVATIONS, VIDEO, LeafSpec
from offline_data.store.reader import DatasetReader

_CHANNELS = (1, 3, 4)  # numbers of channels of one image: grey, RGB, RGBA

_SMALLEST = 16  # number of the smallest encoded frames to decode, one per file size

_ROWS = 1024  # encoded frames of one size that are compared at once


class BlackImages(Rule):
    """Frames of an image feature are 0 in every pixel.

    Causes are a camera that was not ready, a renderer without a display, or a feature that was never
    written. A black frame at the start of an episode is common with real cameras; a feature of black
    frames only is an error.

    All raw frames are checked. Of encoded ones, a sample of 256 spread over the dataset is decoded,
    and the 16 with the fewest bytes, since black frames compress best; other frames with the bytes
    of a black one are counted without decoding. The count is a lower bound if several encoders
    wrote the feature. Of videos, only the sample is checked.
    """

    code = "RL050"
    name = "black-images"
    severity = "warning"
    hint = "remove these rows with a filter, or inspect the source with `view`"
    thresholds: ClassVar = {"share": 0.001, "sample": 256}
    explained: ClassVar = {
        "share": "Share of black frames, 0 to 1, above which it is reported.",
        "sample": "Encoded frames of a feature that are decoded.",
    }

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return [key for key, leaf in image_leaves(reader).items() if leaf.encoding is None]

    def measure(self, block: RowBlock, key: Key) -> Tally:
        values = block.numbers(key)
        black = zero_rows(values.reshape(len(values), -1))
        return Tally.of(block, key, black, rows=len(values))

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        leaves = dict(measured.leaves)
        for key, leaf in image_leaves(reader).items():
            if leaf.encoding is not None:
                leaves[key] = self._measure_sample(reader, key)
        for key, found in leaves.items():
            if found.number > self.limits["share"] * found.rows:
                always = found.number == found.rows
                drop = f"`offline-data preprocess {reader.manifest.id} --step exclude:{join_key(key)} --out NAME`"
                yield self.finding(
                    reader,
                    f"{plural_of(found.number, found.rows, 'frame', 'is', 'are')} black",
                    found.place,
                    count=found.number,
                    severity="error" if always else None,
                    hint=f"drop the camera: {drop}" if always else None,
                )

    def _measure_sample(self, reader: DatasetReader, key: Key) -> Tally:
        column, known = encoded_rows(reader, key)
        if column.encoding == VIDEO:
            looked = known[spread(len(known), self.limits["sample"])]
            rows = looked[~_any(column[looked])]
            place = encoded_place(reader, key, int(rows[0])) if len(rows) else None
            return Tally(number=len(rows), rows=len(looked), place=place)
        begins, ends = column.bounds()
        sizes = (ends - begins)[known]
        smallest = np.unique(sizes, return_index=True)[1][:_SMALLEST]
        looked = np.union1d(spread(len(known), self.limits["sample"]), smallest)
        black = np.zeros(len(known), bool)
        for at in looked[~_any(column[known[looked]])].tolist():
            if not black[at]:
                same = np.flatnonzero(sizes == sizes[at])
                (data,) = column[known[at : at + 1]].images()
                for part in np.split(same, range(_ROWS, len(same), _ROWS)):
                    found = column[known[part]].images()
                    black[part] |= np.array([frame == data for frame in found], bool)
        rows = np.flatnonzero(black)
        place = encoded_place(reader, key, int(known[rows[0]])) if len(rows) else None
        return Tally(number=len(rows), rows=len(known), place=place)


class FrozenImages(Rule):
    """A camera shows the same frame through whole episodes, or frames of one colour.

    The image carries no information: the camera or renderer hung. Images of a goal do not change in
    an episode: features with `goal` in their name are not checked.

    Compares the first, middle and last frames, and two between them, of a sample of 256 episodes
    with at least 8 transitions; where these are equal, all frames of the episode. Encoded frames
    are compared by their bytes, those of videos after decoding. A sample of 256 frames is checked
    for frames of one colour; black ones are reported by RL050 only.
    """

    code = "RL051"
    name = "frozen-images"
    severity = "warning"
    hint = "inspect such an episode with `view`; remove the camera or the episodes"
    thresholds: ClassVar = {"steps": 8, "sample": 256, "colour_share": 0.05}
    explained: ClassVar = {
        "steps": "Transitions of the shortest episode that is compared.",
        "sample": "Episodes that are compared, and frames that are checked for one colour.",
        "colour_share": "Share of frames of one colour, 0 to 1, above which it is reported.",
    }

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for key, leaf in image_leaves(reader).items():
            if not any("goal" in part.lower() for part in key):
                yield from self._frozen(reader, key)
                yield from self._one_colour(reader, key, leaf)

    def _frozen(self, reader: DatasetReader, key: Key) -> Iterator[Finding]:
        long = np.flatnonzero(reader.lengths >= self.limits["steps"])
        some = long[spread(len(long), self.limits["sample"])]
        frozen = [episode for episode in some.tolist() if _is_frozen(reader, key, episode)]
        if frozen:
            yield self.finding(
                reader,
                plural_of(len(frozen), len(some), "examined episode", "shows", "show")
                + " one frame from first to last",
                leaf=join_key(key),
                episode=frozen[0],
                row=int(reader.starts[frozen[0]]),
                count=len(frozen),
            )

    def _one_colour(self, reader: DatasetReader, key: Key, leaf: LeafSpec) -> Iterator[Finding]:
        rows = spread(reader.transitions, self.limits["sample"])
        first = leaf.shape[-1] not in _CHANNELS and leaf.shape[0] in _CHANNELS
        flat = np.concatenate(
            [
                _of_one_colour(np.moveaxis(frames, 1, -1) if first else frames)
                for frames in reader.decoded_at(key, rows)
            ]
        )
        if flat.sum() > self.limits["colour_share"] * len(rows):
            row = int(rows[flat.argmax()])
            yield self.finding(
                reader,
                plural_of(int(flat.sum()), len(rows), "examined frame", "has", "have")
                + " one colour",
                leaf=join_key(key),
                episode=_episode(reader, row),
                row=row,
                count=int(flat.sum()),
                about="one colour",
            )


class ChannelOrder(Rule):
    """The axes of an image feature are not height, width, channels.

    Torch's convolutions take frames of [3, H, W]; Pillow, OpenCV and Matplotlib do not, and
    `ToTensor` permutes axes that are right already. If the declared space has another order than
    the stored frames, one of them is wrong, and the finding is a warning.

    Only shapes are checked: 1, 3 or 4 on the first axis and not on the last. BGR in place of RGB
    cannot be detected in pixels; where it was published, RL004 reports it.
    """

    code = "RL052"
    name = "channel-order"
    severity = "info"
    hint = "permute axes where frames are shown; `ToTensor` is not needed"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for key, leaf in image_leaves(reader).items():
            if len(leaf.shape) != 3:
                continue
            stored, declared = list(leaf.shape), _declared_shape(reader.manifest.spaces, key)
            moved = declared in ([*stored[1:], stored[0]], [stored[2], *stored[:2]])
            if moved and declared != stored:
                yield self.finding(
                    reader,
                    f"Frames are {stored}, and the declared space is {declared}",
                    leaf=join_key(key),
                    severity="warning",
                )
            elif stored[0] in _CHANNELS and stored[-1] not in _CHANNELS:
                yield self.finding(
                    reader, f"Frames are {stored}: channels come first", leaf=join_key(key)
                )


class LossyImages(Rule):
    """Images went through JPEG, which changes pixels.

    Values differ from what the policy saw by some levels, more at edges; small objects and text can
    vanish. Minari encodes images so by default since 0.5.3
    (https://github.com/Farama-Foundation/Minari/pull/275), and can leave it since 0.5.4
    (https://github.com/Farama-Foundation/Minari/pull/327). Mostly harmless, but do not compare
    frames with those of a simulator bit by bit. Sources that decode JPEG without a note are not
    detected.
    """

    code = "RL053"
    name = "lossy-images"
    severity = "info"
    hint = "train and evaluate with the same encoding; record with PNG or raw pixels"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader, encoded = measured.reader, False
        for key, leaf in image_leaves(reader).items():
            if leaf.encoding == "jpeg":
                encoded = True
                yield self.finding(reader, "Images are JPEG", leaf=join_key(key))
        noted = any("lossy JPEG in the source" in note for note in reader.manifest.notes)
        if noted and not encoded:
            yield self.finding(reader, "Images were JPEG in the source, and are stored decoded")


def image_leaves(reader: DatasetReader) -> dict[Key, LeafSpec]:
    """Return the image features by root key."""
    return {key: leaf for key, leaf in all_leaves(reader).items() if is_image(leaf)}


def spread(count: int, most: float) -> NDArray[np.int64]:
    """Return at most `most` numbers from 0 to below `count`, evenly spread, the first included."""
    return np.unique(np.linspace(0, count - 1, min(count, max(1, int(most))), dtype=np.int64))


def _any(frames: EncodedColumn) -> NDArray[np.bool_]:
    """Return which frames are not black, `[n]`."""
    return np.array([frame.any() for block in frames.blocks() for frame in block], bool)


def _of_one_colour(frames: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which frames, channels last, have one colour that is not black, `[n]`."""
    coloured = frames.reshape(len(frames), -1, frames.shape[-1] if frames.ndim > 3 else 1)
    return np.array([(one == one[:1]).all() and one.any() for one in coloured], bool)


def _is_frozen(reader: DatasetReader, key: Key, episode: int) -> bool:
    """Return True if all frames of an episode are equal, and not black; reads five if they differ."""
    begin, length = int(reader.starts[episode]), int(reader.lengths[episode])
    leaf = reader.leaves[key]
    for rows in (np.linspace(0, length - 1, 5, dtype=np.int64), np.arange(length)):
        if leaf.encoding not in {None, VIDEO}:
            if len(set(reader.values_at(key, begin + rows).images())) > 1:
                return False
        else:
            decoded = chain.from_iterable(reader.decoded_at(key, begin + rows))
            first = next(decoded)
            if not all(np.array_equal(frame, first) for frame in decoded):
                return False
    return any(frame.any() for frame in reader.decoded_at(key, np.array([begin])))


def encoded_rows(reader: DatasetReader, key: Key) -> tuple[EncodedColumn, NDArray[np.int64]]:
    """Return an encoded column and its rows that are frames, not unknown final observations."""
    if not _has_final_rows(reader, key):
        return cast("EncodedColumn", reader.step(key)), np.arange(reader.transitions)
    column = cast("EncodedColumn", reader.leaf(OBSERVATIONS, key))
    known = np.ones(len(column), bool)
    known[(reader.last_rows + 1 + np.arange(reader.episode_count))[~reader.final]] = False
    return column, np.flatnonzero(known)


def encoded_place(reader: DatasetReader, key: Key, row: int) -> RowPlace:
    """Return the place of a row of an encoded column, see `encoded_rows`."""
    if not _has_final_rows(reader, key):
        return RowPlace(join_key(key), _episode(reader, row), row)
    begins = reader.starts + np.arange(reader.episode_count)
    episode = int(np.searchsorted(begins, row, side="right")) - 1
    last = row - int(begins[episode]) == reader.lengths[episode]
    leaf = join_key(next_of(key) if last else key)
    return RowPlace(leaf, episode, row - episode - int(last))


def _has_final_rows(reader: DatasetReader, key: Key) -> bool:
    """Return True if a column has a row after the last action of each episode."""
    return OBSERVATIONS in reader.manifest.tables and key in reader.observation_leaves


def _episode(reader: DatasetReader, row: int) -> int:
    return int(np.searchsorted(reader.starts, row, side="right")) - 1


def _declared_shape(spaces: Any, key: Key) -> list[Any] | None:
    """Return the shape that the declared space has for a leaf; None if it declares none."""
    for name in key:
        spaces = spaces.get(name) if isinstance(spaces, dict) else None
        spaces = spaces.get("subspaces", spaces) if isinstance(spaces, dict) else spaces
    shape = spaces.get("shape") if isinstance(spaces, dict) else None
    return shape if isinstance(shape, list) else None
