from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Clip
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import assert_same_piece, toy_piece, with_leaves
from offline_data.testing.steps import StepContract

POSITION, CODE = ("observation", "position"), ("info", "code")


class TestContract(StepContract):
    @pytest.fixture(
        params=["clip:action,high=2", "clip:obs,reward,low=-1,high=1001.5", "clip:info,low=7.5"]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def held(values: Any, low: float | None, high: float | None) -> list[float]:
    """Clip numbers one by one, infinities and NaN among them."""
    found = []
    for value in np.asarray(values, np.float64).ravel().tolist():
        one = value
        if low is not None and one < low:
            one = low
        if high is not None and one > high:
            one = high
        found.append(one)
    return found


@pytest.mark.parametrize(("low", "high"), [(2.0, None), (None, 1000.5), (-1000.5, 2.25)])
def test_values_are_held(low: float | None, high: float | None) -> None:
    piece = toy_piece([3, 1])
    found = Clip(("action", "observation.position"), low, high).apply(piece)
    for key in (("action",), POSITION):
        table = "steps" if key == ("action",) else "observations"
        old, new = getattr(piece.batch, table)[key], getattr(found.batch, table)[key]
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        assert new.ravel().tolist() == held(old, low, high)
        assert new.ravel().tolist() != old.ravel().tolist()
    others = Clip(("action", "observation.position"), -1e9, 1e9).apply(found)
    assert_same_piece(others, found)
    assert found.batch.observations[CODE] is piece.batch.observations[CODE]


def test_nan_stays_and_infinities_become_a_bound() -> None:
    values = np.array([math.nan, math.inf, -math.inf, 0.5, -7.0])
    piece = with_leaves(toy_piece([5]), steps={"x": values})
    found = Clip(("x",), -2, 3).apply(piece).batch.steps["x",].tolist()
    assert math.isnan(found[0])
    assert found[1:] == [3, -2, 0.5, -2]
    found = Clip(("x",), low=-2).apply(piece).batch.steps["x",].tolist()
    assert found[1:] == [math.inf, -2, 0.5, -2]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
@pytest.mark.parametrize(
    ("low", "high"),
    [(-1.5, 2.5), (2.5, None), (None, 2.5), (0, 100), (-1000, 1000), (-1e30, 3), (2, 1e30)],
)
def test_integers_stay_integers(dtype: str, low: float | None, high: float | None) -> None:
    info = np.iinfo(dtype)
    values = [info.min, info.min + 1, 1, 2, 3, 4, info.max // 2, info.max - 1, info.max]
    piece = with_leaves(toy_piece([9]), steps={"x": np.array(values, dtype)})
    found = Clip(("x",), low, high).apply(piece).batch.steps["x",]
    expected = []
    for value in values:
        one = value
        if low is not None:
            one = max(one, math.ceil(low))
        if high is not None:
            one = min(one, math.floor(high))
        expected.append(one)
    assert found.dtype == dtype
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_point_types_stay(dtype: str) -> None:
    values = np.array([-math.inf, -3, 0.1, 3, math.inf, 1000], dtype)
    piece = with_leaves(toy_piece([6]), steps={"x": values})
    found = Clip(("x",), -0.3, 0.7).apply(piece).batch.steps["x",]
    low, high, kept = (np.array(x, dtype).item() for x in (-0.3, 0.7, 0.1))
    assert found.dtype == dtype
    assert found.tolist() == [low, low, kept, high, high, high]
    top = float(np.finfo(dtype).max)
    found = Clip(("x",), -1e308, 1e308).apply(piece).batch.steps["x",]
    assert found.tolist() == [max(-1e308, -top), -3, kept, 3, min(1e308, top), 1000]


def test_bounds_beyond_every_finite_number_of_the_type() -> None:
    values = np.array([-math.inf, -3, 0.1, math.inf], np.float32)
    piece = with_leaves(toy_piece([4]), steps={"x": values})
    top = float(np.finfo(np.float32).max)
    found = Clip(("x",), low=1e300).apply(piece).batch.steps["x",]
    assert found.tolist() == [top, top, top, math.inf]
    found = Clip(("x",), high=-1e300).apply(piece).batch.steps["x",]
    assert found.tolist() == [-math.inf, -top, -top, -top]


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int64", 0.2, 0.8), ("uint8", 256, None), ("uint8", None, -0.5)]
)
def test_no_such_integer(dtype: str, low: float | None, high: float | None) -> None:
    piece = with_leaves(toy_piece([2]), steps={"x": np.array([1, 2], dtype)})
    with pytest.raises(StepError, match=f"'x' is {dtype}, and no such number is between"):
        Clip(("x",), low, high).apply(piece)


@pytest.mark.parametrize(("name", "kind"), [("mission", "text"), ("terminated", "bool")])
def test_what_is_no_real_number(name: str, kind: str) -> None:
    with pytest.raises(StepError, match=f"'{name}' means no leaf of numbers.* is {kind}"):
        parse_step(f"clip:action,{name},low=0").apply(toy_piece([2]))
    piece = with_leaves(toy_piece([2]), steps={"x": np.array([1j, 2j])})
    with pytest.raises(StepError, match="x is complex128"):
        Clip(("x",), 0).apply(piece)


def test_below_a_beginning_text_and_flags_stay() -> None:
    piece = toy_piece([2])
    found = Clip(("next", "observation"), high=0.2).apply(piece).batch
    assert found.steps["next", "reward"].tolist() == [[0.125], [np.float32(0.2).item()]]
    assert found.steps["next", "terminated"] is piece.batch.steps["next", "terminated"]


def test_a_leaf_that_is_not_there() -> None:
    with pytest.raises(StepError) as caught:
        parse_step("clip:actoin,low=0").apply(toy_piece([1]))
    assert caught.value.hint == "did you mean 'action'?"


@pytest.mark.parametrize(
    "text", ["action", "action,low=2,high=1", "action,low=x", "low=1", "action,low=1e999"]
)
def test_arguments_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="Step 'clip' ") as caught:
        parse_step(f"clip:{text}")
    assert caught.value.hint == "for example --step clip:action,low=-1,high=1"


@pytest.mark.parametrize("bound", [math.nan, math.inf, True, "1"])
def test_bounds_are_finite_numbers(bound: Any) -> None:
    with pytest.raises(UsageError, match=r"has high=.*; expected a finite number"):
        Clip(("action",), high=bound)
