"""Steps for images beside Pillow, torch and exact fractions, and which leaves they take."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from offline_data.base.errors import StepError
from offline_data.pipeline.preprocess.steps import images as module
from offline_data.pipeline.preprocess.steps.images import (
    MODES,
    Crop,
    Format,
    Grayscale,
    ImageStep,
    formats_of,
    looks_like_images,
    resample,
)
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.chunks import toy_chunk, with_leaves

PIXELS = ("observation", "pixels")


@dataclass(frozen=True)
class Darken(ImageStep):
    """Half the values."""

    name: ClassVar[str] = "darken"

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    format: Format | None = None

    def change(self, values: NDArray[Any], *_: Any) -> NDArray[Any]:
        return np.asarray(values // 2)


def leaf(*shape: int, dtype: str = "uint8", rows: int = 3) -> NDArray[Any]:
    """Make images in which no two values near each other are alike, and none is 0."""
    values = np.arange(rows * int(np.prod(shape))).reshape(rows, *shape) % 251 + 1
    return values.astype(dtype)


def noise(*shape: int, rows: int = 5, dtype: str = "uint8") -> NDArray[Any]:
    """Make noise, the hardest of images: no two neighbours have to do with each other."""
    return np.random.default_rng(3).integers(1, 256, (rows, *shape)).astype(dtype)


def pixels(values: NDArray[Any] | None = None, **observations: NDArray[Any]) -> EpisodeChunk:
    named = observations if values is None else {"pixels": values, **observations}
    rows = len(next(iter(named.values())))
    return with_leaves(
        toy_chunk([rows - 1]), observations={f"observation.{k}": v for k, v in named.items()}
    )


def made(text: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the images that a step makes of these."""
    step = parse_step(f"{text}{',' if ':' in text else ':'}observation.pixels")
    return np.asarray(step.apply(pixels(values)).batch.observations[PIXELS])


def found(chunk: EpisodeChunk, step: ImageStep) -> dict[str, Format]:
    return {key[-1]: form for key, form in step.images(chunk).items()}


@pytest.mark.parametrize(
    ("shape", "formats"),
    [
        ((8, 8), ("hw",)),
        ((84, 84, 3), ("hwc",)),
        ((2, 4, 84, 96, 3), ("hwc",)),
        ((4, 3, 84, 84), ("chw",)),
        ((4, 84, 84), ("chw", "hw")),
        ((9, 84, 84), ("hwc", "chw", "hw")),
        ((7, 7, 3), ()),
        ((84, 84, 0), ()),
        ((), ()),
    ],
)
def test_formats_a_shape_may_have(shape: tuple[int, ...], formats: tuple[str, ...]) -> None:
    assert formats_of(shape) == formats


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (leaf(8, 9), True),
        (leaf(5, 8, 9), True),
        (leaf(7, 9), False),
        (leaf(8, 9, 3, dtype="float32"), True),
        (leaf(4, 8, 9, dtype="float16"), True),
        (leaf(8, 9, dtype="float32"), False),
        (leaf(8, 9, 2, dtype="float32"), False),
        (leaf(8, 9, 10, dtype="float32"), False),
        (leaf(8, 9, 3, dtype="int32"), False),
    ],
)
def test_columns_that_are_taken_for_images(values: NDArray[Any], expected: bool) -> None:
    assert looks_like_images(values) is expected


def test_without_names_all_images_are_meant() -> None:
    chunk = pixels(
        eye=leaf(8, 9, 3), depth=leaf(8, 9), points=leaf(64, 3, dtype="float32"), small=leaf(5, 5)
    )
    chunk = with_leaves(chunk, steps={"action.picture": leaf(3, 8, 9, rows=2)})
    assert found(chunk, Darken()) == {"eye": "hwc", "depth": "hw", "picture": "chw"}
    assert found(chunk, Darken(format="hwc")) == {"eye": "hwc"}
    assert found(chunk, Grayscale()) == {"eye": "hwc", "picture": "chw"}
    below = Darken(keys=("next.observation",))
    assert found(chunk, below) == {"eye": "hwc", "depth": "hw"}
    more = with_leaves(chunk, observations={"info.more": leaf(2)})
    with pytest.raises(StepError, match=r"finds no image for it among 'info/code' \(int64 \[1\]"):
        Darken(keys=("observation", "info")).images(more)


def test_an_unclear_order_is_asked_for() -> None:
    chunk = pixels(frames=leaf(9, 8, 8))
    for keys in ((), ("observation",), ("observation.frames",)):
        with pytest.raises(StepError, match=r"\(uint8 \[9, 8, 8\]\) may be hwc or chw or hw"):
            Darken(keys=keys).images(chunk)
    for form in module.FORMATS:
        assert found(chunk, Darken(format=form)) == {"frames": form}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("84", Crop(84)),
        ("84, 96, obs.eye, info", Crop(84, 96, keys=("obs.eye", "info"))),
        ("obs.eye,height=84,format=hw", Crop(84, format="hw", keys=("obs.eye",))),
        ("84,obs.eye,width=96", Crop(84, 96, keys=("obs.eye",))),
        ("84,96,keys=obs.eye,info", Crop(84, 96, keys=("obs.eye", "info"))),
        ("84,96,7", Crop(84, 96, keys=("7",))),
    ],
)
def test_sizes_then_leaves_are_read(text: str, expected: Crop) -> None:
    assert Crop.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [
        ("crop:6", range(2, 8), range(2, 8)),
        ("crop:height=5,width=8", range(2, 7), range(1, 9)),
        ("crop:6,4,top=0", range(6), range(3, 7)),
        ("crop:6,4,left=7", range(2, 8), range(7, 11)),
        ("crop:10,11", range(10), range(11)),
    ],
)
@pytest.mark.parametrize("shape", [(10, 11, 3), (3, 10, 11), (4, 10, 11), (2, 10, 11, 3)])
def test_pixels_that_stay(text: str, rows: range, columns: range, shape: tuple[int, ...]) -> None:
    values = leaf(*shape)
    axis = shape.index(10) + 1
    expected = values.take(rows, axis).take(columns, axis + 1)
    np.testing.assert_array_equal(made(text, values), expected, strict=True)
    assert np.shares_memory(made(text, values), values)


def test_gray_bytes_equal_pillows() -> None:
    """On every red and green with some blues."""
    red, green = np.meshgrid(np.arange(256), np.arange(256))
    values = np.stack(
        [np.stack([red, green, np.full_like(red, blue)], -1) for blue in (0, 1, 7, 128, 254, 255)]
    ).astype(np.uint8)
    gray = made("grayscale", values)
    assert gray.shape == (6, 256, 256, 1)
    for frame, one in zip(values, gray[..., 0], strict=True):
        np.testing.assert_array_equal(one, np.asarray(Image.fromarray(frame).convert("L")))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 5e-4), ("float32", 1e-6), ("float64", 1e-14)]
)
def test_gray_floats_keep_their_type_and_what_is_not_finite(dtype: str, tolerance: float) -> None:
    values = noise(8, 9, 3, dtype=dtype) / np.asarray(256, dtype)
    values[1, 2, 3, 1], values[2, 3, 4, 0], values[3, 4, 5] = np.nan, np.inf, (np.inf, -np.inf, 1)
    gray = made("grayscale:channels=0", values)
    assert gray.dtype == dtype
    with np.errstate(invalid="ignore"):
        expected = values.astype(float) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(gray, expected, rtol=tolerance)


@pytest.mark.parametrize("stack", [(), (2,)])
@pytest.mark.parametrize("form", ["hwc", "chw"])
@pytest.mark.parametrize("given", [1, 3, 4])
def test_axes_stay(stack: tuple[int, ...], form: str, given: int) -> None:
    values = noise(*stack, 8, 9, given)
    gray = np.zeros(values.shape[:-1], np.uint8)
    for at in np.ndindex(values.shape[:-3]):
        frame = values[at][..., :3] if given > 1 else values[at][..., 0]
        gray[at] = np.asarray(Image.fromarray(frame).convert("L"))
    axis = -1 if form == "hwc" else -3
    for channels in (0, 1, 3):
        result = made(f"grayscale:channels={channels},format={form}", np.moveaxis(values, -1, axis))
        expected = np.stack([gray] * channels, axis) if channels else gray
        np.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.parametrize("shape", [(8, 9, 1), (8, 9, 4), (4, 2, 8, 9, 3)])
def test_channels_come_first(shape: tuple[int, ...]) -> None:
    values = leaf(*shape)
    expected = np.moveaxis(values, -1, -3)
    np.testing.assert_array_equal(made("to_chw", values), expected, strict=True)
    assert np.shares_memory(made("to_chw", values), values)
    scaled = torch.from_numpy(expected.copy()).to(torch.float32).div(255).numpy()
    np.testing.assert_array_equal(made("to_chw:scale=true", values), scaled, strict=True)


def test_images_that_have_no_axis_to_move() -> None:
    first, plain, stacked = leaf(3, 8, 9), leaf(8, 9), leaf(4, 8, 9)
    assert np.shares_memory(made("to_chw", first), first)
    np.testing.assert_array_equal(made("to_chw", first), first, strict=True)
    np.testing.assert_array_equal(made("to_chw", plain), plain.reshape(3, 1, 8, 9))
    result = made("to_chw:format=hw", stacked)
    np.testing.assert_array_equal(result, stacked.reshape(3, 4, 1, 8, 9))


SIZES = [(10, 9), (30, 8), (5, 41), (40, 50), (1, 1)]
"""From 21 x 17: smaller, one side each, larger, far smaller."""

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", FILTERS)
@pytest.mark.parametrize(
    ("dtype", "most"),
    [("uint8", 2), ("uint16", 0.6), ("float16", 0.2), ("float32", 1e-3), ("float64", 1e-3)],
)
def test_each_plane_is_pillows(mode: str, size: tuple[int, int], dtype: str, most: float) -> None:
    values = noise(3, 21, 17, dtype=dtype)
    if dtype == "uint8" and mode == "bicubic":
        values = values % 75 + 90  # never beyond bytes half-way
    if dtype == "uint16":
        values *= 257  # results are rounded, and not cut off
    result = made(f"resize:{size[0]},{size[1]},mode={mode}", values)
    assert (result.shape, result.dtype.name) == ((5, 3, *size), dtype)
    expected = np.zeros(result.shape)
    for at in np.ndindex(5, 3):
        plane = values[at] if dtype == "uint8" else values[at].astype(np.float32)
        wanted = Image.fromarray(plane).resize((size[1], size[0]), FILTERS[mode])
        expected[at] = np.asarray(wanted)
    if dtype == "uint16":
        expected = expected.clip(0, 65535)
    off = np.abs(result.astype(float) - expected)
    assert off.max() <= most
    assert dtype != "uint8" or np.count_nonzero(off > 1) <= off.size / 1000


def covered(old: int, new: int) -> NDArray[Any]:
    """Return what part of each new pixel lies in each old one, `[new, old]`, by fractions."""
    parts = np.zeros((new, old))
    for i, j in np.ndindex(new, old):
        first, stop = Fraction(i * old, new), Fraction((i + 1) * old, new)
        parts[i, j] = max(0, min(stop, j + 1) - max(first, j)) / (stop - first)
    return parts


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_area_is_the_mean_of_what_is_covered(size: tuple[int, int], dtype: str) -> None:
    values = noise(21, 17, dtype=dtype)
    result = resample(values, "hw", size, "area")
    expected = covered(21, size[0]) @ values.astype(float) @ covered(17, size[1]).T
    assert (result.shape, result.dtype.name) == (expected.shape, dtype)
    if dtype == "uint8":  # halves are rounded up
        expected = np.floor(expected + 0.5 + 1e-9)
    np.testing.assert_allclose(result, expected, atol=1e-4)


@pytest.mark.parametrize("new", [4, 8, 13, 30])
def test_pixels_that_an_area_does_not_cover_have_no_part_in_it(new: int) -> None:
    values = np.eye(21, dtype=np.float32)
    result = resample(np.where(values == 1, np.inf, values + 2)[:, None], "hw", (1, new), "area")
    covers = covered(21, new).T > 0
    np.testing.assert_array_equal(np.isposinf(result[:, 0]), covers)
    np.testing.assert_allclose(result[:, 0][~covers], 2, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32"])
def test_nearest_is_the_pixel_in_the_middle(size: tuple[int, int], dtype: str) -> None:
    values = noise(21, 17).astype(dtype)
    result = made(f"resize:{size[0]},{size[1]},mode=nearest,format=hw", values)
    h, w = (
        [int(Fraction(2 * at + 1, 2 * new) * old) for at in range(new)]
        for new, old in zip(size, (21, 17), strict=True)
    )
    np.testing.assert_array_equal(result, values[:, h][:, :, w], strict=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 5])
def test_each_plane_on_its_own(mode: str, dtype: str, channels: int) -> None:
    """In any order of axes, and stacked, with other planes beside it or not."""
    values = noise(2, 21, 17, channels, dtype=dtype)
    text = f"resize:10,9,mode={mode}"
    planes = np.moveaxis(values, -1, -3)
    alone = np.zeros((5, 2, channels, 10, 9), dtype)
    for s, c in np.ndindex(2, channels):
        alone[:, s, c] = made(f"{text},format=hw", planes[:, s, c])
    result = made(f"{text},format=hwc", values)
    np.testing.assert_array_equal(result, np.moveaxis(alone, -3, -1), strict=True)
    for form in ("chw", "hw"):
        np.testing.assert_array_equal(made(f"{text},format={form}", planes), alone, strict=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(21, 17, 3), (3, 21, 17)])
def test_blocks_do_not_matter(
    mode: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = noise(*shape)
    texts = (f"resize:10,9,mode={mode}", "grayscale", "to_chw:scale=true")
    whole = [made(text, values) for text in texts]
    for size in (1, 100_000):  # one row, some rows
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        for text, expected in zip(texts, whole, strict=True):
            np.testing.assert_array_equal(made(text, values), expected)


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_stay_near(mode: str) -> None:
    """They reach the new pixels they have a part in, and no others."""
    values = noise(24, 24, dtype="float32")
    values[1, 2, 3], values[2, 20, 21], values[3, 10, 10:12] = np.nan, np.inf, (np.inf, -np.inf)
    text = f"resize:12,mode={mode},format=hw"
    result = made(text, values)
    clean = made(text, np.where(np.isfinite(values), values, np.float32(5)))
    for n, h, w in ((1, 1, 1), (2, 10, 10), (3, 5, 5)):
        near = np.zeros((12, 12), bool)
        near[max(h - 2, 0) : h + 3, max(w - 2, 0) : w + 3] = True
        np.testing.assert_array_equal(result[n][~near], clean[n][~near])
    np.testing.assert_array_equal(result[[0, 4]], clean[[0, 4]])
    if mode != "nearest":
        assert np.isnan(result[1, 1, 1])
        assert not np.isfinite(result[2, 10, 10])
        assert np.isnan(result[3, 5, 5])
    same = made(f"resize:24,mode={mode},format=hw", values)
    assert np.shares_memory(same, values)


@pytest.mark.slow  # by default, that a recipe without images imports none
def test_torch_is_not_imported_where_it_is_not_used() -> None:
    code = """
import sys, numpy as np
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.testing.chunks import toy_chunk, with_leaves
chunk = with_leaves(toy_chunk([1]), observations={"eye": np.ones((2, 9, 9), np.uint8)})
for mode in ("area", "nearest"):
    parse_step(f"resize:5,mode={mode}").apply(chunk)
print("torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
