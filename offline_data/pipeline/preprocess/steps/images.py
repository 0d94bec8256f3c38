"""Steps for images: `crop grayscale resize to_chw`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from offline_data.base.decode import Check
from offline_data.base.errors import StepError
from offline_data.episode.fields import Key, join_key
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.leaves import (
    column,
    leaves,
    matching,
    replace_columns,
    root_of,
    stored_column,
)
from offline_data.pipeline.preprocess.steps.parse import (
    FLAG,
    NAMES,
    at_least,
    one_of,
    read_arguments,
)
from offline_data.store.chunk import EpisodeChunk

Format: TypeAlias = Literal["hwc", "chw", "hw"]
"""Order of a row's last axes: height, width, channels. Preceding axes are stacked frames."""

FORMATS: tuple[Format, ...] = get_args(Format)
_SIDES: Mapping[Format, tuple[int, int]] = {"hwc": (-3, -2), "chw": (-2, -1), "hw": (-2, -1)}
"""Axes of height and width."""
_CHANNELS: Mapping[Format, int] = {"hwc": -1, "chw": -3}
"""Axis of the channels, if any."""

Mode: TypeAlias = Literal["bilinear", "bicubic", "area", "nearest"]
MODES: tuple[Mode, ...] = get_args(Mode)

_LEAST_SIDE = 8
"""Minimum length of a side; a shorter axis is channels or stacked frames."""
BLOCK_BYTES = 4 << 20
"""Working memory per block of rows, to stay in the processor's cache."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luma of ITU-R Recommendation BT.601, section 2.5.1."""
_LUMA_16 = (19595, 38470, 7471)
"""The same in units of 2^-16, as in Pillow's mode `L` (`L24` in its `Convert.c`)."""

_SMALL_INTEGERS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16")))
"""Integer types that float32 represents exactly."""
_AT_ONCE = 4
"""Planes that torch's vectorised byte code handles at once; single ones are 3 times slower."""


class ImageStep(Step):
    """A step that changes every image independently; subclasses define fields and `change`."""

    formats: ClassVar[tuple[Format, ...]] = FORMATS
    """Supported formats."""
    matters: ClassVar[Mapping[Format, object]] = {form: form for form in FORMATS}
    """Part of a format that matters; formats with equal parts are not ambiguous."""

    keys: tuple[str, ...]
    """Features, or prefixes of keys; none: all that look like images, see `looks_like_images`."""
    format: Format | None
    """`hwc`, `chw` or `hw`: layout of rows; None: from their shape, see `formats_of`."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        changed = {}
        for key, form in self.images(chunk).items():
            values = column(chunk, key)
            changed[key] = self.change(values, form, _describe_leaf(key, values))
        return replace_columns(chunk, changed)

    def change(self, values: NDArray[Any], form: Format, leaf: str) -> NDArray[Any]:
        """Return new images `[n, …]` for those of a feature, a view or a new array.

        The last axes of a row are `form`. Raises `StepError`, naming the `leaf`, if it cannot.
        """
        raise NotImplementedError

    def images(self, chunk: EpisodeChunk) -> dict[Key, Format]:
        """Return the columns to change and their formats, in the order of the chunk.

        Without names these are all that look like images in a format of the step. A name of several
        features selects those among them; a name of a single feature selects it, whatever it looks like
        if `format` is given.

        Raises:
            StepError: No such feature, one that is not an image, or an ambiguous format.
        """
        every = leaves(chunk)
        groups = [matching(chunk, [name]) for name in self.keys] if self.keys else [every]
        chosen: set[Key] = set()
        for group in groups:
            named = bool(self.keys) and len({root_of(chunk, key) for key in group}) == 1
            found = group if named else [key for key in group if self._looks_fit(chunk, key)]
            if not found:
                listed = ", ".join(_describe_leaf(key, stored_column(chunk, key)) for key in group)
                raise StepError(
                    f"Step {self.name!r} finds no image for it among {listed}",
                    hint="name a feature and say how its rows are read: format=hwc, chw or hw",
                )
            chosen.update(found)
        return {key: self._format_of(chunk, key) for key in every if key in chosen}

    def _looks_fit(self, chunk: EpisodeChunk, key: Key) -> bool:
        values = stored_column(chunk, key)
        fit = {*formats_of(values.shape[1:])} & {self.format or form for form in self.formats}
        return bool(fit) and key not in chunk.words and looks_like_images(values)

    def _format_of(self, chunk: EpisodeChunk, key: Key) -> Format:
        values = stored_column(chunk, key)
        if key in chunk.words:
            raise StepError(f"Step {self.name!r}: feature {join_key(key)!r} is text, not an image")
        what = f"Step {self.name!r}: feature {_describe_leaf(key, values)}"
        possible = (self.format,) if self.format else formats_of(values.shape[1:])
        if self.format and (len(values.shape) <= len(self.format) or 0 in values.shape[1:]):
            raise StepError(f"{what} has too few axes for format={self.format}, or an empty one")
        if not possible:
            raise StepError(
                f"{what} does not look like an image: expected two sides of {_LEAST_SIDE} or more, "
                "and no other axis behind them than channels",
                hint="format=hwc, chw or hw reads its last axes so"
                if len(values.shape) > 2
                else None,
            )
        if len({self.matters[form] for form in possible}) > 1:
            raise StepError(
                f"{what} may be {' or '.join(possible)}",
                hint="say which with format=…, or name other features",
            )
        if possible[0] not in self.formats:
            raise StepError(f"{what} has no axis of channels; expected {' or '.join(self.formats)}")
        return possible[0]


class SizedImageStep(ImageStep):
    """A step for images with a new height and width."""

    matters = _SIDES

    height: int
    """Height in pixels."""
    width: int | None
    """Width in pixels; None: same as `height`."""

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.height if self.width is None else self.width

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HEIGHT[,WIDTH][,KEY…][,k=v…]`; see `Step.parse`."""
        parts = [part.strip().removeprefix("keys=") for part in text.split(",")]
        named = [part for part in parts if "=" in part]
        unnamed = [part for part in parts if part and "=" not in part]
        sizes = list(takewhile(str.isdecimal, unnamed))[:2]
        sides = [f"{side}={size}" for side, size in zip(("height", "width"), sizes, strict=False)]
        values = read_arguments(cls, ",".join([*sides, *named]))
        keys = tuple(unnamed[len(sizes) :])
        return cls(**{**values, "keys": keys} if keys else values)


@dataclass(frozen=True)
class Crop(SizedImageStep, name="crop", example="crop:height=64,width=64,top=8"):
    """Keep `height` x `width` pixels of every image (default: its centre); a view.

    Types, values and the order of axes are unchanged; stacked frames are cropped alike.

    Raises:
        UsageError: A size below 1, or a negative offset.
        StepError: The crop exceeds the image; see also `ImageStep.images`.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.arange(1, 241, dtype=np.uint8).reshape(3, 8, 10)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> Crop(2, 4).apply(chunk).batch.observations["pixels",][0].tolist()
        [[34, 35, 36, 37], [44, 45, 46, 47]]
    """

    height: Annotated[int, at_least(1)]
    width: Annotated[int | None, at_least(1)] = None
    top: Annotated[int | None, at_least(0)] = None
    """Rows cropped at the top; None: half of the excess, rounded down."""
    left: Annotated[int | None, at_least(0)] = None
    """Columns cropped on the left; None: as for `top`."""
    keys: Annotated[tuple[str, ...], NAMES] = field(default=(), metadata={"many": True})
    format: Annotated[Format | None, one_of(FORMATS)] = None

    def change(self, values: NDArray[Any], form: Format, leaf: str) -> NDArray[Any]:
        index: list[Any] = [slice(None)] * values.ndim
        sides = zip(
            _SIDES[form], ("height", "width"), self.size, (self.top, self.left), strict=True
        )
        for axis, what, size, first in sides:
            side = values.shape[axis]
            start = (side - size) // 2 if first is None else first
            if start < 0 or start + size > side:
                at = "" if first is None else f" from {first} on"
                raise StepError(f"Step 'crop': feature {leaf} has {what} {side}, not {size}{at}")
            index[axis] = slice(start, start + size)
        part: NDArray[Any] = values[tuple(index)]
        return part


@dataclass(frozen=True)
class Grayscale(ImageStep, name="grayscale", example="grayscale:observation.pixels,format=hwc"):
    """Turn colours into luma: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601).

    Bytes are rounded half up and equal Pillow's mode `L`; torchvision's, truncated with 0.2989 R,
    may be one less. Floats keep their type, and NaN stays in its pixel. A fourth channel, alpha, is
    dropped; since it could be a fourth gray frame, it needs `format`. The order of axes is
    unchanged; images of one channel are already gray.

    Raises:
        UsageError: `channels` other than 0, 1 and 3, or an unknown format.
        StepError: A feature with other than 1, 3 or 4 channels, or of a type other than uint8 and
            float; see also `ImageStep.images`.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.broadcast_to(np.array([200, 100, 50], np.uint8), (3, 8, 10, 3))
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> gray = Grayscale().apply(chunk).batch.observations["pixels",]
        >>> gray.shape, gray[0, 0, 0].tolist()
        ((3, 8, 10, 1), [124])
    """

    formats: ClassVar[tuple[Format, ...]] = ("hwc", "chw")

    keys: Annotated[tuple[str, ...], NAMES] = field(default=(), metadata={"many": True})
    channels: Annotated[int, Check("0, 1 or 3", lambda n: type(n) is int and n in {0, 1, 3})] = 1
    """1, or 3 equal ones, or 0: no axis of channels."""
    format: Annotated[Format | None, one_of(("hwc", "chw"))] = None

    def change(self, values: NDArray[Any], form: Format, leaf: str) -> NDArray[Any]:
        axis = _CHANNELS[form]
        count = values.shape[axis]
        if values.dtype != np.uint8 and values.dtype.kind != "f":
            raise StepError(f"Step 'grayscale': feature {leaf} is neither uint8 nor float")
        if count not in {1, 3, 4}:
            raise StepError(
                f"Step 'grayscale': feature {leaf} has {count} channels, expected 1, 3 or 4"
            )
        if count == 4 and self.format is None:
            raise StepError(
                f"Step 'grayscale': feature {leaf} has four channels: colours with alpha, or frames",
                hint=f"say format={form} if the fourth is alpha, or name other features",
            )
        colours = np.moveaxis(values, axis, -1)
        gray = colours[..., 0]
        if count > 1:
            gray = by_block(colours, gray.shape[1:], gray.dtype, 16 * gray[:1].size, _fill_luma)
        if self.channels == 0:
            return gray
        gray, shape = np.expand_dims(gray, axis), list(values.shape)
        shape[axis] = self.channels
        return gray if self.channels == 1 else np.broadcast_to(gray, shape)


@dataclass(frozen=True)
class ToChw(ImageStep, name="to_chw", example="to_chw:observation.pixels,scale=true"):
    """Transpose images `[H, W, C]` to `[C, H, W]`, and `[H, W]` to `[1, H, W]`.

    Axes of stacked frames stay in front, and images in this order are unchanged. The result is a
    view, or with `scale=true` a new float32 array of values / 255, like torchvision's `ToTensor` for
    bytes.

    Raises:
        StepError: With `scale=true`, a feature that is not uint8; see also `ImageStep.images`.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.full((3, 8, 10, 3), 51, np.uint8)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> scaled = ToChw(scale=True).apply(chunk).batch.observations["pixels",]
        >>> scaled.shape, scaled.dtype.name, float(scaled[0, 0, 0, 0])
        ((3, 3, 8, 10), 'float32', 0.20000000298023224)
    """

    keys: Annotated[tuple[str, ...], NAMES] = field(default=(), metadata={"many": True})
    scale: Annotated[bool, FLAG] = False
    """Whether to convert bytes to float32 from 0 to 1."""
    format: Annotated[Format | None, one_of(FORMATS)] = None

    def change(self, values: NDArray[Any], form: Format, leaf: str) -> NDArray[Any]:
        moved = values
        if form != "chw":
            moved = moved[..., None, :, :] if form == "hw" else np.moveaxis(moved, -1, -3)
        if not self.scale:
            return moved
        if moved.dtype != np.uint8:
            raise StepError(
                f"Step 'to_chw': feature {leaf} is not uint8, so scale=true does not know its range",
                hint="name the features that are uint8",
            )

        dtype = np.dtype(np.float32)
        return by_block(
            moved, moved.shape[1:], dtype, 0, lambda v, out: np.divide(v, 255, out, dtype=dtype)
        )


@dataclass(frozen=True)
class Resize(SizedImageStep, name="resize", example="resize:84,observation.pixels,mode=area"):
    """Resize all images to `height` x `width`, ignoring their aspect ratio.

    `bilinear` and `bicubic` are torch's with `antialias=True`, as in torchvision and TorchRL; bytes
    equal Pillow's up to 1 (2 in some of 100,000), except for bicubic contrasts so strong that
    intermediate values leave the range of bytes. `area` is the mean of the covered area, like
    OpenCV's `INTER_AREA` in the usual preprocessing of Atari; `nearest` is the pixel at the centre,
    for labels.

    Types, stacked frames and the order of axes are unchanged; integers are rounded. NaN spreads to
    the new pixels that it contributes to. The last bits of floats may depend on the processor.

    Raises:
        UsageError: A size below 1, an unknown mode or format.
        StepError: A feature that is neither float nor of integers up to 16 bits (`nearest` supports any
            type); see also `ImageStep.images`.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> rows = np.arange(1, 193, dtype=np.uint8).reshape(3, 8, 8)
        >>> chunk = toy_chunk([2]).having(observations={("pixels",): rows})
        >>> Resize(2, mode="area").apply(chunk).batch.observations["pixels",][0].tolist()
        [[15, 19], [47, 51]]
    """

    brings_torch: ClassVar[bool] = True

    height: Annotated[int, at_least(1)]
    width: Annotated[int | None, at_least(1)] = None
    keys: Annotated[tuple[str, ...], NAMES] = field(default=(), metadata={"many": True})
    mode: Annotated[Mode, one_of(MODES, ", ")] = "bilinear"
    """Interpolation, by Pillow's names; `area` is the mean of the covered area."""
    format: Annotated[Format | None, one_of(FORMATS)] = None

    def change(self, values: NDArray[Any], form: Format, leaf: str) -> NDArray[Any]:
        dtype, shape = values.dtype, list(values.shape[1:])
        if self.mode != "nearest" and not (dtype.kind == "f" or dtype in _SMALL_INTEGERS):
            raise StepError(
                f"Step 'resize': feature {leaf} has a type that cannot be interpolated; expected "
                "uint8, other integers of up to 16 bits, or floats",
                hint="mode=nearest takes any type",
            )
        before = tuple(shape[axis] for axis in _SIDES[form])
        if before == self.size:
            return values
        for axis, side in zip(_SIDES[form], self.size, strict=True):
            shape[axis] = side

        def fill(rows: NDArray[Any], out: NDArray[Any]) -> None:
            out[...] = resample(rows, form, self.size, self.mode)

        # Four arrays, each with the larger height and width.
        larger = math.prod(map(max, before, self.size)) * values[:1].size // math.prod(before)
        row_bytes = 4 * larger * _working_type(dtype, self.mode).itemsize
        return by_block(values, tuple(shape), dtype, row_bytes, fill)


def formats_of(shape: tuple[int, ...]) -> tuple[Format, ...]:
    """Return the possible formats of a row of this shape; empty if it is not an image.

    Sides have at least 8 pixels. A row with a shorter last axis is `hwc`; with 1 or 3 before the
    sides `chw`, with another short axis before them `chw` or stacked `hw`. If the axis before the
    last two is as long as a side, all three are possible.

    Example:
        >>> formats_of((84, 84, 3)), formats_of((4, 84, 84)), formats_of((7,))
        (('hwc',), ('chw', 'hw'), ())
    """
    if 0 in shape:
        return ()
    sides = tuple(size >= _LEAST_SIDE for size in shape[-3:])
    if sides == (False, True, True):
        return ("chw",) if shape[-3] in {1, 3} else ("chw", "hw")
    known: dict[tuple[bool, ...], tuple[Format, ...]] = {
        (True, True): ("hw",),
        (True, True, False): ("hwc",),
        (True, True, True): FORMATS,
    }
    return known.get(sides, ())


def looks_like_images(values: NDArray[Any]) -> bool:
    """Return True if a column counts as images without being named.

    Bytes in any possible format; floats, which often have long axes, only with an axis of 1, 3 or 4
    channels.

    Example:
        >>> looks_like_images(np.zeros((5, 16, 16), np.uint8)), looks_like_images(np.zeros((5, 16)))
        (True, False)
    """
    shape = values.shape[1:]
    found = formats_of(shape)
    if values.dtype.kind != "f":
        return bool(found) and values.dtype == np.uint8
    axes = {_CHANNELS[form] for form in found if form in _CHANNELS}
    return len(axes) == 1 and shape[axes.pop()] in {1, 3, 4}


def by_block(
    values: NDArray[Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    row_bytes: int,
    fill: Callable[[NDArray[Any], NDArray[Any]], object],
) -> NDArray[Any]:
    """Return a new column `[n, *shape]` computed from `[n, …]`, a few rows at a time.

    `fill` is called with a block of rows and the block of the result to fill. `row_bytes` is the
    working memory per row besides the two columns.
    """
    result = np.empty((len(values), *shape), dtype)
    rows = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, len(values), rows):
        fill(values[start : start + rows], result[start : start + rows])
    return result


def resample(values: NDArray[Any], form: Format, size: tuple[int, int], mode: Mode) -> NDArray[Any]:
    """Return images `[…]` of height and width `size`, of the same type; see `Resize`.

    Pixel `i` of `n` covers `i / n` to `(i + 1) / n` of its side, before and after.

    Example:
        >>> resample(np.array([[10, 20, 60, 70]], np.uint8), "hw", (1, 2), "area").tolist()
        [[15, 65]]
    """
    if mode == "nearest":
        for axis, new in zip(_SIDES[form], size, strict=True):
            middle = (2 * np.arange(new) + 1) * values.shape[axis] // (2 * new)
            values = values.take(middle, axis)
        return values
    if mode == "area":
        return _round_to(_average_areas(values, form, size), values.dtype)
    if values.dtype == np.uint8 and form == "hwc" and values.shape[-1] in {3, 4}:
        # In their memory layout: same result as plane by plane, twice as fast.
        frames = np.array(values, order="C").reshape(-1, *values.shape[-3:])
        made = np.moveaxis(_interpolate(np.moveaxis(frames, -1, 1), size, mode), 1, -1)
        return np.asarray(made.reshape(*values.shape[:-3], *size, values.shape[-1]))
    planes = np.moveaxis(values, -1, -3) if form == "hwc" else values
    sides, count = planes.shape[-2:], math.prod(planes.shape[:-2])
    four = np.zeros((-(-count // _AT_ONCE), _AT_ONCE, *sides), _working_type(planes.dtype, mode))
    four.reshape(-1, *sides)[:count].reshape(planes.shape)[...] = planes
    flat = _interpolate(four, size, mode).reshape(-1, *size)[:count]
    made = _round_to(flat.reshape(*planes.shape[:-2], *size), values.dtype)
    return np.moveaxis(made, -3, -1) if form == "hwc" else made


def _describe_leaf(key: Key, values: NDArray[Any]) -> str:
    return f"{join_key(key)!r} ({values.dtype} {list(values.shape[1:])})"


def _fill_luma(colours: NDArray[Any], out: NDArray[Any]) -> None:
    is_bytes = colours.dtype == np.uint8
    dtype = np.dtype(np.uint32) if is_bytes else np.promote_types(colours.dtype, np.float32)
    total = np.full(out.shape, 1 << 15 if is_bytes else 0, dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
        for channel, weight in enumerate(_LUMA_16 if is_bytes else _LUMA):
            total += np.multiply(colours[..., channel], weight, dtype=dtype)
        out[...] = total >> 16 if is_bytes else total


def _working_type(dtype: np.dtype[Any], mode: Mode) -> np.dtype[Any]:
    if mode == "nearest" or (dtype == np.uint8 and mode != "area"):
        return dtype
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _interpolate(frames: NDArray[Any], size: tuple[int, int], mode: Mode) -> NDArray[Any]:
    """Interpolate `[n, channels, height, width]`."""
    from offline_data.rows import torch

    interpolate = torch.nn.functional.interpolate
    made = interpolate(torch.from_numpy(frames), size=size, mode=mode, antialias=True)
    return np.asarray(made.numpy())


def _round_to(made: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if made.dtype == dtype or dtype.kind == "f":
        with np.errstate(over="ignore"):  # beyond the range of float16 is infinite
            return made.astype(dtype, copy=False)
    within = np.iinfo(dtype)
    return np.clip(np.floor(made + 0.5), within.min, within.max).astype(dtype)


def _average_areas(values: NDArray[Any], form: Format, size: tuple[int, int]) -> NDArray[Any]:
    values = values.astype(_working_type(values.dtype, "area"))
    for axis, new in zip(_SIDES[form], size, strict=True):
        ahead, old, behind = values.shape[:axis], values.shape[axis], values.shape[axis:][1:]
        flat = values.reshape(-1, old, math.prod(behind))  # long rows are faster to multiply
        pixels, weights = _overlap_weights(old, new, flat.shape[2], values.dtype)
        # A product with a matrix [new, old] takes 2 to 5 times as long, and would spread NaN.
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
            total = flat.take(pixels[0], 1).reshape(len(flat), -1) * weights[0]
            for index, weight in zip(pixels[1:], weights[1:], strict=True):
                part = flat.take(index, 1).reshape(total.shape)
                part *= weight
                total += part
        values = total.reshape(*ahead, new, *behind)
    return values


@lru_cache(maxsize=2)  # both sides, for all blocks of a column
def _overlap_weights(
    old: int, new: int, repeats: int, dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return `[K, new]` the old pixels that each new one covers, and `[K, new · repeats]` weights.

    Lengths are in units in which an old pixel is `new` long and a new one `old`. A new pixel that
    covers fewer than `K` repeats its last one with split weights: a weight of 0 would turn infinity
    into NaN.
    """
    start = np.arange(new) * old
    first, last = start // new, (start + old - 1) // new
    most = int((last - first).max()) + 1
    pixels = np.minimum(first + np.arange(most)[:, None], last)
    length = np.minimum(start + old, (pixels + 1) * new) - np.maximum(start, pixels * new)
    times = np.where(pixels == last, most - (last - first), 1)
    return pixels, np.repeat((length / (times * old)).astype(dtype), repeats, axis=1)
