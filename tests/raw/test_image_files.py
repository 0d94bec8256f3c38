"""Headers read without decoding, and the faster decoder: what Pillow says, or not used."""

from __future__ import annotations

import io
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from offline_data.base.errors import MissingDependencyError
from offline_data.raw import images
from offline_data.raw.images import decode_into, encode_image, header_shapes, image_head
from tests.pictures import JPEG, pictures, read, written


def test_headers_are_those_that_pillow_reads() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 300)
    exif = Image.Exif()
    exif[0x010E] = "a description"
    jpegs, pngs = [], []
    for n, (channels, more) in enumerate(itertools.product((1, 3), (False, True))):
        image = pictures(1, ("png", "uint8", (20 + n, 300 + n, channels)))[0]
        image = image[..., 0] if channels == 1 else image
        options: dict[str, Any] = {
            "icc_profile": b"p" * 200_000,
            "exif": exif,
            "comment": b"c" * 99,
        }
        progressive = {"progressive": True, "restart_marker_rows": 1}
        jpegs.append(written(image, "jpeg", **({**options, **progressive} if more else {})))
        pngs.append(written(image, "png", **({"pnginfo": text} if more else {})))
    pngs.append(written(pictures(1, ("png", "uint8", (20, 300, 4)))[0], "png"))
    for encoding, files in (("jpeg", jpegs), ("png", pngs)):
        gaps = [one + b"\xff\xd8" for one in files]
        begins = np.cumsum([0, *map(len, gaps)])[:-1]
        ends = begins + [len(one) for one in files]
        data = np.frombuffer(b"".join(gaps), np.uint8)
        shapes = [read(one).shape for one in files]
        expected = [[*shape[:2], (*shape, 1)[2], 8] for shape in shapes]
        assert header_shapes(data, begins, ends, encoding).tolist() == expected
        heads = [image_head(one) for one in files]
        assert [list(shape) for _, shape in heads] == expected
        assert [image_head(one[:n]) for one, (n, _) in zip(files, heads, strict=True)] == heads
        assert {image_head(one[: n - 1]) for one, (n, _) in zip(files, heads, strict=True)} == {
            (0, (0, 0, 0, 0))
        }
        short = header_shapes(data, begins, np.minimum(ends, begins + 20), encoding)
        assert not short.any()
        other = header_shapes(data, begins, ends, "png" if encoding == "jpeg" else "jpeg")
        assert not other.any()

    for mode, kind in (("P", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("CMYK", "JPEG")):  # not stored
        file = io.BytesIO()
        Image.new(mode, (30, 20)).save(file, kind)
        data = np.frombuffer(file.getvalue(), np.uint8)
        found = header_shapes(data, np.array([0]), np.array([len(data)]), kind.lower())
        assert found[0].tolist() not in ([20, 30, 1, 8], [20, 30, 3, 8])
        assert list(image_head(file.getvalue())[1]) == found[0].tolist()


class TestFasterDecoder:
    """A stand-in for simplejpeg, which need not be installed."""

    @pytest.fixture(autouse=True)
    def _afresh(self) -> Any:
        images._fast_jpeg.cache_clear()
        yield
        images._fast_jpeg.cache_clear()

    def standing_in(self, monkeypatch: pytest.MonkeyPatch, error: int) -> list[bytes]:
        seen = []

        def header(data: bytes) -> tuple[Any, ...]:
            shape = read(data).shape
            return *shape[:2], "Gray" if len(shape) == 2 else "YCbCr", "420"

        def decode(data: bytes, colorspace: str, buffer: Any) -> Any:
            assert colorspace in ("RGB", "GRAY")
            seen.append(data)
            buffer[...] = read(data).reshape(buffer.shape)
            buffer[0, 0, 0] += error
            return buffer

        module = SimpleNamespace(decode_jpeg_header=header, decode_jpeg=decode)
        monkeypatch.setitem(sys.modules, "simplejpeg", module)
        return seen

    @pytest.mark.parametrize("shape", [(40, 33, 3), (40, 33), (40, 33, 1)])
    def test_it_is_used_where_its_pixels_are_the_same(
        self, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = self.standing_in(monkeypatch, 0)
        image = written(pictures(1, ("jpeg", "uint8", shape))[0], "jpeg")
        out = np.zeros(shape, np.uint8)
        decode_into(image, "jpeg", out, "here")
        assert seen[-1] == image
        np.testing.assert_array_equal(out, read(image).reshape(shape))

    def test_it_is_not_used_where_one_pixel_differs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = self.standing_in(monkeypatch, 1)
        image, out = written(pictures(1, JPEG)[0], "jpeg"), np.zeros(JPEG[2], np.uint8)
        decode_into(image, "jpeg", out, "here")
        assert image not in seen
        np.testing.assert_array_equal(out, read(image))

    def test_the_real_one_if_it_is_here(self) -> None:
        pytest.importorskip("simplejpeg")
        assert images._fast_jpeg() is not None


def test_without_pillow_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    image = encode_image(pictures(1, JPEG)[0], "png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match="PNG images need Pillow") as error:
        decode_into(image, "png", np.zeros(JPEG[2], np.uint8), "here")
    assert "offline-data[images]" in str(error.value.hint)
