"""Steps that change whole columns: every value, type and name they give."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.columns import (
    DTYPES,
    Cast,
    Clip,
    Exclude,
    Flatten,
    Select,
)
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import as_stored, assert_same_piece, toy_piece, with_leaves

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)


def single(values: list[float]) -> list[float]:
    """Round numbers to single precision, the way C does."""
    return [struct.unpack("f", struct.pack("f", value))[0] for value in values]


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


POSITION_CLIP, CODE_CLIP = ("observation", "position"), ("info", "code")


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
    for key in (("action",), POSITION_CLIP):
        table = "steps" if key == ("action",) else "observations"
        old, new = getattr(piece.batch, table)[key], getattr(found.batch, table)[key]
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        assert new.ravel().tolist() == held(old, low, high)
        assert new.ravel().tolist() != old.ravel().tolist()
    others = Clip(("action", "observation.position"), -1e9, 1e9).apply(found)
    assert_same_piece(others, found)
    assert found.batch.observations[CODE_CLIP] is piece.batch.observations[CODE_CLIP]


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


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int64", 0.2, 0.8), ("uint8", 256, None), ("uint8", None, -0.5)]
)
def test_no_such_integer(dtype: str, low: float | None, high: float | None) -> None:
    piece = with_leaves(toy_piece([2]), steps={"x": np.array([1, 2], dtype)})
    with pytest.raises(StepError, match=f"'x' is {dtype}, and no such number is between"):
        Clip(("x",), low, high).apply(piece)


def test_below_a_beginning_text_and_flags_stay() -> None:
    piece = toy_piece([2])
    found = Clip(("next", "observation"), high=0.2).apply(piece).batch
    assert found.steps["next", "reward"].tolist() == [[0.125], [np.float32(0.2).item()]]
    assert found.steps["next", "terminated"] is piece.batch.steps["next", "terminated"]


def numbers(row: Any) -> list[float]:
    """List the numbers of a row of one axis or none."""
    return [float(one) for one in np.atleast_1d(row)]


@pytest.mark.parametrize("arrow", ["→", "->", " → "])
@pytest.mark.parametrize("stored", [False, True])
def test_rows_are_joined_in_the_order_as_written(arrow: str, stored: bool) -> None:
    piece = as_stored(toy_piece([2, 1])) if stored else toy_piece([2, 1])
    old = piece.batch.observations
    for order in itertools.permutations([POSITION, VELOCITY, CODE]):
        text = ",".join(".".join(key) for key in order) + arrow + "state.all"
        found = parse_step(f"concat:{text}").apply(piece)
        assert list(found.batch.observations) == [("state", "all")]
        joined = found.batch.observations["state", "all"]
        assert joined.dtype == np.float64
        expected = [[n for key in order for n in numbers(old[key][r])] for r in range(5)]
        assert joined.tolist() == expected
        assert found.batch.steps == piece.batch.steps
        assert found.words == piece.words


def test_the_target_may_be_the_beginning_of_the_sources() -> None:
    piece = toy_piece([2])
    found = parse_step("concat:obs.position,obs.velocity→observation").apply(piece).batch
    assert set(found.observations) == {("observation",), CODE}
    assert found.observations["observation",].tolist() == [[i, -i, i + 0.5] for i in (1, 2, 3)]
    found = parse_step("concat:observation→observation").apply(piece).batch
    assert found.observations["observation",].tolist() == [[i, -i, i + 0.5] for i in (1, 2, 3)]
    found = parse_step("concat:info.code→info").apply(piece).batch
    assert found.observations["info",].tolist() == [[7], [14], [21]]


def test_step_leaves_of_one_side() -> None:
    arm, hand = np.array([[1.5, 2.5]], np.float32), np.array([9], np.float32)
    piece = toy_piece([1])
    steps = {key: column for key, column in piece.batch.steps.items() if key != ("action",)}
    piece = piece.having(steps={**steps, ("action", "arm"): arm, ("action", "hand"): hand})
    found = parse_step("concat:action.hand,action.arm→action").apply(piece).batch
    assert found.steps["action",].tolist() == [[9, 1.5, 2.5]]
    assert not {("action", "arm"), ("action", "hand")} & set(found.steps)
    piece = with_leaves(piece, steps={"next.cost": np.array([[5.5]])})
    found = parse_step("concat:next.cost,reward→next.both,keep=true").apply(piece).batch
    assert found.steps["next", "both"].tolist() == [[5.5, 0.125]]
    assert found.steps["next", "reward"].tolist() == [[0.125]]


def test_only_the_last_axis_may_differ() -> None:
    left, right = np.arange(24.0).reshape(2, 3, 4) + 1, np.arange(12.0).reshape(2, 3, 2) + 100
    piece = with_leaves(
        toy_piece([2]),
        steps={"a": left, "b": right, "c": left[:, :2], "d": left[:, 0], "e": left[:, 0, 0]},
    )
    found = parse_step("concat:a,b→ab").apply(piece).batch.steps["ab",]
    rows = [
        [[*a.tolist(), *b.tolist()] for a, b in zip(*two, strict=True)]
        for two in zip(left, right, strict=True)
    ]
    assert found.tolist() == rows
    for other, shape in (("c", [2, 4]), ("d", [4]), ("e", [])):
        with pytest.raises(StepError) as caught:
            parse_step(f"concat:a,{other}→x").apply(piece)
        told = f"cannot join rows of these shapes: a [3, 4], {other} {shape}"
        assert told in caught.value.message
    assert parse_step("concat:d,e→x").apply(piece).batch.steps["x",].shape == (2, 5)


TYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def typed_steps(piece: Piece, **types: str) -> Piece:
    count = piece.batch.transitions
    steps = {name: np.arange(count).astype(dtype) for name, dtype in types.items()}
    return with_leaves(piece, steps=steps)


@pytest.mark.parametrize("left", TYPES)
def test_types_are_joined_as_torch_does(left: str) -> None:
    for right in TYPES:
        piece = typed_steps(toy_piece([3]), a=left, b=right)
        found = parse_step("concat:a,b→x").apply(piece).batch.steps["x",]
        parts = [torch.from_numpy(piece.batch.steps[key,])[:, None] for key in ("a", "b")]
        expected = torch.cat(parts, -1)
        assert found.dtype == expected.numpy().dtype, (left, right)
        assert found.tolist() == expected.tolist()


def test_no_integer_type_for_both() -> None:
    piece = typed_steps(toy_piece([3]), a="int64", b="uint64", c="float32")
    with pytest.raises(StepError, match="no integer type for all of a int64, b uint64") as caught:
        parse_step("concat:a,b→x").apply(piece)
    assert caught.value.hint == "cast them first: --step cast:a=float64"
    assert parse_step("concat:a,b,c→x").apply(piece).batch.steps["x",].dtype == np.float32


def test_a_number_the_joined_type_cannot_hold() -> None:
    piece = with_leaves(
        toy_piece([2], first_episode=3),
        steps={"a": np.array([1, 2], np.float16), "b": np.array([65504, 70000])},
    )
    with pytest.raises(StepError) as caught:
        parse_step("concat:a,b→x").apply(piece)
    place = "row 7 (episode 3, step 1)"
    assert f"'b' is 70000 in {place}, which float16, the type of" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("obs.position,mission→x", "'mission' means no leaf of numbers"),
        ("obs.position,action→x", "must be all observation leaves"),
        ("action,reward→x,keep=true", "all step leaves under 'next'"),
        ("reward→x,keep=true", "cannot join next/reward into 'x'"),
        ("action→next.x", "cannot join action into 'next/x'"),
        ("obs.position→next.observation", "the name is reserved"),
        ("obs.position,info.code→observation", "'observation' a leaf, and 'observation/velocity'"),
        ("obs.velocity,obs.position→observation,keep=true", "'observation' a leaf"),
        ("obs.position,info.code→observation.velocity", "two leaves the name 'observation/velo"),
        ("obs.position→observation.position,keep=true", "two leaves the name"),
        ("obs.position→action", "reserved"),
        ("action→act", "would leave no action"),
        ("reward→next.reward", "would leave no next/reward"),
        ("next.terminated,next.reward→next.x", "would leave no next/reward, no next/terminated"),
        ("obs,obs.position→x", "is given 'observation/position' twice"),
        ("obs.position,observation.position→x", "twice"),
        ("obs.position,info.cod→x", "No leaf is called 'info.cod'"),
    ],
)
def test_what_cannot_be_joined(text: str, message: str) -> None:
    with pytest.raises(StepError) as caught:
        parse_step(f"concat:{text}").apply(toy_piece([2]))
    assert message in caught.value.message


def test_text_below_a_beginning_is_in_the_way_of_the_target() -> None:
    piece = with_leaves(
        toy_piece([1]),
        observations={"observation.goal": np.array([1, 0], np.int32)},
        words={"observation.goal": ["a", "b"]},
    )
    with pytest.raises(StepError, match="'observation' a leaf, and 'observation/goal' is below"):
        parse_step("concat:observation→observation").apply(piece)
    found = parse_step("concat:observation→state").apply(piece)
    assert found.words == piece.words
    assert set(found.batch.observations) == {("state",), CODE, ("observation", "goal")}


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("info", {("info", "code")}),
        ("obs.velocity,mission", {("observation", "velocity"), ("mission",)}),
        ("next.observation", {("observation", "position"), ("observation", "velocity")}),
    ],
)
def test_what_goes(text: str, gone: set[tuple[str, ...]]) -> None:
    piece = toy_piece([2, 1])
    found = parse_step(f"exclude:{text}").apply(piece)
    for table in ("steps", "observations"):
        old, new = getattr(piece.batch, table), getattr(found.batch, table)
        assert set(new) == set(old) - gone
        assert all(new[key] is old[key] for key in new)
    assert (("mission",) in found.words) == (("mission",) not in gone)
    assert found.batch.episodes == piece.batch.episodes


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("reward", "no next/reward"),
        ("info,terminated", "no next/terminated"),
        ("next/truncated", "no next/truncated"),
        ("action", "no action"),
        ("next", "no next/reward, no next/terminated, no next/truncated"),
    ],
)
def test_what_every_dataset_has_stays(text: str, missing: str) -> None:
    with pytest.raises(StepError, match=f"Step 'exclude' would leave {missing}; every dataset has"):
        parse_step(f"exclude:{text}").apply(toy_piece([2]))


def test_one_action_leaf_of_two_may_go() -> None:
    piece = toy_piece([2])
    steps = dict(piece.batch.steps)
    arm = steps.pop(("action",))
    piece = piece.having(steps={**steps, ("action", "arm"): arm, ("action", "hand"): arm + 5})
    found = Exclude(("action.arm",)).apply(piece).batch.steps
    assert ("action", "hand") in found
    assert ("action", "arm") not in found
    with pytest.raises(StepError, match="no action"):
        Exclude(("action.arm", "action.hand")).apply(piece)


def grids() -> Piece:
    """Make a piece with leaves of two and of three axes, one of them empty, and text."""
    grid = (np.arange(14 * 6) + 1).reshape(14, 2, 3)
    return with_leaves(
        toy_piece([3, 1, 4, 2]),
        steps={
            "action": (np.arange(10 * 12, dtype=np.float16) + 0.5).reshape(10, 2, 2, 3),
            "label": np.arange(10, dtype=np.int32).reshape(10, 1) % 3,
            "extra": np.arange(40).reshape(10, 2, 2),
        },
        observations={
            "observation.grid": np.asfortranarray(grid),
            "observation.none": np.zeros((14, 0, 3)),
            "observation.text": (np.arange(28, dtype=np.int32) % 2).reshape(14, 2, 1),
        },
        words={"label": ["x", "y", "z"], "observation.text": ["a", "b"]},
    )


def flat(row: np.ndarray) -> list[float]:
    """List the numbers of a row, the last axis fastest."""
    if row.ndim == 0:
        return [row.item()]
    return [number for part in row for number in flat(part)]


@pytest.mark.parametrize("stored", [False, True])
def test_rows_have_one_axis(stored: bool) -> None:
    piece = as_stored(grids()) if stored else grids()
    found = Flatten().apply(piece)
    for table in ("steps", "observations"):
        for key, old in getattr(piece.batch, table).items():
            new = getattr(found.batch, table)[key]
            if key[0] in {"observation", "action"}:
                assert new.ndim == 2
                assert new.dtype == old.dtype
                assert new.tolist() == [flat(row) for row in old]
            else:
                assert new is old
    assert found.batch.observations["observation", "none"].shape == (14, 0)
    assert found.batch.observations["observation", "velocity"].shape == (14, 1)
    assert found.words == piece.words


def test_only_the_leaves_that_are_named() -> None:
    piece = grids()
    found = parse_step("flatten:extra,mission,obs.grid").apply(piece).batch
    assert found.steps["extra",].shape == (10, 4)
    assert found.steps["mission",].shape == (10, 1)
    assert found.observations["observation", "grid"].shape == (14, 6)
    assert found.steps["action",] is piece.batch.steps["action",]
    assert parse_step("flatten:mission").apply(piece).words == piece.words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("info.code=state", {CODE: ("state",)}),
        ("info/code=a.b/c", {CODE: ("a", "b", "c")}),
        (
            "obs=state",
            {POSITION: ("state", "position"), VELOCITY: ("state", "velocity")},
        ),
        ("next.observation.position=state", {POSITION: ("state",)}),
        ("observation.position=obs", {POSITION: ("obs",)}),
        ("mission=next.mission", {("mission",): ("next", "mission")}),
        ("action=action.arm", {("action",): ("action", "arm")}),
        ("info=observation.info", {CODE: ("observation", "info", "code")}),
        (
            "obs.position=observation.velocity,obs.velocity=x",
            {POSITION: VELOCITY, VELOCITY: ("x",)},
        ),
        (
            "obs.position=obs.velocity2,obs.velocity=observation.position",
            {POSITION: ("obs", "velocity2"), VELOCITY: POSITION},
        ),
        ("info.code=info.code", {}),
    ],
)
def test_leaves_are_called_otherwise(
    text: str, names: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    piece = toy_piece([2, 1])
    found = parse_step(f"rename:{text}").apply(piece)
    for table in ("steps", "observations"):
        old, new = getattr(piece.batch, table), getattr(found.batch, table)
        assert [*new] == [names.get(key, key) for key in old]
        assert all(new[names.get(key, key)] is column for key, column in old.items())
    assert found.words == {names.get(("mission",), ("mission",)): ["go", "stop", "turn"]}
    assert found.batch.episodes == piece.batch.episodes


def test_there_and_back() -> None:
    piece = with_leaves(
        toy_piece([2]),
        observations={"goal.text": np.array([1, 0, 1], np.int32)},
        words={"goal.text": ["a", "b"]},
    )
    there = parse_step("rename:goal=aim,obs=state,mission=goal").apply(piece)
    assert there.words == {("aim", "text"): ["a", "b"], ("goal",): ["go", "stop", "turn"]}
    assert_same_piece(
        parse_step("rename:aim=goal,state=observation,goal=mission").apply(there), piece
    )


def test_another_leaf_may_become_the_reward() -> None:
    shaped = np.array([[5.5], [6.5]], np.float32)
    piece = with_leaves(toy_piece([2]), steps={"next.shaped": shaped, "next.wide": np.ones((2, 3))})
    found = parse_step("rename:reward=next.sparse,next.shaped=next.reward").apply(piece).batch
    assert found.steps["next", "reward"].tolist() == [[5.5], [6.5]]
    assert found.steps["next", "sparse"].tolist() == [[0.125], [0.25]]
    with pytest.raises(StepError, match=r"Step 'rename': 'next/reward' must be \[N, 1\]"):
        parse_step("rename:reward=next.sparse,next.wide=next.reward").apply(piece)
    with pytest.raises(StepError, match="'next/terminated' must be bool"):
        parse_step("rename:terminated=next.x,next.shaped=next.terminated").apply(piece)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward=next.r", "would leave no next/reward"),
        ("next=after", "would leave no next/reward, no next/terminated, no next/truncated"),
        ("terminated=next.over", "would leave no next/terminated"),
        ("action=act", "would leave no action"),
        ("mission=action", "two leaves the name 'action'"),
        ("info.code=observation.velocity", "two leaves the name 'observation/velocity'"),
        ("info.code=observation", "make 'observation' a leaf, and 'observation/position' is"),
        ("mission=next.observation", "make 'next/observation' a leaf, and 'next/obs"),
        ("mission=info", "make 'info' a leaf, and 'info/code' is below it"),
        ("info.code=mission.code", "make 'mission' a leaf, and 'mission/code' is below it"),
        ("info=action.info", "cannot call an observation leaf 'action/info/code'"),
        ("info.code=next.code", "cannot call an observation leaf 'next/code': the name is res"),
        ("info.code=done", "reserved"),
        ("mission=episode", "cannot call a step leaf 'episode': the name is reserved"),
        ("mission=next.done", "reserved"),
        ("mission=a//b", "cannot call a leaf so"),
        ("obs=a,obs.position=b", "has two new names for 'observation/position'"),
        ("obs=a,observation=b", "has two new names for 'observation/position'"),
        ("obs.position=x,obs.velocity=x", "two leaves the name 'x'"),
    ],
)
def test_names_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(StepError) as caught:
        parse_step(f"rename:{text}").apply(toy_piece([2]))
    assert message in caught.value.message
    assert caught.value.message.startswith("Step 'rename' ")


REQUIRED = {("next", "reward"), ("next", "terminated"), ("next", "truncated")}


def arms(lengths: list[int]) -> Piece:
    """Make a piece with two action leaves and none called `action`."""
    piece = toy_piece(lengths)
    steps = dict(piece.batch.steps)
    arm = steps.pop(("action",))
    return piece.having(steps={**steps, ("action", "arm"): arm, ("action", "hand"): arm + 5})


@pytest.mark.parametrize(
    ("text", "steps", "observations"),
    [
        ("observation", {("action",)}, {("observation", "position"), ("observation", "velocity")}),
        ("next.obs.velocity", {("action",)}, {("observation", "velocity")}),
        ("action", {("action",)}, set()),
        ("mission,info", {("action",), ("mission",)}, {("info", "code")}),
        ("reward", {("action",)}, set()),
    ],
)
def test_what_is_kept(
    text: str, steps: set[tuple[str, ...]], observations: set[tuple[str, ...]]
) -> None:
    piece = toy_piece([2, 1])
    found = parse_step(f"select:{text}").apply(piece)
    assert set(found.batch.steps) == steps | REQUIRED
    assert set(found.batch.observations) == observations
    for key in steps | REQUIRED:
        assert found.batch.steps[key] is piece.batch.steps[key]
    for key in observations:
        assert found.batch.observations[key] is piece.batch.observations[key]
    words = {("mission",): ["go", "stop", "turn"]}
    assert found.words == (words if ("mission",) in steps else {})
    assert found.batch.episodes == piece.batch.episodes


def test_action_leaves_are_all_kept_where_none_is_named() -> None:
    arm, hand = ("action", "arm"), ("action", "hand")
    found = Select(("obs",)).apply(arms([2])).batch.steps
    assert {arm, hand} <= set(found)
    found = Select(("action.hand",)).apply(arms([2])).batch.steps
    assert set(found) == {hand, *REQUIRED}
