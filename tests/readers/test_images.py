from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from offline_data.errors import FormatError
from offline_data.readers.images import decode_jpeg, decode_jpegs, is_jpeg


def encoded(shape: tuple[int, ...], kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


@pytest.mark.parametrize("shape", [(9, 5, 3), (9, 5), (1, 1), (64, 33, 3)])
def test_decodes_as_pillow_does(shape: tuple[int, ...]) -> None:
    data = encoded(shape)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    found = decode_jpeg(data, "here")
    assert found.shape == shape
    np.testing.assert_array_equal(found, expected)
    assert is_jpeg(data, whole=True)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", encoded((9, 5))[:-60], b"text"])
def test_what_is_no_image_names_the_place(data: bytes) -> None:
    with pytest.raises(FormatError, match="the place is not a JPEG image"):
        decode_jpeg(data, "the place")


def test_other_kinds_of_images_are_refused() -> None:
    with pytest.raises(FormatError):
        decode_jpeg(encoded((9, 5), "PNG"), "here")


def test_frames_fill_the_rows_in_order() -> None:
    frames = [encoded((4, 6)), encoded((4, 6))[:0] or encoded((4, 6))]
    out = np.zeros((2, 4, 6), np.uint8)
    decode_jpegs(frames, out, "here")
    np.testing.assert_array_equal(out[1], decode_jpeg(frames[1], "here"))
