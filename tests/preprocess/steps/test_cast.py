from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps import columns
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import DTYPES, Cast
from offline_data.preprocess.steps.registry import parse_step
from offline_data.store.tables import STORABLE
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)


class TestContract(StepContract):
    @pytest.fixture(
        params=[
            "cast:obs=float32",
            "cast:info=int32,action=float64,reward=float16",
            "cast:terminated=bool,obs.position=complex64",
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def single(values: list[float]) -> list[float]:
    """Round numbers to single precision, the way C does."""
    return [struct.unpack("f", struct.pack("f", value))[0] for value in values]


def test_types_are_those_a_leaf_can_be_stored_as() -> None:
    assert sorted(DTYPES) == sorted(dtype.name for dtype in STORABLE)


def test_values_are_rounded_to_the_nearest() -> None:
    piece = toy_piece([2, 1])
    fine: Any = piece.batch.observations[POSITION]
    fine = fine / 3
    piece = with_leaves(piece, observations={"observation.position": fine})
    found = parse_step("cast:obs=float32").apply(piece).batch
    assert found.observations[POSITION].dtype == np.float32
    assert found.observations[POSITION].ravel().tolist() == single(fine.ravel().tolist())
    assert found.observations[POSITION].ravel().tolist() != fine.ravel().tolist()
    assert found.observations[VELOCITY] is piece.batch.observations[VELOCITY]
    assert found.observations[CODE] is piece.batch.observations[CODE]


def test_several_pairs_the_later_one_holds() -> None:
    piece = toy_piece([3])
    found = parse_step("cast:observation=float32,obs.position=float16,info=uint16").apply(piece)
    types = {key: column.dtype.name for key, column in found.batch.observations.items()}
    assert types == {POSITION: "float16", VELOCITY: "float32", CODE: "uint16"}
    assert found.batch.observations[CODE].tolist() == [[7], [14], [21], [28]]
    found = parse_step("cast:obs.position=float16,observation=float32").apply(piece)
    assert found.batch.observations[POSITION].dtype == np.float32


def test_below_a_beginning_text_stays_and_bools_do_not() -> None:
    piece = with_leaves(
        toy_piece([2]),
        observations={
            "observation.text": np.array([1, 0, 1], np.int32),
            "observation.alive": np.array([True, False, True]),
        },
        words={"observation.text": ["a", "b"]},
    )
    found = parse_step("cast:obs=float32").apply(piece)
    assert found.batch.observations["observation", "text"].dtype == np.int32
    assert found.words == piece.words
    assert found.batch.observations["observation", "alive"].tolist() == [1.0, 0.0, 1.0]


NUMBERS = [
    *(0, 1, 2, -1, 127, 128, 255, 256, -128, -129, 32767, 32768, 65504, 65520, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**62),
    *(2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 2048, 1e30, -1e30, 1e39, -1e300),
    *(0.5, -0.5, 1e-7, 1e-300, 255.5, math.nan, math.inf, -math.inf, -0.0, 3.25),
]


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Say whether one Python number can be of a type, by the rule of the docstring."""
    if dtype.kind in "fc":
        if not math.isfinite(value):
            return True
        top = float(np.finfo(dtype).max)
        # What is less than half a step beyond the greatest number is rounded to it.
        step = top - float(np.nextafter(np.finfo(dtype).max, np.finfo(dtype).dtype.type(0)))
        return bool(abs(value) - top < step / 2)
    if not math.isfinite(value) or value != int(value):
        return False
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= int(value) <= high)


def of_type(value: Any, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Return one number as an array of a type, where it can be that and is no other then."""
    if dtype.kind in "iub":
        return np.array([int(value)], dtype) if fits(value, dtype) else None
    with np.errstate(over="ignore"):
        return np.array([value], dtype)


@pytest.mark.parametrize("source", ["bool", "uint8", "int64", "uint64", "float16", "float32"])
@pytest.mark.parametrize("target", DTYPES)
def test_every_type_to_every_other(source: str, target: str) -> None:
    check_each(source, target)


@pytest.mark.parametrize("target", DTYPES)
def test_doubles_to_every_type(target: str) -> None:
    check_each("float64", target)
    check_each("int8", target)
    check_each("uint32", target)


def check_each(source: str, target: str) -> None:
    piece = toy_piece([1])
    for number in NUMBERS:
        values = of_type(number, np.dtype(source))
        if values is None:
            continue
        value = values[0].item()
        piece = with_leaves(piece, steps={"x": values})
        step = Cast((("x", target),))
        if fits(value, np.dtype(target)):
            found = step.apply(piece).batch.steps["x",]
            assert found.dtype == target
            if np.dtype(target).kind in "iub":
                assert found.item() == value
            else:
                back = found.item().real
                assert math.isnan(back) if math.isnan(value) else close(back, value, target)
        else:
            with pytest.raises(StepError, match="cannot hold"):
                step.apply(piece)


def close(found: float, value: float, target: str) -> bool:
    """Say whether no number of the type is nearer."""
    if math.isinf(value):
        return found == value
    info = np.finfo(target)
    room = max(abs(value) * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
    return abs(found - value) <= room


@pytest.mark.parametrize(
    ("values", "target"),
    [([1 + 0j, 2.5 + 0j], "float32"), ([1 + 0j, 7 + 0j], "uint8"), ([2 - 0j, math.nan], "float64")],
)
def test_complex_numbers_that_are_real(values: list[complex], target: str) -> None:
    piece = with_leaves(toy_piece([2]), steps={"x": np.array(values, np.complex128)})
    found = Cast((("x", target),)).apply(piece).batch.steps["x",]
    assert found.dtype == target
    np.testing.assert_array_equal(found, [complex(value).real for value in values])


@pytest.mark.parametrize(
    ("value", "target"), [(1 + 1j, "float64"), (0.5 + 0j, "int8"), (1e300 + 0j, "complex64")]
)
def test_complex_numbers_that_would_change(value: complex, target: str) -> None:
    piece = with_leaves(toy_piece([2]), steps={"x": np.array([1, value], np.complex128)})
    with pytest.raises(StepError, match=f"row 1 .*which {target} cannot hold"):
        Cast((("x", target),)).apply(piece)


def test_the_first_value_that_would_change_is_named() -> None:
    piece = toy_piece([3, 2], first_episode=1)
    with pytest.raises(StepError) as caught:
        parse_step("cast:action=int16").apply(piece)
    assert caught.value.message == (
        "Step 'cast': 'action' is 500.5 in row 3 (episode 1, step 0), which int16 cannot hold"
    )
    with pytest.raises(StepError) as caught:
        parse_step("cast:info=int16,obs.position=float16").apply(toy_piece([2] * 10))
    assert "'info/code' is 35007 in row 10 (episode 5, step 0)" in caught.value.message
    position = piece.batch.observations[POSITION].copy()
    position[3, 1] = math.nan
    piece = with_leaves(piece, observations={"observation.position": position})
    with pytest.raises(StepError) as caught:
        parse_step("cast:obs.position=int64").apply(piece)
    place = "in the observation after row 5 (episode 1, step 2)"
    assert f"'observation/position' is nan {place}, which int64" in caught.value.message


def test_large_leaves_are_looked_at_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES", 64)
    values = np.arange(1, 201, dtype=np.float64).reshape(50, 4)
    piece = with_leaves(toy_piece([50]), steps={"x": values})
    step = Cast((("x", "int16"),))
    assert step.apply(piece).batch.steps["x",].tolist() == values.tolist()
    for row in range(50):
        changed = values.copy()
        changed[row, row % 4] += 0.5
        with pytest.raises(StepError, match=rf"in row {row} \(episode 0, step {row}\)"):
            step.apply(with_leaves(piece, steps={"x": changed}))


def test_rows_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES", 8)
    found = parse_step("cast:obs.position=int32").apply(toy_piece([2])).batch
    assert found.observations[POSITION].tolist() == [[1, -1], [2, -2], [3, -3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("terminated=uint8", "'next/terminated' uint8; it must be bool"),
        ("next=float32", "'next/terminated' float32; it must be bool"),
        ("truncated=float32", "'next/truncated' float32; it must be bool"),
        ("reward=complex64", "'next/reward' complex64; it must be real numbers"),
        ("reward=bool", "'next/reward' bool; it must be real numbers"),
        ("mission=int64", "'mission' means no leaf of numbers that this can be done on"),
    ],
)
def test_what_must_stay(text: str, message: str) -> None:
    with pytest.raises(StepError) as caught:
        parse_step(f"cast:{text}").apply(toy_piece([2]))
    assert message in caught.value.message


def test_a_leaf_that_is_not_there() -> None:
    with pytest.raises(StepError) as caught:
        parse_step("cast:infos=int64").apply(toy_piece([1]))
    assert "No leaf is called 'infos'" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a pair"),
        ("observation", "takes pairs"),
        ("observation=float23", "knows no type 'float23'; did you mean 'float32'?"),
        ("observation=half", "knows no type 'half'; there are bool, uint8"),
        ("observation=object", "knows no type 'object'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_step(f"cast:{text}")
    assert message in caught.value.message
    assert caught.value.hint == "for example --step cast:observation=float32"


def test_no_types() -> None:
    with pytest.raises(UsageError, match="needs a pair"):
        Cast(())
