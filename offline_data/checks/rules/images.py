"""Rules on images: black, frozen, in an unusual order of dimensions, compressed with losses."""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offline_data.checks.block import all_leaves, is_image
from offline_data.checks.rule import Measured, Rule
from offline_data.episodes.fields import join_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from offline_data.checks.block import Block, Place
    from offline_data.checks.finding import Finding
    from offline_data.episodes.fields import Key
    from offline_data.store.layout import LeafSpec
    from offline_data.store.reader import DatasetReader

FRAMES = 256
"""Frames of a leaf that are looked at, spread over the dataset."""


def image_leaves(reader: DatasetReader) -> dict[Key, LeafSpec]:
    """Return the leaves of images."""
    return {key: leaf for key, leaf in all_leaves(reader).items() if is_image(leaf)}


class _Sample(NamedTuple):
    """Frames of a block that are looked at, and each one's successor."""

    rows: NDArray[np.int64]
    """Transitions of the block, which are not the last of their episode."""
    frames: NDArray[Any]
    """`[k, *shape]`, decoded."""
    after: NDArray[Any]


def _sampled(block: Block, key: Key) -> _Sample:
    """Return about `FRAMES` frames of the dataset, and the frames after them."""

    def sample() -> _Sample:
        total = block.reader.transitions
        every = max(1, total // FRAMES)
        rows = np.flatnonzero(np.arange(block.first, block.stop) % every == 0)
        rows = rows[~np.isin(rows, block.ends)]
        if key in block.reader.observation_leaves:
            after = block.reader.observations_at(key, block.first + rows, after=True)
        else:
            after = block.reader.step(key)[block.first + rows + 1]
        return _Sample(rows, block.at_rows(key, rows), np.asarray(after))

    return block.once(("frames", key), sample)


class _Frames(NamedTuple):
    """Some frames of a kind among those that were looked at."""

    number: int
    looked_at: int
    first: Place | None


class _FrameRule(Rule):
    """A rule that counts frames among a sample."""

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        """Return the images."""
        return image_leaves(reader)

    def merge(self, first: _Frames, second: _Frames) -> _Frames:
        """Add up; the first place stays."""
        number, looked_at = first.number + second.number, first.looked_at + second.looked_at
        return _Frames(number, looked_at, first.first or second.first)

    def counted(self, block: Block, key: Key, which: NDArray[np.bool_]) -> _Frames:
        """Return the count of frames of the sample, and the place of the first."""
        rows, found = _sampled(block, key).rows, np.flatnonzero(which)
        place = block.row_place(key, int(rows[found[0]])) if len(found) else None
        return _Frames(len(found), len(rows), place)


class BlackImages(_FrameRule):
    """Images have one colour throughout: black, or another.

    A camera that was not connected, or a simulation that does not render, gives such frames. About 256
    frames of a dataset are looked at.
    """

    code = "RL050"
    name = "blank-images"
    severity = "warning"
    hint = "look at them: `offline-data view ID EPISODE`"
    thresholds = MappingProxyType({"share": 0.02})
    explained = MappingProxyType({"share": "share of the frames that are looked at"})

    def measure(self, block: Block, key: Key) -> _Frames:
        """Compare every pixel of a frame with its first one."""
        frames = _sampled(block, key).frames
        flat = frames.reshape(len(frames), prod(frames.shape[1:]))
        return self.counted(block, key, (flat == flat[:, :1]).all(1))

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each leaf; an error if all frames are blank."""
        for found in measured.leaves.values():
            if found.number and found.number >= self.limits["share"] * found.looked_at:
                yield self.finding(
                    measured.reader,
                    f"{found.number} of {found.looked_at} sampled frames have a single colour",
                    found.first,
                    count=found.number,
                    severity="error" if found.number == found.looked_at > 1 else None,
                )


class FrozenImages(_FrameRule):
    """Images do not change from one step to the next.

    A camera that hangs, or frames that were read from the wrong buffer, are like that. Scenes in which
    nothing moves for a while are harmless.
    """

    code = "RL051"
    name = "frozen-images"
    severity = "warning"
    hint = "look at them: `offline-data view ID EPISODE`"
    thresholds = MappingProxyType({"share": 0.5})
    explained = MappingProxyType({"share": "share of sampled frames that equal the next one"})

    def measure(self, block: Block, key: Key) -> _Frames:
        """Compare frames with the following ones."""
        sample = _sampled(block, key)
        flat = (len(sample.rows), prod(sample.frames.shape[1:]))
        same = (sample.frames.reshape(flat) == sample.after.reshape(flat)).all(1)
        return self.counted(block, key, same)

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each leaf."""
        for found in measured.leaves.values():
            if found.looked_at > 1 and found.number >= self.limits["share"] * found.looked_at:
                yield self.finding(
                    measured.reader,
                    f"{found.number} of {found.looked_at} sampled frames are the same as the next one",
                    found.first,
                    count=found.number,
                )


class ChannelOrder(Rule):
    """Images have their channels first.

    Most decoders and plotting functions take height, width and channels; torch's convolutions take
    channels first. Whether red and blue are swapped cannot be seen. Stacks of grey frames
    (Atari: `[4, 84, 84]`) are not reported.
    """

    code = "RL052"
    name = "channels-first"
    severity = "info"
    hint = "permute them with `preprocess` if your encoder expects channels last"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each leaf."""
        for key, leaf in image_leaves(measured.reader).items():
            if len(leaf.shape) == 3 and leaf.shape[0] == 3 and leaf.shape[2] not in {1, 3, 4}:
                yield self.finding(
                    measured.reader,
                    f"Rows are {list(leaf.shape)}: channels, height, width",
                    leaf=join_key(key),
                )


class LossyImages(Rule):
    """Images were compressed as JPEG, which changes pixels.

    A policy that sees the environment's own frames gets slightly other ones. Minari stores images so
    unless told otherwise.
    """

    code = "RL053"
    name = "lossy-images"
    severity = "info"
    hint = "compress the environment's frames alike when the policy is evaluated"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each leaf whose files are JPEG."""
        for key, leaf in image_leaves(measured.reader).items():
            if leaf.encoding == "jpeg":
                yield self.finding(measured.reader, "Frames are JPEG", leaf=join_key(key))
