"""Steps for encoded leaves: `decode` to arrays of pixels, `encode` to JPEG or PNG images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from offline_data.base.decode import Check
from offline_data.base.errors import StepError
from offline_data.episode.fields import join_key
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.images import formats_of
from offline_data.pipeline.preprocess.steps.leaves import (
    column,
    leaves,
    matching,
    replace_columns,
    stored_column,
)
from offline_data.pipeline.preprocess.steps.parse import NAMES, is_whole, one_of
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.encoded import EncodedColumn, as_encoded, encode_rows
from offline_data.store.layout import fits_encoding


@dataclass(frozen=True)
class Decode(Step, name="decode", example="decode:observation.pixels"):
    """Decode leaves of encoded images to arrays, which take more disk space and less CPU time.

    Raises:
        StepError: A missing leaf, or no encoded leaf among the given ones.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.arange(1, 193, dtype=np.uint8).reshape(3, 8, 8, 1)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> encoded = Encode().apply(chunk)
        >>> np.array_equal(Decode().apply(encoded).batch.observations["pixels",], rows)
        True
    """

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Leaves, or prefixes of keys; none: all encoded leaves."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        meant = matching(chunk, self.keys) if self.keys else leaves(chunk)
        found = [key for key in meant if as_encoded(stored_column(chunk, key)) is not None]
        if not found:
            raise StepError(
                f"Step 'decode' finds no encoded leaf among {', '.join(map(join_key, meant))}",
                hint="`offline-data info ID` shows which leaves are encoded",
            )
        return replace_columns(chunk, {key: column(chunk, key) for key in found})


@dataclass(frozen=True)
class Encode(Step, name="encode", example="encode:observation.pixels,format=jpeg,quality=95"):
    """Encode images as PNG, which is lossless, or JPEG, which is lossy; batches decode them.

    Leaves that are already encoded are unchanged, unless they are named and have the other format.

    Raises:
        UsageError: Another format, or a quality that is not between 1 and 100.
        StepError: A missing leaf, one that cannot be encoded, or no image at all.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.full((3, 8, 8, 3), 51, np.uint8)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> column = Encode().apply(chunk).batch.observations["pixels",]
        >>> column.encoding, column.shape, column.dtype.name
        ('png', (3, 8, 8, 3), 'uint8')
    """

    keys: Annotated[tuple[str, ...], NAMES] = field(default=(), metadata={"many": True})
    """Leaves, or prefixes of keys; none: all uint8 leaves that look like images `[H, W]` or
    `[H, W, C]`."""
    format: Annotated[Literal["png", "jpeg"], one_of(("png", "jpeg"))] = "png"
    """`png` is lossless, `jpeg` lossy."""
    quality: Annotated[int, Check("1 to 100", lambda q: is_whole(q, 1) and q <= 100)] = 95
    """Quality of JPEG images, 1 to 100."""

    def notes(self) -> tuple[str, ...]:
        if self.format == "png":
            return ()
        what = f"Images of {', '.join(self.keys)}" if self.keys else "All images"
        return (f"{what} were encoded as JPEG of quality {self.quality}, which is lossy",)

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        if self.keys:
            meant = matching(chunk, self.keys)
        else:
            meant = [key for key in leaves(chunk) if _looks_encodable(stored_column(chunk, key))]
        if not meant:
            raise StepError(
                "Step 'encode' finds no uint8 leaf that looks like images [H, W] or [H, W, C]",
                hint="name the leaves: --step encode:observation.pixels",
            )
        kept = (self.format,) if self.keys else ("png", "jpeg")
        result = {}
        for key in meant:
            values = stored_column(chunk, key)
            if getattr(values, "encoding", None) in kept:
                continue
            kind = (self.format, values.dtype.name, values.shape[1:])
            if key in chunk.words or not fits_encoding(*kind):
                raise StepError(
                    f"Step 'encode': leaf {join_key(key)!r} ({kind[1]} {list(kind[2])}) cannot be "
                    f"{self.format} images",
                    hint="they are uint8 [H, W], [H, W, 1] or [H, W, 3]; for png also uint8 "
                    "[H, W, 4] and uint16 [H, W]",
                )
            images = encode_rows(column(chunk, key), self.format, quality=self.quality)
            result[key] = EncodedColumn.of(images, kind)
        return replace_columns(chunk, result)


def _looks_encodable(values: NDArray[Any]) -> bool:
    fits = fits_encoding("png", "uint8", values.shape[1:]) and values.dtype == np.uint8
    return fits and formats_of(values.shape[1:]) in {("hw",), ("hwc",)}
