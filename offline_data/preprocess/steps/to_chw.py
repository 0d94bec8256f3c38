"""`to_chw`: channels before height and width, as PyTorch has images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import usage_error
from offline_data.preprocess.steps.image_step import ImageStep
from offline_data.preprocess.steps.images import by_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.steps.images import Format, Images


@dataclass(frozen=True)
class ToChw(ImageStep):
    """Turn images `[H, W, C]` into `[C, H, W]`, and `[H, W]` into `[1, H, W]`.

    Axes of stacked frames stay before them, and images that have this order stay as they are. The
    result is a view, and types and values stay (NaN too). With `scale=true` it is a new float32
    array of values / 255, as torchvision's `ToTensor` makes of bytes.

    Raises:
        UsageError: A format there is not, or a scale that is not true or false.
        StepError: With `scale=true`, a leaf that is not uint8; a leaf that is not there or is no
            image, or whose order of axes is not clear.

    Example:
        >>> import numpy as np
        >>> from offline_data.testing.pieces import toy_piece
        >>> rows = np.full((3, 8, 10, 3), 51, np.uint8)
        >>> piece = toy_piece([2]).having(observations={("pixels",): rows})
        >>> made = ToChw(scale=True).apply(piece).batch.observations["pixels",]
        >>> made.shape, made.dtype.name, float(made[0, 0, 0, 0])
        ((3, 3, 8, 10), 'float32', 0.20000000298023224)
    """

    name: ClassVar[str] = "to_chw"
    example: ClassVar[str] = "to_chw:observation.pixels,scale=true"

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Leaves, or beginnings of keys; none: all that look like images, see `looks_like_images`."""
    scale: bool = False
    """Whether bytes become float32 from 0 to 1."""
    format: Format | None = None
    """`hwc`, `chw` or `hw`: how rows are read; None: by their shape, see `readings`."""

    def __post_init__(self) -> None:
        self.check_leaves()
        if not isinstance(self.scale, bool):
            raise usage_error(ToChw, f"has scale={self.scale}; expected true or false")

    def change(self, images: Images) -> NDArray[Any]:
        """Return a view, or new float32 images."""
        moved = _chw(images)
        if not self.scale:
            return moved
        if images.values.dtype != np.uint8:
            raise StepError(
                f"Step 'to_chw': leaf {images} is not uint8, so scale=true does not know its range",
                hint="name the leaves that are uint8",
            )
        return by_block(moved, moved.shape[1:], np.dtype(np.float32), 0, _scaled)


def _chw(images: Images) -> NDArray[Any]:
    if images.format == "hw":
        return images.values[..., None, :, :]
    return np.moveaxis(images.values, -1, -3) if images.format == "hwc" else images.values


def _scaled(values: NDArray[Any], out: NDArray[Any]) -> None:
    np.divide(values, 255, out=out, dtype=np.float32)
