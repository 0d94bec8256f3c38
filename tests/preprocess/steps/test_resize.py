from __future__ import annotations

import subprocess
import sys
import tracemalloc
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import images as blocks
from offline_data.preprocess.steps import resize
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.registry import parse_step
from offline_data.preprocess.steps.resize import MODES, Resize, resampled
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract

PIXELS = ("observation", "pixels")
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
SIZES = [(10, 9), (30, 8), (5, 41), (40, 50), (1, 1), (21, 17)]
"""From 21 x 17: smaller, larger, one side each, far larger, far smaller, the same."""


def pixels(*shape: int, rows: int = 5, dtype: str = "uint8") -> NDArray[Any]:
    """Give noise, the hardest of images: no two neighbours have to do with each other."""
    return np.random.default_rng(3).integers(1, 256, (rows, *shape)).astype(dtype)


def with_pixels(values: NDArray[Any], lengths: tuple[int, ...] = (2, 1)) -> Piece:
    return with_leaves(toy_piece(lengths), observations={"observation.pixels": values})


def resized(values: NDArray[Any], text: str) -> NDArray[Any]:
    result = parse_step(f"{text},observation.pixels").apply(with_pixels(values))
    return np.asarray(result.batch.observations[PIXELS])


class TestContract(StepContract):
    @pytest.fixture(
        params=[f"resize:10,9,mode={mode}" for mode in MODES]
        + ["resize:30,observation.pixels,format=hwc"]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)

    @pytest.fixture(params=["uint8", "float32"])
    def piece(self, request: pytest.FixtureRequest) -> Piece:
        values = pixels(21, 17, 3, rows=14, dtype=request.param)
        piece = with_pixels(values, (3, 1, 4, 2))
        return with_leaves(piece, observations={"observation.map": pixels(9, 8, rows=14)})


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
        values = pixels(3, 21, 17, dtype=dtype)
        made = resized(values, f"resize:{size[0]},{size[1]},mode={mode}")
        assert made.shape == (5, 3, *size)
        assert made.dtype == dtype
        for at in np.ndindex(5, 3):
            expected = _pillow(values[at].astype(np.float32), size, mode)
            np.testing.assert_allclose(made[at], expected, atol=0.2 if dtype == "float16" else 1e-3)

    def test_integers_of_16_bits(self, mode: str, size: tuple[int, int]) -> None:
        values = (pixels(21, 17).astype(np.uint16) * 257)[..., None]
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
    values = pixels(21, 17, rows=2, dtype=dtype)
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


def test_area_of_whole_pixels_equals_pillows() -> None:
    values = pixels(24, 40, 3)
    made = resized(values, "resize:8,10,mode=area")
    for frame, new in zip(values, made, strict=True):
        expected = np.asarray(Image.fromarray(frame).resize((10, 8), Image.Resampling.BOX))
        assert np.abs(new - expected.astype(int)).max() <= 1


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
    values = pixels(2, 21, 17, channels, dtype=dtype)
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
    values = pixels(*shape, dtype=dtype)
    text = f"resize:10,9,mode={mode},format={form}"
    whole = resized(values, text)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    np.testing.assert_array_equal(resized(values, text), whole)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(100, 90, 3), (3, 100, 90), (100, 90)])
def test_memory_is_bounded(
    mode: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 54 or 18 MB that come in, some MiB, in numpy and in torch."""
    given: list[int] = []
    interpolated = resize._interpolated

    def counted(frames: Any, *rest: Any) -> Any:
        given.append(frames.nbytes)
        return interpolated(frames, *rest)

    monkeypatch.setattr(resize, "_interpolated", counted)
    values = np.full((2000, *shape), 7, np.uint8)
    piece = with_leaves(toy_piece([1999]), observations={"observation.pixels": values})
    step = parse_step(f"resize:40,mode={mode}")
    tracemalloc.start()
    try:
        made = step.apply(piece).batch.observations[PIXELS]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.min() == made.max() == 7
    assert peak - made.nbytes < 12 << 20
    assert sum(given) >= values.nbytes * (mode in FILTERS)
    assert max(given, default=0) < 4 << 20


def test_images_of_the_size_stay_as_they_are() -> None:
    values = pixels(21, 17, 3, dtype="float32")
    values[0, 3, 4] = np.nan
    for mode in MODES:
        made = Resize(21, 17, mode=mode).apply(with_pixels(values))
        assert made.batch.observations[PIXELS] is values


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_stay_near(mode: str) -> None:
    """They reach the new pixels they have a part in, and no others."""
    values = pixels(24, 24, dtype="float32")
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


def test_four_channels_or_four_frames_are_the_same() -> None:
    values = pixels(4, 21, 17)
    made = Resize(10).apply(with_pixels(values)).batch.observations[PIXELS]
    np.testing.assert_array_equal(made, resized(values, "resize:10,format=chw"))
    with pytest.raises(StepError, match="may be hwc or chw or hw"):
        resized(pixels(12, 21, 17), "resize:10")
    assert resized(pixels(12, 21, 17), "resize:10,format=hw").shape == (5, 12, 10, 10)


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
    labels = {"observation.label": pixels(21, 17, dtype="int64")}
    masks = {"observation.mask": pixels(21, 17) > 100}
    piece = with_leaves(with_pixels(pixels(21, 17, 3)), observations={**labels, **masks})
    with pytest.raises(StepError, match=message):
        parse_step(text).apply(piece)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resize:84", Resize(84)),
        ("resize:84,96,observation.pixels", Resize(84, 96, ("observation.pixels",))),
        ("resize:84,obs,info,mode=area", Resize(84, None, ("obs", "info"), "area")),
        ("resize:height=84,width=96,obs,format=chw", Resize(84, 96, ("obs",), format="chw")),
    ],
)
def test_what_is_read(text: str, expected: Resize) -> None:
    assert parse_step(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize", "needs height"),
        ("resize:observation", "needs height"),
        ("resize:height=null", "has height=null; expected a whole number"),
        ("resize:0", "has height=0; expected a whole number, 1 or more"),
        ("resize:8,width=0.5", r"has width=0\.5"),
        ("resize:8,mode=lanczos", "has mode=lanczos; expected bilinear, bicubic, area, nearest"),
        ("resize:8,format=whc", "has format=whc; expected hwc, chw, hw"),
        ("resize:8,modus=area", "has no 'modus'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_step(text)
    assert error.value.hint == f"for example --step {Resize.example}"


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
