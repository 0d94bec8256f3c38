"""`resize`: images of another height and width."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import usage_error
from offline_data.preprocess.steps.image_step import ImageStep, read_sized
from offline_data.preprocess.steps.images import SIDES, by_block
from offline_data.preprocess.steps.resampling import MODES, resampled, working_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.steps.images import Format, Images
    from offline_data.preprocess.steps.resampling import Mode

_SMALL_INTEGERS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16")))
"""Those that float32 holds exactly."""


@dataclass(frozen=True)
class Resize(ImageStep):
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
        >>> import numpy as np
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
    """`hwc`, `chw` or `hw`: how rows are read; None: by their shape, see `readings`."""

    def __post_init__(self) -> None:
        self.check_leaves()
        self.check_pixels("height", 1, needed=True)
        self.check_pixels("width", 1)
        if self.mode not in MODES:
            raise usage_error(Resize, f"has mode={self.mode}; expected {', '.join(MODES)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HEIGHT[,WIDTH][,KEY…][,k=v…]`; see `Step.parse`."""
        return cls(**read_sized(cls, text))

    @property
    def size(self) -> tuple[int, int]:
        """New height and width."""
        return self.height, self.height if self.width is None else self.width

    def distinct(self, form: Format) -> object:
        """Return where the sides are: what else an axis is does not matter."""
        return SIDES[form]

    def change(self, images: Images) -> NDArray[Any]:
        """Return new images; those of this size as they are."""
        self._check_type(images)
        if (images.height, images.width) == self.size:
            return images.values
        shape = list(images.values.shape[1:])
        for axis, side in zip(SIDES[images.format], self.size, strict=True):
            shape[axis] = side

        def fill(values: NDArray[Any], out: NDArray[Any]) -> None:
            out[...] = resampled(values, images.format, self.size, self.mode)

        return by_block(
            images.values, tuple(shape), images.values.dtype, self._row_bytes(images), fill
        )

    def _check_type(self, images: Images) -> None:
        dtype = images.values.dtype
        if self.mode != "nearest" and not (dtype.kind == "f" or dtype in _SMALL_INTEGERS):
            raise StepError(
                f"Step 'resize': leaf {images} has a type that cannot be interpolated; expected "
                "uint8, other integers of up to 16 bits, or floats",
                hint="mode=nearest takes any type",
            )

    def _row_bytes(self, images: Images) -> int:
        """Four arrays, each with the longer of both heights and of both widths."""
        height, width = max(images.height, self.size[0]), max(images.width, self.size[1])
        stacked = images.values[:1].size // (images.height * images.width)
        itemsize = working_type(images.values.dtype, self.mode).itemsize
        return 4 * stacked * height * width * itemsize
