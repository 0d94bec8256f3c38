"""Steps for images beside Pillow, torch and reckoning by hand, and which leaves they take."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from offline_data.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import images as blocks
from offline_data.preprocess.steps.images import (
    MODES,
    Crop,
    Format,
    Grayscale,
    Images,
    ImageStep,
    Resize,
    SizedImageStep,
    ToChw,
    by_block,
    looks_like_images,
    resampled,
)
from offline_data.preprocess.steps.images import formats_of as read
from offline_data.preprocess.steps.parse import is_whole
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves


@dataclass(frozen=True)
class Darken(SizedImageStep):
    """Half the values; sizes only so that they can be read."""

    name: ClassVar[str] = "darken"
    example: ClassVar[str] = "darken:84,observation.pixels"

    height: int = 0
    width: int | None = None
    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    format: Format | None = None

    def __post_init__(self) -> None:
        ImageStep.__post_init__(self)
        self._expect("height", "a whole number, 0 or more", fits=is_whole(self.height, 0))

    def change(self, images: Images) -> NDArray[Any]:
        return np.asarray(images.values // 2)


class Colours(Darken):
    formats: ClassVar[tuple[Format, ...]] = ("hwc", "chw")


def leaf(*shape: int, dtype: str = "uint8", rows: int = 3) -> NDArray[Any]:
    return np.arange(1, rows * int(np.prod(shape)) + 1).reshape(rows, *shape).astype(dtype)


def pixels(**observations: NDArray[Any]) -> Piece:
    return with_leaves(
        toy_piece([2]), observations={f"observation.{k}": v for k, v in observations.items()}
    )


def found(piece: Piece, step: ImageStep) -> dict[str, Format]:
    return {"/".join(one.key): one.format for one in step.images(piece)}


@pytest.mark.parametrize(
    ("shape", "formats"),
    [
        ((84, 84), ("hw",)),
        ((8, 8), ("hw",)),
        ((7, 84), ()),
        ((84, 7), ()),
        ((84, 84, 3), ("hwc",)),
        ((84, 84, 1), ("hwc",)),
        ((84, 84, 2), ("hwc",)),
        ((4, 84, 84, 3), ("hwc",)),
        ((2, 4, 84, 96, 3), ("hwc",)),
        ((3, 84, 84), ("chw",)),
        ((1, 84, 84), ("chw",)),
        ((4, 3, 84, 84), ("chw",)),
        ((4, 84, 84), ("chw", "hw")),
        ((5, 84, 84), ("chw", "hw")),
        ((9, 84, 84), ("hwc", "chw", "hw")),
        ((84, 84, 9), ("hwc", "chw", "hw")),
        ((7, 7, 3), ()),
        ((84, 3, 3), ()),
        ((3, 84, 3), ()),
        ((84, 84, 0), ()),
        ((0, 84, 84), ()),
        ((300,), ()),
        ((), ()),
    ],
)
def test_formats_a_shape_may_have(shape: tuple[int, ...], formats: tuple[str, ...]) -> None:
    assert read(shape) == formats


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (leaf(8, 9), True),
        (leaf(5, 8, 9), True),
        (leaf(8, 9, 10), True),
        (leaf(8, 9, 2), True),
        (leaf(7, 9), False),
        (leaf(8, 9, 3, dtype="float32"), True),
        (leaf(3, 8, 9, dtype="float64"), True),
        (leaf(4, 8, 9, dtype="float16"), True),
        (leaf(8, 9, dtype="float32"), False),
        (leaf(8, 9, 2, dtype="float32"), False),
        (leaf(5, 8, 9, dtype="float32"), False),
        (leaf(8, 9, 10, dtype="float32"), False),
        (leaf(8, 9, 3, dtype="int32"), False),
        (leaf(8, 9, 3, dtype="bool"), False),
    ],
)
def test_what_is_taken_for_an_image(values: NDArray[Any], expected: bool) -> None:
    assert looks_like_images(values) is expected


def test_without_names_all_images_are_meant() -> None:
    piece = pixels(
        eye=leaf(8, 9, 3), depth=leaf(8, 9), points=leaf(64, 3, dtype="float32"), small=leaf(5, 5)
    )
    piece = with_leaves(piece, steps={"action.picture": leaf(3, 8, 9, rows=2)})
    every = {"observation/eye": "hwc", "observation/depth": "hw", "action/picture": "chw"}
    assert found(piece, Darken()) == every
    assert found(piece, Darken(format="hwc")) == {"observation/eye": "hwc"}
    assert found(piece, Colours()) == {"observation/eye": "hwc", "action/picture": "chw"}


def test_a_beginning_means_the_images_below_it() -> None:
    piece = pixels(eye=leaf(8, 9, 3), depth=leaf(8, 9))
    assert found(piece, Darken(keys=("observation",))) == {
        "observation/eye": "hwc",
        "observation/depth": "hw",
    }
    assert found(piece, Darken(keys=("next.observation.eye", "obs.depth"))) == {
        "observation/eye": "hwc",
        "observation/depth": "hw",
    }
    more = with_leaves(piece, observations={"info.more": leaf(2)})
    with pytest.raises(StepError, match=r"finds no image for it among 'info/code' \(int64 \[1\]"):
        Darken(keys=("observation", "info")).images(more)


def test_an_unclear_order_is_asked_for() -> None:
    piece = pixels(frames=leaf(9, 8, 8))
    for keys in ((), ("observation",), ("observation.frames",)):
        with pytest.raises(StepError, match=r"\(uint8 \[9, 8, 8\]\) may be hwc or chw or hw") as e:
            Darken(keys=keys).images(piece)
        assert e.value.hint == "say which with format=…, or name other leaves"
    for form in blocks.FORMATS:
        assert found(piece, Darken(format=form)) == {"observation/frames": form}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Darken(), r"finds no image for it among .*'action' \(float32 \[3\]\)"),
        (Darken(keys=("action",)), r"leaf 'action' \(float32 \[3\]\) does not look like an image"),
        (Darken(keys=("action",), format="hw"), "too few axes for format=hw"),
        (Darken(keys=("observation.void",), format="hw"), "or an empty one"),
        (Darken(keys=("mission",)), "leaf 'mission' is text, not an image"),
        (Darken(keys=("words",), format="hw"), "leaf 'words' is text, not an image"),
        (Darken(keys=("pixel",)), "No leaf is called 'pixel'"),
        (Colours(keys=("observation.depth",)), "has no axis of channels; expected hwc or chw"),
    ],
)
def test_what_is_no_image_is_refused(step: ImageStep, message: str) -> None:
    piece = with_leaves(
        pixels(void=leaf(0, 9)),
        observations={"words": leaf(8, 8, dtype="int32")},
        words={"words": ["one", "two"]},
    )
    if "depth" in str(step.keys):
        piece = with_leaves(piece, observations={"observation.depth": leaf(8, 9)})
    with pytest.raises(StepError, match=message):
        step.apply(piece)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("84", {"height": 84}),
        ("84,96", {"height": 84, "width": 96}),
        ("84,obs.eye", {"height": 84, "keys": ("obs.eye",)}),
        ("84, 96, obs.eye, info", {"height": 84, "width": 96, "keys": ("obs.eye", "info")}),
        ("height=84,obs.eye", {"height": 84, "keys": ("obs.eye",)}),
        ("obs.eye,height=84,format=hw", {"height": 84, "format": "hw", "keys": ("obs.eye",)}),
        ("84,width=96", {"height": 84, "width": 96}),
        ("84,96,keys=obs.eye,info", {"height": 84, "width": 96, "keys": ("obs.eye", "info")}),
        ("84,96,7", {"height": 84, "width": 96, "keys": ("7",)}),
    ],
)
def test_sizes_then_leaves_are_read(text: str, expected: dict[str, Any]) -> None:
    assert Darken.parse(text) == Darken(**expected)


@pytest.mark.parametrize(("row_bytes", "most"), [(1, 7), (100, 3), (150, 2), (301, 1), (0, 7)])
def test_blocks_are_bounded(row_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 300)
    seen: list[int] = []

    def fill(values: NDArray[Any], out: NDArray[Any]) -> None:
        seen.append(len(values))
        out[...] = values[:, None] * 0.5

    result = by_block(leaf(rows=7), (2,), np.dtype(np.float16), row_bytes, fill)
    assert result.dtype == np.float16
    assert result.tolist() == [[v / 2, v / 2] for v in range(1, 8)]
    assert max(seen) == most
    assert sum(seen) == 7


PIXELS = ("observation", "pixels")


def with_pixels(*shape: int, dtype: str = "uint16", lengths: tuple[int, ...] = (2, 1)) -> Piece:
    """Give episodes with images in which no two values are alike."""
    rows = sum(lengths) + len(lengths)
    values = np.arange(1, rows * np.prod(shape) + 1).reshape(rows, *shape).astype(dtype)
    return with_leaves(toy_piece(lengths), observations={"observation.pixels": values})


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [
        ("crop:6", range(2, 8), range(2, 8)),
        ("crop:6,4", range(2, 8), range(3, 7)),
        ("crop:height=5,width=8", range(2, 7), range(1, 9)),
        ("crop:6,4,top=0", range(6), range(3, 7)),
        ("crop:6,4,left=7", range(2, 8), range(7, 11)),
        ("crop:10,11", range(10), range(11)),
        ("crop:1,1,top=9,left=10", range(9, 10), range(10, 11)),
    ],
)
@pytest.mark.parametrize("form", ["hwc", "chw", "hw"])
@pytest.mark.parametrize("stack", [(), (2,)])
def test_pixels_that_stay(
    text: str, rows: range, columns: range, form: str, stack: tuple[int, ...]
) -> None:
    shape = {"hwc": (10, 11, 3), "chw": (3, 10, 11), "hw": (10, 11)}[form]
    piece = with_pixels(*stack, *shape)
    result = parse_step(f"{text},observation.pixels,format={form}").apply(piece)
    given, made = piece.batch.observations[PIXELS], result.batch.observations[PIXELS]
    assert made.dtype == given.dtype
    axes = len(made.shape) - (3 if form == "hwc" else 2)
    assert made.shape[axes : axes + 2] == (len(rows), len(columns))
    for at in np.ndindex(made.shape):
        source = list(at)
        source[axes], source[axes + 1] = rows[at[axes]], columns[at[axes + 1]]
        assert made[at] == given[tuple(source)]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64", "int64", "bool"])
def test_types_and_nan_stay(dtype: str) -> None:
    piece = with_pixels(9, 9, 3, dtype=dtype)
    values = piece.batch.observations[PIXELS].copy()
    if values.dtype.kind == "f":
        values[:, 4, 4], values[:, 4, 5] = np.nan, np.inf
    piece = with_leaves(piece, observations={"observation.pixels": values})
    made = Crop(3, keys=("obs.pixels",)).apply(piece).batch.observations[PIXELS]
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, values[:, 3:6, 3:6])


def test_nothing_is_copied() -> None:
    piece = with_pixels(16, 16, 3)
    made = Crop(8, keys=("obs",), format="hwc").apply(with_pixels(16, 16, 3, dtype="uint8"))
    assert made.batch.observations[PIXELS].base is not None
    given = piece.batch.observations[PIXELS]
    made = Crop(8, keys=("observation.pixels",)).apply(piece)
    assert np.shares_memory(made.batch.observations[PIXELS], given)


def test_stacked_and_channels_first_are_cut_alike() -> None:
    """Four channels or four frames: what is cut is the same, so nothing is asked."""
    piece = with_pixels(4, 10, 11, dtype="uint8")
    made = Crop(8).apply(piece).batch.observations[PIXELS]
    np.testing.assert_array_equal(made, piece.batch.observations[PIXELS][:, :, 1:9, 1:9])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop:12,5", r"'observation/pixels' \(uint8 \[10, 11, 3\]\) has height 10, not 12$"),
        ("crop:5,12", "has width 11, not 12$"),
        ("crop:8,top=3", "has height 10, not 8 from 3 on$"),
        ("crop:8,left=4", "has width 11, not 8 from 4 on$"),
        ("crop:8,pixel", "No leaf is called 'pixel'"),
        ("crop:8,mission", "'mission' is text"),
        ("crop:8,action", "does not look like an image"),
    ],
)
def test_what_cannot_be_cut(text: str, message: str) -> None:
    with pytest.raises(StepError, match=message):
        parse_step(text).apply(with_pixels(10, 11, 3, dtype="uint8"))


def with_images(values: NDArray[np.generic], lengths: tuple[int, ...] = (2, 1)) -> Piece:
    return with_leaves(toy_piece(lengths), observations={"observation.pixels": values})


def colours(*shape: int, rows: int = 5, dtype: str = "uint8") -> NDArray[np.generic]:
    return np.random.default_rng(7).integers(1, 256, (rows, *shape)).astype(dtype)


def test_bytes_equal_pillows() -> None:
    """On every red and green with some blues."""
    red, green = np.meshgrid(np.arange(256), np.arange(256))
    values = np.stack(
        [np.stack([red, green, np.full_like(red, blue)], -1) for blue in (0, 1, 7, 128, 254, 255)]
    ).astype(np.uint8)
    made = Grayscale().apply(with_images(values, (5,))).batch.observations[PIXELS]
    assert made.shape == (6, 256, 256, 1)
    for frame, gray in zip(values, made[..., 0], strict=True):
        np.testing.assert_array_equal(gray, np.asarray(Image.fromarray(frame).convert("L")))


def test_bytes_are_rounded() -> None:
    """By exact fractions: within the rounding of Pillow's 16 bits, so never off by one half."""
    values = colours(8, 9, 3)
    made = Grayscale(channels=0).apply(with_images(values)).batch.observations[PIXELS]
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
    made = Grayscale(channels=0).apply(with_images(values)).batch.observations[PIXELS]
    assert made.dtype == dtype
    for at in np.ndindex(made.shape):
        r, g, b = (float(v) for v in values[at])
        assert float(made[at]) == pytest.approx(0.299 * r + 0.587 * g + 0.114 * b, rel=tolerance)


def test_nan_and_infinity_stay_in_their_pixel() -> None:
    values = colours(8, 9, 3, dtype="float32")
    values[1, 2, 3, 1], values[2, 3, 4, 0], values[3, 4, 5] = np.nan, np.inf, (np.inf, -np.inf, 1)
    made = Grayscale(channels=0).apply(with_images(values)).batch.observations[PIXELS]
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
    piece = with_images(np.moveaxis(values, -1, axis))
    made = Grayscale(channels=channels, format=form).apply(piece)  # type: ignore[arg-type]
    expected = np.stack([gray] * channels, axis) if channels else gray
    np.testing.assert_array_equal(made.batch.observations[PIXELS], expected, strict=True)


def test_images_without_channels_are_left_out() -> None:
    piece = with_images(colours(8, 9, 3))
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
        Grayscale(("observation.pixels",)).apply(with_images(values))
    assert (error.value.hint or "").startswith(hint or "")
    assert bool(error.value.hint) is bool(hint)


def with_bytes(*shape: int, dtype: str = "uint8", lengths: tuple[int, ...] = (2, 1)) -> Piece:
    """Give episodes with images in which no two values of 255 are alike."""
    rows = sum(lengths) + len(lengths)
    values = np.arange(rows * np.prod(shape)).reshape(rows, *shape) % 255 + 1
    return with_leaves(
        toy_piece(lengths), observations={"observation.pixels": values.astype(dtype)}
    )


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("stack", [(), (2,), (4, 2)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_channels_come_first(scale: bool, stack: tuple[int, ...], channels: int) -> None:
    piece = with_bytes(*stack, 8, 9, channels)
    result = ToChw(scale=scale).apply(piece).batch.observations[PIXELS]
    given = piece.batch.observations[PIXELS]
    assert result.shape == (5, *stack, channels, 8, 9)
    assert result.dtype == (np.float32 if scale else np.uint8)
    for at in np.ndindex(given.shape):
        *ahead, h, w, c = at
        value = np.float32(int(given[at]) / 255) if scale else given[at]
        moved = (*ahead, c, h, w)
        assert result[moved] == value


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_to_chw_types_and_nan_stay(dtype: str) -> None:
    piece = with_bytes(8, 9, 3, dtype=dtype)
    values = piece.batch.observations[PIXELS].copy()
    if values.dtype.kind == "f":
        values[0, 2, 3, 1], values[0, 4, 5, 2] = np.nan, -np.inf
    piece = with_leaves(piece, observations={"observation.pixels": values})
    made = ToChw().apply(piece).batch.observations[PIXELS]
    assert made.dtype == dtype
    np.testing.assert_array_equal(made[0, :, 2, 3], values[0, 2, 3])
    np.testing.assert_array_equal(made[0, :, 4, 5], values[0, 4, 5])
    assert np.shares_memory(made, values)


def test_scaled_as_torch_divides() -> None:
    values = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(2, 0)
    piece = with_leaves(toy_piece([1]), observations={"observation.pixels": values})
    made = ToChw(scale=True).apply(piece).batch.observations[PIXELS]
    expected = torch.arange(256, dtype=torch.uint8).to(torch.float32).div(255)
    np.testing.assert_array_equal(made[0, 0].reshape(-1), expected.numpy())


def test_what_has_its_channels_first_stays() -> None:
    piece = with_bytes(3, 8, 9)
    given = piece.batch.observations[PIXELS]
    assert ToChw().apply(piece).batch.observations[PIXELS] is given
    scaled = ToChw(scale=True).apply(piece).batch.observations[PIXELS]
    np.testing.assert_array_equal(scaled, given.astype(np.float32) / np.float32(255))


def test_images_without_channels_get_one() -> None:
    plain, stacked = with_bytes(8, 9), with_bytes(4, 8, 9)
    made = ToChw().apply(plain).batch.observations[PIXELS]
    np.testing.assert_array_equal(made, plain.batch.observations[PIXELS].reshape(5, 1, 8, 9))
    made = ToChw(format="hw").apply(stacked).batch.observations[PIXELS]
    np.testing.assert_array_equal(made, stacked.batch.observations[PIXELS].reshape(5, 4, 1, 8, 9))


def test_only_bytes_have_a_known_range() -> None:
    with pytest.raises(StepError, match=r"'observation/pixels' \(float32 .* is not uint8") as e:
        ToChw(scale=True).apply(with_bytes(8, 9, 3, dtype="float32"))
    assert e.value.hint == "name the leaves that are uint8"


FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


SIZES = [(10, 9), (30, 8), (5, 41), (40, 50), (1, 1), (21, 17)]


"""From 21 x 17: smaller, larger, one side each, far larger, far smaller, the same."""


def noise(*shape: int, rows: int = 5, dtype: str = "uint8") -> NDArray[Any]:
    """Give noise, the hardest of images: no two neighbours have to do with each other."""
    return np.random.default_rng(3).integers(1, 256, (rows, *shape)).astype(dtype)


def resized(values: NDArray[Any], text: str) -> NDArray[Any]:
    result = parse_step(f"{text},observation.pixels").apply(with_images(values))
    return np.asarray(result.batch.observations[PIXELS])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", FILTERS)
class TestAgainstPillow:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_bytes(self, mode: str, size: tuple[int, int], channels: int) -> None:
        low, high = (1, 256) if mode == "bilinear" else (90, 165)  # never beyond bytes half-way
        values = np.random.default_rng(5).integers(low, high, (5, 21, 17, channels), np.uint8)
        made = resized(values, f"resize:{size[0]},{size[1]},mode={mode}")
        assert made.shape == (5, *size, channels)
        assert made.dtype == np.uint8
        for frame, new in zip(values, made, strict=True):
            expected = _pillow(frame if channels == 3 else frame[..., 0], size, mode)
            off = np.abs(new.astype(int) - expected.reshape(new.shape))
            assert off.max() <= 2
            assert np.count_nonzero(off > 1) <= off.size / 1000

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_floats(self, mode: str, size: tuple[int, int], dtype: str) -> None:
        values = noise(3, 21, 17, dtype=dtype)
        made = resized(values, f"resize:{size[0]},{size[1]},mode={mode}")
        assert made.shape == (5, 3, *size)
        assert made.dtype == dtype
        for at in np.ndindex(5, 3):
            expected = _pillow(values[at].astype(np.float32), size, mode)
            np.testing.assert_allclose(made[at], expected, atol=0.2 if dtype == "float16" else 1e-3)

    def test_integers_of_16_bits(self, mode: str, size: tuple[int, int]) -> None:
        values = (noise(21, 17).astype(np.uint16) * 257)[..., None]
        made = resized(values, f"resize:{size[0]},{size[1]},mode={mode}")
        assert made.dtype == np.uint16
        for frame, new in zip(values[..., 0], made[..., 0], strict=True):
            expected = _pillow(frame.astype(np.float32), size, mode).clip(0, 65535)
            assert np.abs(new.astype(float) - expected).max() <= 0.6  # rounded, and not cut off


def _pillow(frame: NDArray[Any], size: tuple[int, int], mode: str) -> NDArray[Any]:
    image = Image.fromarray(frame)
    return np.asarray(image.resize((size[1], size[0]), FILTERS[mode]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_area_is_the_mean_of_what_is_covered(size: tuple[int, int], dtype: str) -> None:
    """By exact fractions, pixel by pixel."""
    values = noise(21, 17, rows=2, dtype=dtype)
    made = resampled(values, "hw", size, "area")
    assert made.shape == (2, *size)
    assert made.dtype == dtype
    parts = [_overlaps(21, size[0]), _overlaps(17, size[1])]
    for n, i, j in np.ndindex(made.shape):
        mean = Fraction(0)
        for (h, high), (w, wide) in product(parts[0][i], parts[1][j]):
            mean += high * wide * int(values[n, h, w])
        rounding = Fraction(1, 2) if dtype == "uint8" else Fraction(0)
        assert abs(Fraction(float(made[n, i, j])) - mean) <= rounding + Fraction(1, 10_000)


def _overlaps(old: int, new: int) -> list[list[tuple[int, Fraction]]]:
    """Return for each new pixel the old ones, and what part of it they make."""
    found = []
    for i in range(new):
        first, stop = Fraction(i * old, new), Fraction((i + 1) * old, new)
        pixel = [Fraction(h) for h in range(old + 1)]
        lengths = [(h, min(stop, pixel[h + 1]) - max(first, pixel[h])) for h in range(old)]
        found.append([(h, length / (stop - first)) for h, length in lengths if length > 0])
    return found


def test_halves_are_rounded_up() -> None:
    values = np.tile(np.array([[10, 11], [200, 201]], np.uint8), (5, 4, 4))
    made = resampled(values, "hw", (8, 4), "area")
    assert np.unique(made).tolist() == [11, 201]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32"])
def test_nearest_is_the_pixel_in_the_middle(size: tuple[int, int], dtype: str) -> None:
    values = (np.arange(5 * 21 * 17) % 251).reshape(5, 21, 17).astype(dtype)
    made = resized(values, f"resize:{size[0]},{size[1]},mode=nearest,format=hw")
    assert made.shape == (5, *size)
    assert made.dtype == dtype
    for n, i, j in np.ndindex(made.shape):
        h, w = (Fraction(2 * at + 1, 2 * new) * old for at, new, old in _sides(i, j, size))
        assert made[n, i, j] == values[n, int(h), int(w)]


def _sides(i: int, j: int, size: tuple[int, int]) -> list[tuple[int, int, int]]:
    return [(i, size[0], 21), (j, size[1], 17)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_each_plane_on_its_own(mode: str, dtype: str, channels: int) -> None:
    """In any order of axes, and stacked, with other planes beside it or not."""
    values = noise(2, 21, 17, channels, dtype=dtype)
    text = f"resize:10,9,mode={mode}"
    alone = np.stack(
        [
            np.stack([resized(values[:, s, :, :, c], f"{text},format=hw") for s in range(2)], 1)
            for c in range(channels)
        ],
        -1,
    )
    np.testing.assert_array_equal(resized(values, text), alone, strict=True)
    planes = np.moveaxis(values, -1, -3)
    for form in ("chw", "hw"):
        made = resized(planes, f"{text},format={form}")
        np.testing.assert_array_equal(made, np.moveaxis(alone, -1, -3), strict=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["hwc", "chw", "hw"])
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_blocks_do_not_matter(
    mode: str, form: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hwc": (21, 17, 3), "chw": (3, 21, 17), "hw": (21, 17)}[form]
    values = noise(*shape, dtype=dtype)
    text = f"resize:10,9,mode={mode},format={form}"
    whole = resized(values, text)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    np.testing.assert_array_equal(resized(values, text), whole)


def test_images_of_the_size_stay_as_they_are() -> None:
    values = noise(21, 17, 3, dtype="float32")
    values[0, 3, 4] = np.nan
    for mode in MODES:
        made = Resize(21, 17, mode=mode).apply(with_images(values))
        assert made.batch.observations[PIXELS] is values


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_stay_near(mode: str) -> None:
    """They reach the new noise they have a part in, and no others."""
    values = noise(24, 24, dtype="float32")
    values[1, 2, 3], values[2, 20, 21], values[3, 10, 10:12] = np.nan, np.inf, (np.inf, -np.inf)
    text = f"resize:12,mode={mode},format=hw"
    made = resized(values, text)
    clean = resized(np.where(np.isfinite(values), values, np.float32(5)), text)
    for n, h, w in ((1, 1, 1), (2, 10, 10), (3, 5, 5)):
        near = np.zeros((12, 12), bool)
        near[max(h - 2, 0) : h + 3, max(w - 2, 0) : w + 3] = True
        np.testing.assert_array_equal(made[n][~near], clean[n][~near])
    np.testing.assert_array_equal(made[[0, 4]], clean[[0, 4]])
    if mode != "nearest":
        assert np.isnan(made[1, 1, 1])
        assert not np.isfinite(made[2, 10, 10])
        assert np.isnan(made[3, 5, 5])
    if mode == "area":
        assert np.isposinf(made[2, 10, 10])


@pytest.mark.parametrize("new", [4, 8, 13, 30])
def test_what_an_area_does_not_cover_has_no_part_in_it(new: int) -> None:
    values = np.eye(21, dtype=np.float32)
    made = resampled(np.where(values == 1, np.inf, values + 2)[:, None], "hw", (1, new), "area")
    for pixel, row in enumerate(made[:, 0]):
        covers = [any(old == pixel for old, _ in parts) for parts in _overlaps(21, new)]
        np.testing.assert_array_equal(np.isposinf(row), covers)
        np.testing.assert_allclose(row[~np.array(covers)], 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize:10,pixel", "No leaf is called 'pixel'"),
        ("resize:10,mission", "'mission' is text"),
        ("resize:10,action", "does not look like an image"),
        ("resize:10,observation.label", r"\(int64 \[21, 17\]\) has a type that cannot be"),
        ("resize:10,observation.mask,mode=area", "has a type that cannot be interpolated"),
    ],
)
def test_leaves_that_cannot_be_resized(text: str, message: str) -> None:
    labels = {"observation.label": noise(21, 17, dtype="int64")}
    masks = {"observation.mask": noise(21, 17) > 100}
    piece = with_leaves(with_images(noise(21, 17, 3)), observations={**labels, **masks})
    with pytest.raises(StepError, match=message):
        parse_step(text).apply(piece)


def test_torch_is_imported_only_where_it_is_used() -> None:
    code = """
import sys, numpy as np
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
piece = with_leaves(toy_piece([1]), observations={"eye": np.ones((2, 9, 9), np.uint8)})
for mode in ("area", "nearest", "bilinear"):
    parse_step(f"resize:5,mode={mode}").apply(piece)
    print("torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False", "True"]
