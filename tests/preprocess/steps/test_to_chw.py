from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import images as blocks
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.images import ToChw
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract

PIXELS = ("observation", "pixels")


def with_pixels(*shape: int, dtype: str = "uint8", lengths: tuple[int, ...] = (2, 1)) -> Piece:
    """Give episodes with images in which no two values of 255 are alike."""
    rows = sum(lengths) + len(lengths)
    values = np.arange(rows * np.prod(shape)).reshape(rows, *shape) % 255 + 1
    return with_leaves(
        toy_piece(lengths), observations={"observation.pixels": values.astype(dtype)}
    )


class TestContract(StepContract):
    @pytest.fixture(params=["to_chw", "to_chw:observation.pixels,scale=true,format=hwc"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)

    @pytest.fixture
    def piece(self) -> Piece:
        return with_pixels(8, 9, 3, lengths=(3, 1, 4, 2))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("stack", [(), (2,), (4, 2)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_channels_come_first(scale: bool, stack: tuple[int, ...], channels: int) -> None:
    piece = with_pixels(*stack, 8, 9, channels)
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
def test_types_and_nan_stay(dtype: str) -> None:
    piece = with_pixels(8, 9, 3, dtype=dtype)
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
    piece = with_pixels(3, 8, 9)
    given = piece.batch.observations[PIXELS]
    assert ToChw().apply(piece).batch.observations[PIXELS] is given
    scaled = ToChw(scale=True).apply(piece).batch.observations[PIXELS]
    np.testing.assert_array_equal(scaled, given.astype(np.float32) / np.float32(255))


def test_images_without_channels_get_one() -> None:
    plain, stacked = with_pixels(8, 9), with_pixels(4, 8, 9)
    made = ToChw().apply(plain).batch.observations[PIXELS]
    np.testing.assert_array_equal(made, plain.batch.observations[PIXELS].reshape(5, 1, 8, 9))
    made = ToChw(format="hw").apply(stacked).batch.observations[PIXELS]
    np.testing.assert_array_equal(made, stacked.batch.observations[PIXELS].reshape(5, 4, 1, 8, 9))


@pytest.mark.parametrize("shape", [(4, 8, 9), (5, 8, 9), (9, 10, 11)])
def test_an_unclear_order_is_asked_for(shape: tuple[int, ...]) -> None:
    piece = with_pixels(*shape)
    with pytest.raises(StepError, match=r"may be .*chw or hw") as error:
        ToChw().apply(piece)
    assert error.value.hint == "say which with format=…, or name other leaves"
    assert ToChw(format="chw").apply(piece).batch.observations[PIXELS].shape == (5, *shape)


def test_only_bytes_have_a_known_range() -> None:
    with pytest.raises(StepError, match=r"'observation/pixels' \(float32 .* is not uint8") as e:
        ToChw(scale=True).apply(with_pixels(8, 9, 3, dtype="float32"))
    assert e.value.hint == "name the leaves that are uint8"


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = with_pixels(8, 9, 3, lengths=(5, 2))
    whole = ToChw(scale=True).apply(piece).batch.observations[PIXELS]
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    np.testing.assert_array_equal(ToChw(scale=True).apply(piece).batch.observations[PIXELS], whole)


def test_memory_is_bounded() -> None:
    """Beside the 54 MB that come in and what goes out, some MiB."""
    values = np.full((2000, 100, 90, 3), 51, np.uint8)
    piece = with_leaves(toy_piece([1999]), observations={"observation.pixels": values})
    tracemalloc.start()
    try:
        made = ToChw(scale=True).apply(piece).batch.observations[PIXELS]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.min() == made.max() == np.float32(0.2)
    assert peak - made.nbytes < 12 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("to_chw:scale=1", "has scale=1; expected true or false"),
        ("to_chw:scale=yes", "has scale=yes"),
        ("to_chw:format=whc", "has format=whc; expected hwc, chw, hw"),
        ("to_chw:scaled=true", "has no 'scaled'; did you mean 'scale'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_step(text)
    assert error.value.hint == f"for example --step {ToChw.example}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("to_chw:pixel", "No leaf is called 'pixel'"),
        ("to_chw:mission", "'mission' is text"),
        ("to_chw:action", "does not look like an image"),
        ("to_chw:info", "does not look like an image"),
    ],
)
def test_leaves_that_are_no_images(text: str, message: str) -> None:
    with pytest.raises(StepError, match=message):
        parse_step(text).apply(with_pixels(8, 9, 3))
