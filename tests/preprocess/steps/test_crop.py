from __future__ import annotations

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.images import Crop
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract

PIXELS = ("observation", "pixels")


def with_pixels(*shape: int, dtype: str = "uint16", lengths: tuple[int, ...] = (2, 1)) -> Piece:
    """Give episodes with images in which no two values are alike."""
    rows = sum(lengths) + len(lengths)
    values = np.arange(1, rows * np.prod(shape) + 1).reshape(rows, *shape).astype(dtype)
    return with_leaves(toy_piece(lengths), observations={"observation.pixels": values})


class TestContract(StepContract):
    @pytest.fixture(params=["crop:8", "crop:8,9,observation.pixels,top=1,left=0"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)

    @pytest.fixture
    def piece(self) -> Piece:
        return with_pixels(10, 11, 3, dtype="uint8", lengths=(3, 1, 4, 2))


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


def test_an_unclear_order_is_asked_for() -> None:
    piece = with_pixels(9, 10, 11, dtype="uint8")
    with pytest.raises(StepError, match="may be hwc or chw or hw"):
        Crop(8).apply(piece)
    made = Crop(8, format="chw").apply(piece).batch.observations[PIXELS]
    assert made.shape == (5, 9, 8, 8)


def test_a_height_is_needed() -> None:
    with pytest.raises(UsageError, match="has height=None; expected a whole number, 1 or more"):
        Crop(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop", "needs height"),
        ("crop:width=8", "needs height"),
        ("crop:height=null", "has height=null; expected a whole number"),
        ("crop:0", "has height=0; expected a whole number, 1 or more"),
        ("crop:8,0", "has width=0"),
        ("crop:8,top=-1", "has top=-1; expected a whole number, 0 or more"),
        ("crop:8,left=1.5", r"has left=1\.5"),
        ("crop:8,format=whc", "has format=whc"),
        ("crop:8,size=9", "has no 'size'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_step(text)
    assert error.value.hint == f"for example --step {Crop.example}"
