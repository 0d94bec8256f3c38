"""`crop`: a part of every image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.image_step import ImageStep, read_sized
from offline_data.preprocess.steps.images import SIDES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.steps.images import Format, Images


@dataclass(frozen=True)
class Crop(ImageStep):
    """Keep `height` x `width` pixels of every image, centred by default; a view.

    Where a side has one pixel too many for a middle, one more is cut off at the bottom and on
    the right. Types, values (NaN too) and the order of axes stay; images that are stacked in a row
    are cut alike.

    Raises:
        UsageError: A size below 1, or a place below 0.
        StepError: The part reaches beyond the image; a leaf that is not there or is no image.

    Example:
        >>> import numpy as np
        >>> from offline_data.testing.pieces import toy_piece
        >>> rows = np.arange(1, 241, dtype=np.uint8).reshape(3, 8, 10)
        >>> piece = toy_piece([2]).having(observations={("pixels",): rows})
        >>> Crop(2, 4).apply(piece).batch.observations["pixels",][0].tolist()
        [[34, 35, 36, 37], [44, 45, 46, 47]]
    """

    name: ClassVar[str] = "crop"
    example: ClassVar[str] = "crop:height=64,width=64,top=8"

    height: int
    """Pixels from top to bottom."""
    width: int | None = None
    """Pixels from left to right; None: as many as `height`."""
    top: int | None = None
    """Rows cut off above; None: half of those to be cut off, rounded down."""
    left: int | None = None
    """Columns cut off on the left; None: half of those to be cut off, rounded down."""
    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Leaves, or beginnings of keys; none: all that look like images, see `looks_like_images`."""
    format: Format | None = None
    """`hwc`, `chw` or `hw`: how rows are read; None: by their shape, see `readings`."""

    def __post_init__(self) -> None:
        self.check_leaves()
        self.check_pixels("height", 1, needed=True)
        self.check_pixels("width", 1)
        self.check_pixels("top", 0)
        self.check_pixels("left", 0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HEIGHT[,WIDTH][,KEY…][,k=v…]`; see `Step.parse`."""
        return cls(**read_sized(cls, text))

    def distinct(self, form: Format) -> object:
        """Return where the sides are: what else an axis is does not matter."""
        return SIDES[form]

    def change(self, images: Images) -> NDArray[Any]:
        """Return the parts, a view of the images."""
        width = self.height if self.width is None else self.width
        rows = self._part(images, "height", images.height, self.height, self.top)
        columns = self._part(images, "width", images.width, width, self.left)
        if images.format == "hwc":
            return images.values[..., rows, columns, :]
        return images.values[..., rows, columns]

    def _part(self, images: Images, what: str, side: int, size: int, first: int | None) -> slice:
        start = (side - size) // 2 if first is None else first
        if start < 0 or start + size > side:
            at = "" if first is None else f" from {first} on"
            raise StepError(f"Step 'crop': leaf {images} has {what} {side}, not {size}{at}")
        return slice(start, start + size)
