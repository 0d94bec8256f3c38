"""JPEG frames to arrays, with the pixels that Pillow gives; the only file that imports PIL."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_START = b"\xff\xd8\xff"
_END = b"\xff\xd9"


def is_jpeg(data: bytes, *, whole: bool = False) -> bool:
    r"""Tell whether `data` begins like a JPEG image, and if `whole`, also ends like one.

    Example:
        >>> is_jpeg(b"\xff\xd8\xff\xe0 ... \xff\xd9", whole=True), is_jpeg(b"\x89PNG")
        (True, False)
    """
    return data.startswith(_START) and (data.endswith(_END) or not whole)


def decode_jpeg(data: bytes, where: str) -> NDArray[np.uint8]:
    """Decode one JPEG image.

    Args:
        data: The bytes of the file.
        where: What the image is, for the message of an error.

    Returns:
        uint8 `[height, width, 3]`, or `[height, width]` for a greyscale image.

    Raises:
        FormatError: It is not a JPEG image, or is cut short.
        MissingDependencyError: Pillow is not installed.
    """
    image_module = _pillow()
    try:
        with image_module.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return np.array(image, dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise FormatError(f"{where} is not a JPEG image that can be decoded: {error}") from error


def decode_jpegs(frames: Sequence[bytes], out: NDArray[np.generic], where: str) -> None:
    """Decode frames into `out`, uint8 `[len(frames), *image]`.

    Raises:
        FormatError: A frame cannot be decoded, or is not of the size of `out`.
    """
    for row, frame in enumerate(frames):
        image = decode_jpeg(frame, f"{where}, row {row},")
        if image.shape != out.shape[1:]:
            raise FormatError(
                f"{where}, row {row}, is an image of {list(image.shape)}; "
                f"expected {list(out.shape[1:])} as in the first episode"
            )
        out[row] = image


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "JPEG images need Pillow", hint="pip install 'offline-data[images]'"
        ) from error
    return Image
