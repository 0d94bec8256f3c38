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
_MOST_PIXELS = 1 << 26  # 200 MB of one frame


def is_jpeg(data: bytes, *, whole: bool = False) -> bool:
    r"""Return True if `data` begins like a JPEG image, and if `whole`, also ends like one.

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
        FormatError: It is not a JPEG image, is cut short, or has more than 2**26 pixels.
        MissingDependencyError: Pillow is not installed.
    """
    plugin = _pillow()
    try:
        # Not Image.open: that warns of large images on the screen, by a limit of the process.
        with plugin.JpegImageFile(io.BytesIO(data)) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise FormatError(f"{where} is an image of {image.width} x {image.height} pixels")
            return np.array(image, dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError) as error:
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
        from PIL import JpegImagePlugin
    except ImportError as error:
        raise MissingDependencyError(
            "JPEG images need Pillow", hint="pip install 'offline-data[images]'"
        ) from error
    return JpegImagePlugin
