"""`resize`: images of another height and width, by torch's interpolation or numpy's means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.images import SIDES, SizedImageStep, by_block
from offline_data.preprocess.steps.parse import check_whole, usage_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.steps.images import Format, Images

Mode: TypeAlias = Literal["bilinear", "bicubic", "area", "nearest"]
MODES: tuple[Mode, ...] = get_args(Mode)

_SMALL_INTEGERS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16")))
"""Those that float32 holds exactly."""

_AT_ONCE = 4
"""Planes that torch's vector code for bytes takes at once; one at a time is 3 times slower."""


@dataclass(frozen=True)
class Resize(SizedImageStep):
    """Bring all images to `height` x `width`, whatever their proportions were.

    `bilinear` and `bicubic` smooth before they leave pixels out, as torchvision and TorchRL
    (`antialias=True`) and Pillow do. Bytes are torch's; bilinear ones are Pillow's give or take 1
    (2 in some of 100,000), bicubic ones too but where contrasts are so strong that they leave the
    range of bytes half-way. `area` gives the mean of what each new pixel covers, as OpenCV's
    `INTER_AREA` in the usual preprocessing of Atari, `nearest` the pixel in its middle, for labels.

    Types, stacked frames and the order of axes stay; integers are rounded. NaN spreads to the new
    pixels it has a part in. Images that have the size stay as they are. The last bits of floats
    may depend on the processor.

    Raises:
        UsageError: A size below 1, a mode or format there is not.
        StepError: A leaf that is not uint8, of another integer up to 16 bits or float (with
            `nearest` any type will do); a leaf that is not there or is no image, or whose sides
            are not clear.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> rows = np.arange(1, 193, dtype=np.uint8).reshape(3, 8, 8)
        >>> piece = toy_piece([2]).having(observations={("pixels",): rows})
        >>> Resize(2, mode="area").apply(piece).batch.observations["pixels",][0].tolist()
        [[15, 19], [47, 51]]
    """

    name: ClassVar[str] = "resize"
    brings_torch: ClassVar[bool] = True
    example: ClassVar[str] = "resize:84,observation.pixels,mode=area"

    height: int
    """Pixels from top to bottom."""
    width: int | None = None
    """Pixels from left to right; None: as many as `height`."""
    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Leaves, or beginnings of keys; none: all that look like images, see `looks_like_images`."""
    mode: Mode = "bilinear"
    """`bilinear`, `bicubic`, `area` or `nearest`, see `resampled`."""
    format: Format | None = None
    """`hwc`, `chw` or `hw`: how rows are read; None: by their shape, see `formats_of`."""

    def __post_init__(self) -> None:
        self.check_leaves()
        check_whole(Resize, "height", self.height, 1)
        if self.width is not None:
            check_whole(Resize, "width", self.width, 1)
        if self.mode not in MODES:
            raise usage_error(Resize, f"has mode={self.mode}; expected {', '.join(MODES)}")

    def change(self, images: Images) -> NDArray[Any]:
        """Return new images; those of this size as they are."""
        dtype = images.values.dtype
        if self.mode != "nearest" and not (dtype.kind == "f" or dtype in _SMALL_INTEGERS):
            raise StepError(
                f"Step 'resize': leaf {images} has a type that cannot be interpolated; expected "
                "uint8, other integers of up to 16 bits, or floats",
                hint="mode=nearest takes any type",
            )
        if (images.height, images.width) == self.size:
            return images.values
        shape = list(images.values.shape[1:])
        for axis, side in zip(SIDES[images.format], self.size, strict=True):
            shape[axis] = side

        def fill(values: NDArray[Any], out: NDArray[Any]) -> None:
            out[...] = resampled(values, images.format, self.size, self.mode)

        # Four arrays, each with the longer of both heights and of both widths.
        height, width = max(images.height, self.size[0]), max(images.width, self.size[1])
        stacked = images.values[:1].size // (images.height * images.width)
        row_bytes = 4 * stacked * height * width * working_type(dtype, self.mode).itemsize
        return by_block(images.values, tuple(shape), dtype, row_bytes, fill)


def resampled(
    values: NDArray[Any], form: Format, size: tuple[int, int], mode: Mode
) -> NDArray[Any]:
    """Return images of the height and width `size`, of the same type, each plane on its own.

    Pixel `i` of `n` covers `i / n` to `(i + 1) / n` of its side, before and after. `area` gives
    the mean of what a new pixel covers, `nearest` the pixel at its middle, `bilinear` and
    `bicubic` what torch's `interpolate` gives with `antialias=True`. Integers are rounded and
    held within their type.

    Args:
        values: `[…]` with the last axes in `form`; uint8, another integer of up to 16 bits, or
            floats; any type where `nearest`.
        form: Order of the last axes.
        size: New height and width.
        mode: One of the above.

    Example:
        >>> resampled(np.array([[10, 20, 60, 70]], np.uint8), "hw", (1, 2), "area").tolist()
        [[15, 65]]
    """
    if mode == "nearest":
        return _picked(values, form, size)
    if mode == "area":
        return _as_type(_means(values, form, size), values)
    if values.dtype == np.uint8 and form == "hwc" and values.shape[-1] in {3, 4}:
        return _by_colour(values, size, mode)
    planes = np.moveaxis(values, -1, -3) if form == "hwc" else values
    made = _as_type(_by_plane(planes, size, mode), values)
    return np.moveaxis(made, -3, -1) if form == "hwc" else made


def working_type(dtype: np.dtype[Any], mode: Mode) -> np.dtype[Any]:
    """Return the type of the numbers on the way."""
    if mode == "nearest" or (dtype == np.uint8 and mode != "area"):
        return dtype
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _by_colour(values: NDArray[Any], size: tuple[int, int], mode: Mode) -> NDArray[Any]:
    """Resample bytes `[…, H, W, C]` as they lie; the same as by plane, twice as fast."""
    import torch

    frames = torch.from_numpy(np.array(values, order="C").reshape(-1, *values.shape[-3:]))
    made = _interpolated(frames.permute(0, 3, 1, 2), size, mode).permute(0, 2, 3, 1)
    return np.asarray(made.numpy().reshape(*values.shape[:-3], *size, values.shape[-1]))


def _by_plane(planes: NDArray[Any], size: tuple[int, int], mode: Mode) -> NDArray[Any]:
    """Resample `[…, H, W]`; the result has the working type."""
    import torch

    sides, count = planes.shape[-2:], int(np.prod(planes.shape[:-2]))
    frames = np.zeros((-(-count // _AT_ONCE), _AT_ONCE, *sides), working_type(planes.dtype, mode))
    frames.reshape(-1, *sides)[:count].reshape(planes.shape)[...] = planes
    made = _interpolated(torch.from_numpy(frames), size, mode).numpy()
    return np.asarray(made.reshape(-1, *size)[:count].reshape(*planes.shape[:-2], *size))


def _interpolated(frames: Any, size: tuple[int, int], mode: Mode) -> Any:
    from torch.nn.functional import interpolate

    return interpolate(frames, size=size, mode=mode, antialias=True)


def _as_type(made: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    if made.dtype == values.dtype or values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # beyond float16 is infinite
            return made.astype(values.dtype, copy=False)
    within = np.iinfo(values.dtype)
    return np.clip(np.floor(made + 0.5), within.min, within.max).astype(values.dtype)


def _picked(values: NDArray[Any], form: Format, size: tuple[int, int]) -> NDArray[Any]:
    for axis, new in zip(SIDES[form], size, strict=True):
        middle = (2 * np.arange(new) + 1) * values.shape[axis] // (2 * new)
        values = values.take(middle, axis)
    return values


def _means(values: NDArray[Any], form: Format, size: tuple[int, int]) -> NDArray[Any]:
    values = values.astype(working_type(values.dtype, "area"))
    for axis, new in zip(SIDES[form], size, strict=True):
        ahead, old, behind = values.shape[:axis], values.shape[axis], values.shape[axis:][1:]
        flat = values.reshape(-1, old, int(np.prod(behind)))
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
            values = _means_along(flat, new).reshape(*ahead, new, *behind)
    return values


def _means_along(values: NDArray[Any], new: int) -> NDArray[Any]:
    """Return `[m, new · k]` means of `[m, old, k]`: long rows, that numpy multiplies at speed."""
    covered, parts = _covered(values.shape[1], new)
    weights = np.repeat(parts.astype(values.dtype), values.shape[2], axis=1)
    shape = len(values), weights.shape[1]
    total: NDArray[Any] = values.take(covered[0], 1).reshape(shape) * weights[0]
    for pixels, weight in zip(covered[1:], weights[1:], strict=True):
        part = values.take(pixels, 1).reshape(shape)
        part *= weight
        total += part
    return total


def _covered(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return `[K, new]` the old pixels that each new one covers, and what part of it each makes.

    A side is counted in units in which an old pixel is `new` long and a new one `old`. A new pixel
    that covers fewer than `K` has its last one several times, with as much less of it: a part of 0
    would make NaN of infinity.
    """
    start = np.arange(new) * old
    first, last = start // new, (start + old - 1) // new
    most = int((last - first).max()) + 1
    pixels = np.minimum(first + np.arange(most)[:, None], last)
    length = np.minimum(start + old, (pixels + 1) * new) - np.maximum(start, pixels * new)
    times = np.where(pixels == last, most - (last - first), 1)
    return pixels, length / (times * old)
