from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Concat
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import as_stored, toy_piece, with_leaves
from offline_data.testing.steps import StepContract

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)


class TestContract(StepContract):
    @pytest.fixture(
        params=[
            "concat:obs.position,obs.velocity→observation",
            "concat:obs.velocity,info.code->state,keep=true",
            "concat:action→action.all",
            "concat:reward,next.terminated→next.all,keep=true",
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


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


def test_leaves_below_a_beginning_come_in_the_order_of_their_names() -> None:
    piece = toy_piece([1])
    piece = piece.having(observations=dict(list(piece.batch.observations.items())[::-1]))
    found = parse_step("concat:info,observation→all").apply(piece).batch
    assert found.observations["all",].tolist() == [[7, 1, -1, 1.5], [14, 2, -2, 2.5]]


def test_a_source_may_lend_its_name() -> None:
    found = parse_step("concat:obs.position,info.code→observation.position").apply(toy_piece([1]))
    assert found.batch.observations[POSITION].tolist() == [[1, -1, 7], [2, -2, 14]]
    assert set(found.batch.observations) == {POSITION, VELOCITY}


def test_sources_may_stay() -> None:
    piece = toy_piece([1])
    found = parse_step("concat:obs.velocity,info.code→state,keep=true").apply(piece).batch
    assert set(found.observations) == {POSITION, VELOCITY, CODE, ("state",)}
    assert found.observations[CODE] is piece.batch.observations[CODE]
    assert found.observations["state",].tolist() == [[1.5, 7], [2.5, 14]]


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


def of_type(piece: Piece, **types: str) -> Piece:
    count = piece.batch.transitions
    steps = {name: np.arange(count).astype(dtype) for name, dtype in types.items()}
    return with_leaves(piece, steps=steps)


@pytest.mark.parametrize("left", TYPES)
def test_types_are_joined_as_torch_does(left: str) -> None:
    for right in TYPES:
        piece = of_type(toy_piece([3]), a=left, b=right)
        found = parse_step("concat:a,b→x").apply(piece).batch.steps["x",]
        parts = [torch.from_numpy(piece.batch.steps[key,])[:, None] for key in ("a", "b")]
        expected = torch.cat(parts, -1)
        assert found.dtype == expected.numpy().dtype, (left, right)
        assert found.tolist() == expected.tolist()


def test_three_types() -> None:
    piece = of_type(toy_piece([3]), a="int64", b="float16", c="float32")
    assert parse_step("concat:a,b,c→x").apply(piece).batch.steps["x",].dtype == np.float32
    assert parse_step("concat:a,b→x").apply(piece).batch.steps["x",].dtype == np.float16


def test_no_integer_type_for_both() -> None:
    piece = of_type(toy_piece([3]), a="int64", b="uint64", c="float32")
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
    "text",
    ["", "a,b", "a,b→", "→c", "a→b→c", "a→b,c", "a→b,keep=2", "a→b,target=c", "a→b,other=1"],
)
def test_arguments_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="Step 'concat' ") as caught:
        parse_step(f"concat:{text}")
    assert caught.value.hint == f"for example --step '{Concat.example}'"


def test_an_arrow_that_a_shell_took_for_a_file() -> None:
    with pytest.raises(UsageError, match="in a shell, -> wants quotes"):
        parse_step("concat:observation.position,observation.velocity-")


def test_parameters_of_the_class() -> None:
    assert parse_step("concat:a,b→c") == Concat(("a", "b"), "c")
    assert parse_step("concat:a , b -> c , keep=true") == Concat(("a", "b"), "c", keep=True)
    with pytest.raises(UsageError):
        Concat((), "c")
    with pytest.raises(UsageError):
        Concat(("a",), "")
