from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import images as blocks
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.images import Grayscale
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract

PIXELS = ("observation", "pixels")


def with_pixels(values: NDArray[np.generic], lengths: tuple[int, ...] = (2, 1)) -> Piece:
    return with_leaves(toy_piece(lengths), observations={"observation.pixels": values})


def colours(*shape: int, rows: int = 5, dtype: str = "uint8") -> NDArray[np.generic]:
    return np.random.default_rng(7).integers(1, 256, (rows, *shape)).astype(dtype)


class TestContract(StepContract):
    @pytest.fixture(
        params=["grayscale", "grayscale:observation.pixels,channels=0", "grayscale:channels=3"]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)

    @pytest.fixture(params=["uint8", "float32"])
    def piece(self, request: pytest.FixtureRequest) -> Piece:
        return with_pixels(colours(8, 9, 3, rows=14, dtype=request.param), (3, 1, 4, 2))


def test_bytes_equal_pillows() -> None:
    """On every red and green with some blues."""
    red, green = np.meshgrid(np.arange(256), np.arange(256))
    values = np.stack(
        [np.stack([red, green, np.full_like(red, blue)], -1) for blue in (0, 1, 7, 128, 254, 255)]
    ).astype(np.uint8)
    made = Grayscale().apply(with_pixels(values, (5,))).batch.observations[PIXELS]
    assert made.shape == (6, 256, 256, 1)
    for frame, gray in zip(values, made[..., 0], strict=True):
        np.testing.assert_array_equal(gray, np.asarray(Image.fromarray(frame).convert("L")))


def test_bytes_are_rounded() -> None:
    """By exact fractions: within the rounding of Pillow's 16 bits, so never off by one half."""
    values = colours(8, 9, 3)
    made = Grayscale(channels=0).apply(with_pixels(values)).batch.observations[PIXELS]
    assert made.dtype == np.uint8
    for at in np.ndindex(made.shape):
        r, g, b = (int(v) for v in values[at])
        exact = Fraction(299 * r + 587 * g + 114 * b, 1000)
        assert abs(int(made[at]) - exact) <= Fraction(1, 2) + Fraction(1, 100)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 5e-4), ("float32", 1e-6), ("float64", 1e-14)]
)
def test_floats_keep_their_type(dtype: str, tolerance: float) -> None:
    values = colours(8, 9, 3, dtype=dtype) / np.asarray(256, dtype)
    made = Grayscale(channels=0).apply(with_pixels(values)).batch.observations[PIXELS]
    assert made.dtype == dtype
    for at in np.ndindex(made.shape):
        r, g, b = (float(v) for v in values[at])
        assert float(made[at]) == pytest.approx(0.299 * r + 0.587 * g + 0.114 * b, rel=tolerance)


def test_nan_and_infinity_stay_in_their_pixel() -> None:
    values = colours(8, 9, 3, dtype="float32")
    values[1, 2, 3, 1], values[2, 3, 4, 0], values[3, 4, 5] = np.nan, np.inf, (np.inf, -np.inf, 1)
    made = Grayscale(channels=0).apply(with_pixels(values)).batch.observations[PIXELS]
    assert np.argwhere(~np.isfinite(made)).tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert np.isposinf(made[2, 3, 4])


@pytest.mark.parametrize("stack", [(), (2,)])
@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("form", ["hwc", "chw"])
@pytest.mark.parametrize("given", [1, 3, 4])
def test_axes_stay(stack: tuple[int, ...], channels: int, form: str, given: int) -> None:
    values = colours(*stack, 8, 9, given)
    gray = np.zeros(values.shape[:-1], np.uint8)
    for at in np.ndindex(values.shape[:-3]):
        frame = values[at][..., :3] if given > 1 else values[at][..., 0]
        gray[at] = np.asarray(Image.fromarray(frame).convert("L"))
    axis = -1 if form == "hwc" else -3
    piece = with_pixels(np.moveaxis(values, -1, axis))
    made = Grayscale(channels=channels, format=form).apply(piece)  # type: ignore[arg-type]
    expected = np.stack([gray] * channels, axis) if channels else gray
    np.testing.assert_array_equal(made.batch.observations[PIXELS], expected, strict=True)


def test_images_without_channels_are_left_out() -> None:
    piece = with_pixels(colours(8, 9, 3))
    depth = colours(8, 9)
    piece = with_leaves(piece, observations={"observation.depth": depth})
    made = Grayscale().apply(piece).batch.observations
    assert made[PIXELS].shape == (5, 8, 9, 1)
    assert made["observation", "depth"] is depth
    with pytest.raises(StepError, match=r"'observation/depth' .* has no axis of channels"):
        Grayscale(("observation.depth",)).apply(piece)


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        (colours(8, 9, 4), "has four channels: colours with alpha, or frames", "say format=hwc if"),
        (colours(4, 8, 9), "may be chw or hw", "say which"),
        (colours(9, 9, 9), "may be hwc or chw or hw", "say which"),
        (colours(8, 9, 2), "has 2 channels, expected 1, 3 or 4", None),
        (colours(8, 9), "has no axis of channels", None),
        (colours(8, 9, 3, dtype="int32"), "is neither uint8 nor float", None),
        (colours(7, 7, 3), "does not look like an image", "format=hwc"),
    ],
)
def test_what_has_no_colours(values: NDArray[np.generic], message: str, hint: str | None) -> None:
    with pytest.raises(StepError, match=message) as error:
        Grayscale(("observation.pixels",)).apply(with_pixels(values))
    assert (error.value.hint or "").startswith(hint or "")
    assert bool(error.value.hint) is bool(hint)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = with_pixels(colours(8, 9, 3))
    whole = Grayscale().apply(piece).batch.observations[PIXELS]
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    np.testing.assert_array_equal(Grayscale().apply(piece).batch.observations[PIXELS], whole)


def test_memory_is_bounded() -> None:
    """Beside the 54 MB that come in and what goes out, some MiB."""
    values = np.full((2000, 100, 90, 3), 51, np.uint8)
    piece = with_pixels(values, (1999,))
    tracemalloc.start()
    try:
        made = Grayscale().apply(piece).batch.observations[PIXELS]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.min() == made.max() == 51
    assert peak - made.nbytes < 12 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grayscale:channels=2", "has channels=2; expected 0, 1 or 3"),
        ("grayscale:channels=true", "has channels=true; expected a whole number"),
        ("grayscale:channels=1.5", r"has channels=1\.5"),
        ("grayscale:format=hw", "has format=hw; expected hwc or chw"),
        ("grayscale:format=rgb", "has format=rgb; expected hwc, chw, hw"),
        ("grayscale:chanels=1", "has no 'chanels'; did you mean 'channels'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_step(text)
    assert error.value.hint == f"for example --step {Grayscale.example}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grayscale:pixel", "No leaf is called 'pixel'"),
        ("grayscale:mission", "'mission' is text"),
        ("grayscale:action", "does not look like an image"),
    ],
)
def test_leaves_that_are_no_images(text: str, message: str) -> None:
    with pytest.raises(StepError, match=message):
        parse_step(text).apply(with_pixels(colours(8, 9, 3)))
