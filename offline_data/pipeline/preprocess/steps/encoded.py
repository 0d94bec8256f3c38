"""Steps for encoded features: `decode` to arrays of pixels, `encode` to JPEG or PNG images, or to video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from offline_data.base.decode import Check
from offline_data.base.errors import FormatError, StepError
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.images import formats_of
from offline_data.pipeline.preprocess.steps.leaves import (
    column,
    leaves,
    matching,
    replace_columns,
    stored_column,
)
from offline_data.pipeline.preprocess.steps.parse import NAMES, at_least, is_whole, one_of
from offline_data.raw.video import encode_mp4
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.encoded import (
    EncodedColumn,
    as_encoded,
    blocks_of,
    encode_rows,
    in_threads,
)
from offline_data.store.layout import VIDEO, fits_encoding
from offline_data.store.video import StoredVideo, VideoColumn

_INSTEAD = "or encode images: format=png"


@dataclass(frozen=True)
class Decode(Step, name="decode", example="decode:observation.pixels"):
    """Decode features of encoded images to arrays, which take more disk space and less CPU time.

    Raises:
        StepError: A missing feature, or no encoded feature among the given ones.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.arange(1, 193, dtype=np.uint8).reshape(3, 8, 8, 1)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> encoded = Encode().apply(chunk)
        >>> np.array_equal(Decode().apply(encoded).batch.observations["pixels",], rows)
        True
    """

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Features, or prefixes of keys; none: all encoded features."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        meant = matching(chunk, self.keys) if self.keys else leaves(chunk)
        found = [key for key in meant if as_encoded(stored_column(chunk, key)) is not None]
        if not found:
            raise StepError(
                f"Step 'decode' finds no encoded feature among {', '.join(map(join_key, meant))}",
                hint="`offline-data info ID` shows which features are encoded",
            )
        return replace_columns(chunk, {key: column(chunk, key) for key in found})


@dataclass(frozen=True)
class Encode(Step, name="encode", example="encode:observation.pixels,format=jpeg,quality=95"):
    """Encode images as PNG, which is lossless, or JPEG or H.264, which are lossy; batches decode them.

    Features that are already PNG or JPEG are unchanged, unless they are named and have the other format.

    With `h264` each episode becomes an mp4 file with a key frame every `keyframes` frames, so that
    single frames are decoded quickly, however the feature was stored before. Every frame is decoded and
    compared with the one before the step: the manifest states the largest and the mean absolute error.
    With an odd height or width, colours are kept at full resolution.

    Raises:
        UsageError: Another format, a quality that is not between 1 and 100, or an argument of
            another format.
        StepError: A missing feature, one that cannot be encoded, or no image at all.
        MissingDependencyError: `h264` without PyAV.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.full((3, 8, 8, 3), 51, np.uint8)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> column = Encode().apply(chunk).batch.observations["pixels",]
        >>> column.encoding, column.shape, column.dtype.name
        ('png', (3, 8, 8, 3), 'uint8')
    """

    keys: Annotated[tuple[str, ...], NAMES] = field(default=(), metadata={"many": True})
    """Features, or prefixes of keys; none: all uint8 features that look like images `[H, W]` or
    `[H, W, C]`."""
    format: Annotated[Literal["png", "jpeg", "h264"], one_of(("png", "jpeg", "h264"))] = "png"
    """`png` is lossless, `jpeg` and `h264` (video of `[H, W, 3]`) are lossy."""
    quality: Annotated[int, Check("1 to 100", lambda q: is_whole(q, 1) and q <= 100)] = 95
    """Quality of JPEG images, 1 to 100."""
    keyframes: Annotated[int, at_least(1)] = 2
    """Frames from a key frame of H.264 to the next; 1: all are key frames."""

    def _problems(self) -> Iterator[str]:
        if self.format == "h264" and self.quality != Encode.quality:
            yield "has quality, which is of format=jpeg"
        if self.format != "h264" and self.keyframes != Encode.keyframes:
            yield "has keyframes, which are of format=h264"

    def describe(self) -> dict[str, Any]:
        described = super().describe()  # recipes of images are known by these parameters
        del described["quality" if self.format == "h264" else "keyframes"]
        return described

    def notes(self) -> tuple[str, ...]:
        if self.format == "png":
            return ()
        what = f"Images of {', '.join(self.keys)}" if self.keys else "All images"
        how = f"JPEG of quality {self.quality}"
        if self.format == "h264":
            how = f"H.264 with a key frame every {plural(self.keyframes, 'frame')}"
        return (f"{what} were encoded as {how}, which is lossy",)

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        video = self.format == "h264"
        encoding = VIDEO if video else self.format
        if self.keys:
            meant = matching(chunk, self.keys)
        else:
            alike = VIDEO if video else "png"
            meant = [key for key in leaves(chunk) if _looks(stored_column(chunk, key), alike)]
        if not meant:
            raise StepError(
                f"Step 'encode' finds no uint8 feature that looks like images {_SHAPES[video]}",
                hint="name the features: --step encode:observation.pixels",
            )
        kept = (self.format,) if self.keys else ("png", "jpeg")
        result = {}
        losses = list(chunk.losses)
        for key in meant:
            values = stored_column(chunk, key)
            if not video and getattr(values, "encoding", None) in kept:
                continue
            kind = (encoding, values.dtype.name, values.shape[1:])
            fits = fits_encoding(*kind) and not (video and values.dtype != np.uint8)
            if key in chunk.words or not fits:
                raise StepError(
                    f"Step 'encode': feature {join_key(key)!r} ({kind[1]} {list(kind[2])}) cannot be "
                    f"{self.format} {'video' if video else 'images'}",
                    hint=_HINTS[video],
                )
            if video:
                result[key], loss = self._as_video(chunk, key)
                losses += [(*loss, 0)] if loss[2] else []
            else:
                images = encode_rows(column(chunk, key), self.format, quality=self.quality)
                result[key] = EncodedColumn.of(images, kind)
        return replace(replace_columns(chunk, result), losses=tuple(losses))

    def _as_video(self, chunk: EpisodeChunk, key: Key) -> tuple[Any, tuple[int, int, int]]:
        """Return a column of one mp4 per episode, and the largest error, their sum and number."""
        batch, values = chunk.batch, stored_column(chunk, key)
        bounds = [0, *np.cumsum(batch.lengths + (key in batch.observations)).tolist()]
        made: dict[int, tuple[StoredVideo, int, int]] = {}

        def encode(episode: int) -> None:
            rows = values[bounds[episode] : bounds[episode + 1]]
            name = f"{join_key(key)} of episode {chunk.episodes[episode]}"
            try:
                data = encode_mp4(_frames(rows), rows.shape[1:3], self.keyframes, _INSTEAD)
                video = StoredVideo.of(data, name, _INSTEAD)
                made[episode] = (video, *_compare(rows, video))
            except FormatError as error:
                raise StepError(f"Step 'encode': {name}: {error.message}") from error

        count = len(batch.lengths)
        in_threads(encode, count)
        numbers = np.repeat(np.arange(count), np.diff(bounds))
        frames = np.arange(len(numbers)) - np.array(bounds)[numbers]
        pairs = np.stack([numbers, frames], axis=1).astype(np.int32)
        files = [made[episode][0] for episode in range(count)]
        found = VideoColumn(files, pairs, (VIDEO, "uint8", values.shape[1:]), join_key(key))
        largest = max((one for _, one, _ in made.values()), default=0)
        return found, (largest, sum(total for _, _, total in made.values()), found.size)


_SHAPES = {False: "[H, W] or [H, W, C]", True: "[H, W, 3]"}
_HINTS = {
    False: "they are uint8 [H, W], [H, W, 1] or [H, W, 3]; for png also uint8 [H, W, 4] and uint16 "
    "[H, W]",
    True: "it is uint8 [H, W, 3]: --step grayscale:KEY,channels=3,format=hwc makes three channels of "
    "one; format=png encodes others",
}
"""By whether it is video."""


def _frames(rows: Any) -> Iterator[NDArray[Any]]:
    for block in blocks_of(rows):
        yield from block


def _compare(rows: Any, video: StoredVideo) -> tuple[int, int]:
    """Decode all frames of a video; returns the largest difference from rows, and their sum."""
    largest = total = 0
    with video.decoder() as decoder:
        found = decoder.read(np.arange(len(video.index)))
        for before, after in zip(_frames(rows), found, strict=True):
            difference = np.abs(np.subtract(before, after, dtype=np.int16))
            largest = max(largest, int(difference.max()))
            total += int(difference.sum())
    return largest, total


def _looks(values: NDArray[Any], encoding: str) -> bool:
    fits = fits_encoding(encoding, "uint8", values.shape[1:]) and values.dtype == np.uint8
    return fits and formats_of(values.shape[1:]) in {("hw",), ("hwc",)}
