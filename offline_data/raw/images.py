"""JPEG and PNG images to arrays, with the pixels that Pillow gives; the only file that imports PIL."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.raw.pixels import check_pixels

_START = b"\xff\xd8\xff"
_END = b"\xff\xd9"
_MOST_SEGMENTS = 512  # before the header of a JPEG image: more than profiles and comments take
_UNREADABLE = (
    OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, EOFError,
    struct.error, zlib.error,
)  # fmt: skip
"""Errors of Pillow for damaged images."""
_PASSED = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
"""Markers of segments that may come before the frame header of a JPEG image."""
_PNG_BEGIN = np.frombuffer(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", np.uint8)


def is_jpeg(data: bytes, *, whole: bool = False) -> bool:
    r"""Return True if `data` begins like a JPEG image, and if `whole`, also ends like one.

    Example:
        >>> is_jpeg(b"\xff\xd8\xff\xe0 ... \xff\xd9", whole=True), is_jpeg(b"\x89PNG")
        (True, False)
    """
    return data.startswith(_START) and (data.endswith(_END) or not whole)


def is_image(data: bytes) -> bool:
    """Return True if `data` begins like a JPEG or PNG file."""
    return is_jpeg(data) or data.startswith(_PNG_BEGIN[:8].tobytes())


def decode_jpeg(data: bytes, where: str) -> NDArray[np.uint8]:
    """Decode one JPEG image to uint8 `[height, width, 3]`, or `[height, width]` where it is grey.

    Raises:
        FormatError: It is not a JPEG image, is cut short, or takes more than `pixels.HELD` bytes.
        MissingDependencyError: Pillow is not installed.
    """
    plugin = _pillow()
    try:
        # Not Image.open: that warns of large images on the screen, by a limit of the process.
        with plugin.JpegImageFile(io.BytesIO(data)) as image:
            check_pixels((image.height, image.width, len(image.getbands())), 1, where)
            return np.array(image, dtype=np.uint8)
    except _UNREADABLE as error:
        raise FormatError(f"{where} is not a JPEG image that can be decoded: {error}") from error


def decode_jpegs(frames: Sequence[bytes], shape: tuple[int, ...], where: str) -> NDArray[np.uint8]:
    """Decode frames, all of one shape, to uint8 `[len(frames), *shape]`."""
    out = np.empty((len(frames), *shape), np.uint8)
    for row, frame in enumerate(frames):
        image = decode_jpeg(frame, f"{where}, row {row},")
        if image.shape != shape:
            raise FormatError(
                f"{where}, row {row}, is an image of {list(image.shape)}; "
                f"expected {list(shape)} as in the first episode"
            )
        out[row] = image
    return out


def decode_tiff(data: bytes, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """Decode one grey TIFF image of uint8, uint16 or float32 (depth), as an array of this shape.

    Raises:
        FormatError: It is not such an image of `shape`, or is cut short.
        MissingDependencyError: Pillow is not installed.
    """
    _pillow("tiff")
    from PIL import TiffImagePlugin

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged tags, before the error
            with TiffImagePlugin.TiffImageFile(io.BytesIO(data)) as image:
                check_pixels((image.height, image.width), 4 if image.mode == "F" else 2, where)
                if image.mode not in {"L", "I;16", "F"} or image.size != (shape[1], shape[0]):
                    raise FormatError(
                        f"{where} is an image of {image.width} x {image.height} pixels of mode "
                        f"{image.mode}; expected a grey one of {shape[1]} x {shape[0]}"
                    )
                return np.array(image).reshape(shape)
    except _UNREADABLE as error:
        raise FormatError(f"{where} is not a TIFF image that can be decoded: {error}") from error


def image_head(data: bytes) -> tuple[int, tuple[int, int, int, int]]:
    """Read the header of one image file: how many bytes it and what is before it are, and its shape.

    Returns:
        The bytes, and height, width, channels and bits of a channel, as `header_shapes` gives them;
        all 0 where there is no such header. Files that begin with the same bytes have the same shape.
    """
    kind = {0: 1, 2: 3, 6: 4}.get(data[25]) if len(data) >= 33 else None
    if kind and data.startswith(_PNG_BEGIN.tobytes()):
        width, height, bits = struct.unpack_from(">IIB", data, 16)
        return 33, (height, width, kind, bits)
    at = 2
    while data.startswith(b"\xff\xd8") and at + 10 <= len(data) and data[at] == 0xFF:
        code = data[at + 1]
        length, bits, height, width, channels = struct.unpack_from(">HBHHB", data, at + 2)
        if 0xC0 <= code <= 0xC2:
            return at + 10, (height, width, channels, bits)
        if code != 0xFF and code not in _PASSED:
            break
        at += 1 if code == 0xFF else length + 2
    return 0, (0, 0, 0, 0)


def header_shapes(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], encoding: str
) -> NDArray[np.int64]:
    """Read the headers of images that lie at `begins` to `ends` of bytes, without decoding any.

    Returns:
        `[n, 4]`: height, width, channels and bits of a channel; all 0 where there is no header of
        a kind that is read: JPEG baseline, extended or progressive, PNG grey, RGB or RGBA.
    """
    found = np.zeros((len(begins), 4), np.int64)
    if encoding == "jpeg":
        _read_jpeg_headers(data, begins, ends, found)
        return found
    rows = np.flatnonzero(ends - begins >= 33)  # IHDR is first: w3.org/TR/png-3/#11IHDR
    head = data[begins[rows, None] + np.arange(26)]
    kinds = np.zeros(256, np.int64)
    kinds[[0, 2, 6]] = 1, 3, 4
    good = (head[:, :16] == _PNG_BEGIN).all(axis=1) & (kinds[head[:, 25]] > 0)
    width, height = np.ascontiguousarray(head[:, 16:24]).view(">u4").astype(np.int64).T
    columns = (height, width, kinds[head[:, 25]], head[:, 24].astype(np.int64))
    found[rows[good]] = np.stack(columns, axis=1)[good]
    return found


def _read_jpeg_headers(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    """Go from segment to segment, all images at once, up to the frame header (ITU-T T.81, B.2)."""
    passed = np.zeros(256, bool)
    passed[list(_PASSED)] = True
    rows = np.flatnonzero(ends - begins >= 12)
    rows = rows[(data[begins[rows]] == 0xFF) & (data[begins[rows] + 1] == 0xD8)]
    at = begins[rows] + 2
    for _ in range(_MOST_SEGMENTS):
        inside = at + 10 <= ends[rows]
        rows, at = rows[inside], at[inside]
        head = data[at[:, None] + np.arange(10)].astype(np.int64)
        marked, code = head[:, 0] == 0xFF, head[:, 1]
        frame = marked & (code >= 0xC0) & (code <= 0xC2)
        height, width, length = (head[:, i] * 256 + head[:, i + 1] for i in (5, 7, 2))
        found[rows[frame]] = np.stack([height, width, head[:, 9], head[:, 4]], axis=1)[frame]
        fill = marked & (code == 0xFF)
        on = fill | (marked & passed[code])
        rows, at = rows[on], (at + np.where(fill, 1, length + 2))[on]
        if not len(rows):
            break


def decode_into(data: bytes, encoding: str, out: NDArray[Any], where: str) -> None:
    """Decode a `jpeg` or `png` file into an array, with the pixels that Pillow gives.

    `out` is `[H, W]` or `[H, W, C]`, uint8, or uint16 for a grey PNG; C-contiguous.

    Raises:
        FormatError: It is damaged, or not an image like `out`, found before pixels take memory.
        MissingDependencyError: Pillow is not installed.
    """
    if encoding == "jpeg" and (fast := _fast_jpeg()) and fast(data, out):
        return
    plugin = _pillow(encoding)
    open_image = plugin.JpegImageFile if encoding == "jpeg" else plugin.PngImageFile
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[(*out.shape, 1)[2]]
    modes = ("I;16", "I") if out.dtype == np.uint16 else (mode,)
    try:
        with open_image(io.BytesIO(data)) as image:
            if (image.height, image.width) != out.shape[:2] or image.mode not in modes:
                raise FormatError(
                    f"{where} is an image of {image.width} x {image.height} pixels of mode "
                    f"{image.mode}; expected {out.shape[1]} x {out.shape[0]} of mode {modes[0]}"
                )
            if out.dtype == np.uint16:
                np.copyto(out, np.asarray(image).reshape(out.shape), casting="unsafe")
            else:
                np.copyto(out, np.frombuffer(image.tobytes(), np.uint8).reshape(out.shape))
    except _UNREADABLE as error:
        raise FormatError(
            f"{where} is not a {encoding} image that can be decoded: {error}",
            hint="`offline-data check --files ID` shows whether the file was damaged later",
        ) from error


def encode_image(image: NDArray[Any], encoding: str, quality: int = 95, **options: Any) -> bytes:
    """Return an image, of a shape and dtype as `decode_into` takes, as a `png`, `jpeg` or `webp` file.

    `quality` (1 to 100) is of JPEG and WebP; `options` are those of Pillow's writer.
    """
    _pillow(encoding)
    from PIL import Image

    file = io.BytesIO()
    flat = image[..., 0] if image.shape[2:] == (1,) else image
    if encoding in {"jpeg", "webp"}:
        options = {"quality": quality, **options}
    Image.fromarray(np.ascontiguousarray(flat)).save(file, encoding.upper(), **options)
    return file.getvalue()


def write_gif(file: IO[bytes], frames: Iterable[NDArray[np.uint8]], seconds: float) -> None:
    """Write RGB frames `[H, W, 3]` of one size as an animated GIF that repeats, one at a time.

    Each has 256 colours of its own, exact for frames of no more. `seconds` of a frame are rounded
    to hundredths, at least 2: viewers slow down shorter ones. Raises `MissingDependencyError`.
    """
    _pillow("gif")
    delay = max(2, round(100 * seconds)).to_bytes(2, "little")
    for number, frame in enumerate(frames):
        one = io.BytesIO()
        _with_palette(frame).save(one, "GIF", optimize=False, interlace=False)
        data = one.getvalue()
        # gif89a: header of 13 bytes, palette, descriptor of 10 bytes, pixels, end
        bits = data[10] & 7
        at = 13 + 3 * 2 ** (bits + 1)
        palette = data[13:at]
        if not number:
            file.write(b"GIF89a" + data[6:10] + b"\x70\0\0")
            file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0")
        file.write(b"\x21\xf9\x04\x04" + delay + b"\0\0")
        file.write(data[at : at + 9] + bytes([0x80 | bits]) + palette + data[at + 10 : -1])
    file.write(b";")


def _with_palette(image: NDArray[np.uint8]) -> Any:
    """Return an RGB image in Pillow's form with a palette: its own colours if at most 256."""
    from PIL import Image

    if Image.fromarray(image).getcolors(256) is None:
        # a tenth of the time of the default method
        return Image.fromarray(image).quantize(256, method=Image.Quantize.FASTOCTREE)
    # The lightest colour first: Pillow misreads a film whose first palette is 0, 1, 2, … in grey.
    codes = (255 - image).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colors, places = np.unique(codes, return_inverse=True)
    found = Image.fromarray(places.reshape(codes.shape).astype(np.uint8)).convert("P")
    found.putpalette((255 - (colors[:, None] >> [16, 8, 0] & 255)).astype(np.uint8).tobytes())
    return found


@cache
def _fast_jpeg() -> Callable[[bytes, NDArray[Any]], bool] | None:
    """Return simplejpeg's decoder if it is installed and gives the pixels that Pillow gives."""
    # It decodes into an array, and returns False where Pillow is to decide.
    try:
        fast = import_module("simplejpeg")
    except ImportError:
        return None

    def decode(data: bytes, out: NDArray[Any]) -> bool:
        pixels = out.reshape(*out.shape[:2], -1)
        wanted = ("Gray", "GRAY") if pixels.shape[2] == 1 else ("YCbCr", "RGB")
        try:
            height, width, space, _ = fast.decode_jpeg_header(data)
            fits = (height, width) == out.shape[:2] and space == wanted[0]
            return fits and np.shares_memory(fast.decode_jpeg(data, wanted[1], buffer=pixels), out)
        except Exception:  # noqa: BLE001 - whatever it is, Pillow says it
            return False

    def same(*shape: int, **options: Any) -> bool:
        image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        image[: shape[0] // 2] //= 8
        data, found = encode_image(image, "jpeg", 90, **options), np.empty_like(image)
        with _pillow().JpegImageFile(io.BytesIO(data)) as theirs:
            return decode(data, found) and np.array_equal(found, np.array(theirs))

    colour = [same(37, 53, 3, subsampling=n, progressive=p) for n in (0, 1, 2) for p in (0, 1)]
    return decode if all(colour) and same(37, 53) else None


def _pillow(encoding: str = "jpeg") -> Any:
    try:
        from PIL import JpegImagePlugin, PngImagePlugin
    except ImportError as error:
        raise MissingDependencyError(
            f"{encoding.upper()} images need Pillow", hint="pip install 'offline-data[images]'"
        ) from error
    return JpegImagePlugin if encoding == "jpeg" else PngImagePlugin
