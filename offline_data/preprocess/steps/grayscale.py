"""`grayscale`: images of red, green and blue as images of their brightness."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import usage_error
from offline_data.preprocess.steps.image_step import ImageStep
from offline_data.preprocess.steps.images import CHANNELS, by_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.steps.images import Format, Images

_LUMA = (0.299, 0.587, 0.114)
"""Parts of red, green and blue in the luma of ITU-R Recommendation BT.601, section 2.5.1."""
_LUMA_16 = (19595, 38470, 7471)
"""The same in units of 2^-16, as Pillow's mode `L` has them (`L24` in its `Convert.c`)."""


@dataclass(frozen=True)
class Grayscale(ImageStep):
    """Turn colours into luma: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601).

    So do Pillow (mode `L`) and torchvision (`Grayscale`). Bytes are rounded, halves up, and equal
    Pillow's; torchvision's, cut off with 0.2989 R, may be one less. Floats keep their type, and
    NaN stays in its pixel. A fourth channel, alpha, is dropped. The order of axes stays, with
    `channels` on the axis of the channels; images of one channel are gray already.

    A row of four channels may as well be four gray frames, so it takes a `format` to say that it
    is not.

    Raises:
        UsageError: `channels` other than 0, 1 and 3, or a format there is not.
        StepError: A leaf with other than 1, 3 or 4 channels, or of another type than uint8 and
            float; a leaf that is not there or is no image, or whose order of axes is not clear.

    Example:
        >>> import numpy as np
        >>> from offline_data.testing.pieces import toy_piece
        >>> rows = np.broadcast_to(np.array([200, 100, 50], np.uint8), (3, 8, 10, 3))
        >>> piece = toy_piece([2]).having(observations={("pixels",): rows})
        >>> gray = Grayscale().apply(piece).batch.observations["pixels",]
        >>> gray.shape, gray[0, 0, 0].tolist()
        ((3, 8, 10, 1), [124])
    """

    name: ClassVar[str] = "grayscale"
    example: ClassVar[str] = "grayscale:observation.pixels,format=hwc"
    formats: ClassVar[tuple[Format, ...]] = ("hwc", "chw")

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Leaves, or beginnings of keys; none: all that look like images with channels."""
    channels: int = 1
    """1, or 3 that are equal, or 0: no axis of channels."""
    format: Format | None = None
    """`hwc` or `chw`: how rows are read; None: by their shape, see `readings`."""

    def __post_init__(self) -> None:
        self.check_leaves()
        if type(self.channels) is not int or self.channels not in {0, 1, 3}:
            raise usage_error(Grayscale, f"has channels={self.channels}; expected 0, 1 or 3")
        if self.format == "hw":
            raise usage_error(Grayscale, "has format=hw; expected hwc or chw")

    def change(self, images: Images) -> NDArray[Any]:
        """Return new images; where they are gray already, or `channels` is 3, a view."""
        self._check(images)
        axis = CHANNELS[images.format]
        colours = np.moveaxis(images.values, axis, -1)
        gray = colours[..., 0]
        if images.channels > 1:
            gray = by_block(colours, gray.shape[1:], gray.dtype, 16 * gray[:1].size, _luma)
        if self.channels == 0:
            return gray
        gray = np.expand_dims(gray, axis)
        shape = list(images.values.shape)
        shape[axis] = self.channels
        return gray if self.channels == 1 else np.broadcast_to(gray, shape)

    def _check(self, images: Images) -> None:
        if images.values.dtype != np.uint8 and images.values.dtype.kind != "f":
            raise StepError(f"Step 'grayscale': leaf {images} is neither uint8 nor float")
        if images.channels not in {1, 3, 4}:
            raise StepError(
                f"Step 'grayscale': leaf {images} has {images.channels} channels, expected 1, 3 or 4"
            )
        if images.channels == 4 and self.format is None:
            raise StepError(
                f"Step 'grayscale': leaf {images} has four channels: colours with alpha, or frames",
                hint=f"say format={images.format} if the fourth is alpha, or name other leaves",
            )


def _luma(colours: NDArray[Any], out: NDArray[Any]) -> None:
    planes = (colours[..., channel] for channel in range(3))
    if colours.dtype == np.uint8:
        total = np.full(out.shape, 1 << 15, np.uint32)
        for plane, part in zip(planes, _LUMA_16, strict=True):
            total += np.multiply(plane, part, dtype=np.uint32)
        np.right_shift(total, 16, out=out, casting="unsafe")
        return
    exact = np.promote_types(colours.dtype, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
        out[...] = sum(
            np.multiply(p, part, dtype=exact) for p, part in zip(planes, _LUMA, strict=True)
        )
