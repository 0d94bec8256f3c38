"""Steps that change whole columns: every value, type and name they give."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.errors import StepError
from offline_data.pipeline.preprocess.steps.columns import Cast, Clip
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.layout import DTYPES
from offline_data.testing.chunks import as_stored, toy_chunk, with_leaves

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)
ARM, HAND = ("action", "arm"), ("action", "hand")
REQUIRED = {("next", "reward"), ("next", "terminated"), ("next", "truncated")}


def applied(text: str, chunk: EpisodeChunk) -> Any:
    return parse_step(text).apply(chunk).batch


def refused(text: str, chunk: EpisodeChunk) -> str:
    with pytest.raises(StepError) as caught:
        parse_step(text).apply(chunk)
    assert caught.value.message.startswith(f"Step '{text.partition(':')[0]}'")
    return caught.value.message


def arms() -> EpisodeChunk:
    """Make a chunk with two action leaves and none called `action`."""
    chunk = toy_chunk([2])
    steps = dict(chunk.batch.steps)
    arm = steps.pop(("action",))
    return chunk.having(steps={**steps, ARM: arm, HAND: arm + 5})


def test_the_later_of_several_pairs_holds() -> None:
    chunk = toy_chunk([3])
    found = applied("cast:observation=float32,obs.position=float16,info=uint16", chunk)
    types = {key: column.dtype.name for key, column in found.observations.items()}
    assert types == {POSITION: "float16", VELOCITY: "float32", CODE: "uint16"}
    assert found.observations[CODE].tolist() == [[7], [14], [21], [28]]
    assert found.observations[VELOCITY] is chunk.batch.observations[VELOCITY]
    found = applied("cast:obs.position=float16,observation=float32", chunk)
    assert found.observations[POSITION].dtype == np.float32


def test_below_a_beginning_text_stays_and_bools_do_not() -> None:
    chunk = with_leaves(
        toy_chunk([2]),
        observations={
            "observation.text": np.array([1, 0, 1], np.int32),
            "observation.alive": np.array([True, False, True]),
        },
        words={"observation.text": ["a", "b"]},
    )
    found = parse_step("cast:obs=float32").apply(chunk)
    assert found.batch.observations["observation", "text"].dtype == np.int32
    assert found.words == chunk.words
    assert found.batch.observations["observation", "alive"].tolist() == [1.0, 0.0, 1.0]


NUMBERS = [
    *(0, 1, 2, -1, 127, 128, 255, 256, -128, -129, 32767, 32768, 65504, 65520, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**62),
    *(2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 2048, 1e30, -1e30, 1e39, -1e300),
    *(0.5, -0.5, 1e-7, 1e-300, 255.5, math.nan, math.inf, -math.inf, -0.0, 3.25),
]


ONE = toy_chunk([1])


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


def close(found: float, value: float, target: str) -> bool:
    """Say whether no number of the type is nearer."""
    if not math.isfinite(value):
        return str(found) == str(value)
    info = np.finfo(target)
    room = max(abs(value) * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
    return abs(found - value) <= room


@pytest.mark.parametrize("source", [one for one in DTYPES if "complex" not in one])
def test_every_type_to_every_other(source: str) -> None:
    dtype = np.dtype(source)
    with np.errstate(over="ignore"):
        known = np.array([n for n in NUMBERS if dtype.kind == "f" or fits(n, dtype)], dtype)
    for target in DTYPES:
        step = Cast((("x", target),))
        held = np.array([fits(value, np.dtype(target)) for value in known.tolist()])
        for value in known[~held]:
            with pytest.raises(StepError, match="cannot hold"):
                step.apply(with_leaves(ONE, steps={"x": np.array([value])}))
        values = known[held]
        found = step.apply(with_leaves(toy_chunk([len(values)]), steps={"x": values}))
        column = found.batch.steps["x",]
        assert column.dtype == target
        for new, old in zip(column.tolist(), values.tolist(), strict=True):
            whole = np.dtype(target).kind in "iub"
            assert new == old if whole else close(new.real, old, target)


def test_the_first_value_that_would_change_is_named() -> None:
    chunk = toy_chunk([3, 2], first_episode=1)
    assert refused("cast:action=int16", chunk) == (
        "Step 'cast': 'action' is 500.5 in row 3 (episode 1, step 0), which int16 cannot hold"
    )
    told = refused("cast:info=int16,obs.position=float16", toy_chunk([2] * 10))
    assert "'info/code' is 35007 in the observation before row 10 (episode 5, step 0)" in told
    position = chunk.batch.observations[POSITION].copy()
    position[3, 1] = math.nan
    chunk = with_leaves(chunk, observations={"observation.position": position})
    place = "in the observation after row 5 (episode 1, step 2)"
    told = refused("cast:obs.position=int64", chunk)
    assert f"'observation/position' is nan {place}, which int64" in told


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
@pytest.mark.parametrize(
    ("low", "high"), [(-1.5, 2.5), (2.5, None), (None, 2.5), (-1000, 1000), (-1e30, 3), (2, 1e30)]
)
def test_integers_stay_integers(dtype: str, low: float | None, high: float | None) -> None:
    info = np.iinfo(dtype)
    values = [info.min, info.min + 1, 1, 2, 3, 4, info.max // 2, info.max - 1, info.max]
    chunk = with_leaves(toy_chunk([9]), steps={"x": np.array(values, dtype)})
    found = Clip(("x",), low, high).apply(chunk).batch.steps["x",]
    least = -math.inf if low is None else math.ceil(low)
    greatest = math.inf if high is None else math.floor(high)
    assert found.dtype == dtype
    assert found.tolist() == [min(max(value, least), greatest) for value in values]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_point_types_stay(dtype: str) -> None:
    values = np.array([-math.inf, -3, 0.1, math.nan, math.inf, 1000], dtype)
    chunk = with_leaves(toy_chunk([6]), steps={"x": values})
    low, high, kept = np.array([-0.3, 0.7, 0.1], dtype)
    found = Clip(("x",), -0.3, 0.7).apply(chunk).batch.steps["x",]
    expected = np.array([low, low, kept, math.nan, high, high], dtype)
    np.testing.assert_array_equal(found, expected, strict=True)
    top = min(1e308, float(np.finfo(dtype).max))
    found = Clip(("x",), -1e308, 1e308).apply(chunk).batch.steps["x",]
    np.testing.assert_array_equal(found, [-top, -3, kept, math.nan, top, 1000])
    found = Clip(("x",), low=-2).apply(chunk).batch.steps["x",]
    np.testing.assert_array_equal(found, [-2, -2, kept, math.nan, math.inf, 1000])


@pytest.mark.parametrize("arrow", ["→", "->", " → "])
def test_rows_are_joined_in_the_order_as_written(arrow: str) -> None:
    chunk = as_stored(toy_chunk([2, 1]))
    old = chunk.batch.observations
    for order in itertools.permutations([POSITION, VELOCITY, CODE]):
        text = ",".join(".".join(key) for key in order) + arrow + "state.all"
        found = parse_step(f"concat:{text}").apply(chunk)
        assert list(found.batch.observations) == [("state", "all")]
        rows = [np.concatenate([np.ravel(old[key][row]) for key in order]) for row in range(5)]
        assert found.batch.observations["state", "all"].tolist() == [row.tolist() for row in rows]
        assert found.batch.steps == chunk.batch.steps
        assert found.words == chunk.words


def test_the_target_may_be_the_beginning_of_the_sources() -> None:
    found = applied("concat:observation→observation", toy_chunk([2])).observations
    assert set(found) == {("observation",), CODE}
    assert found["observation",].tolist() == [[i, -i, i + 0.5] for i in (1, 2, 3)]
    found = applied("concat:info.code→info", toy_chunk([2])).observations
    assert found["info",].tolist() == [[7], [14], [21]]


def test_step_leaves_of_one_side() -> None:
    found = applied("concat:action.hand,action.arm→action", arms()).steps
    assert found["action",].tolist() == [[6, 5.5, 5.25, 1, 0.5, 0.25], [7, 6, 5.5, 2, 1, 0.5]]
    assert not {ARM, HAND} & set(found)
    chunk = with_leaves(toy_chunk([1]), steps={"next.cost": np.array([[5.5]])})
    found = applied("concat:next.cost,reward→next.both,keep=true", chunk).steps
    assert found["next", "both"].tolist() == [[5.5, 0.125]]
    assert found["next", "reward"].tolist() == [[0.125]]


def test_only_the_last_axis_may_differ() -> None:
    left, right = np.arange(24.0).reshape(2, 3, 4) + 1, np.arange(12.0).reshape(2, 3, 2) + 100
    more = {"c": left[:, :2], "d": left[:, 0], "e": left[:, 0, 0]}
    chunk = with_leaves(toy_chunk([2]), steps={"a": left, "b": right, **more})
    found = applied("concat:a,b→ab", chunk).steps["ab",]
    assert found[1, 2].tolist() == [*left[1, 2], *right[1, 2]]
    assert found.shape == (2, 3, 6)
    for other, shape in (("c", [2, 4]), ("d", [4]), ("e", [])):
        told = refused(f"concat:a,{other}→x", chunk)
        assert f"cannot join rows of these shapes: a [3, 4], {other} {shape}" in told
    assert applied("concat:d,e→x", chunk).steps["x",].shape == (2, 5)


TYPES = [one for one in DTYPES if not one.startswith("uint") or one == "uint8"]


def typed_steps(**types: str) -> EpisodeChunk:
    steps = {name: np.arange(3).astype(dtype) for name, dtype in types.items()}
    return with_leaves(toy_chunk([3]), steps=steps)


def test_types_are_joined_as_torch_does() -> None:
    for left, right in itertools.product(TYPES, TYPES):
        chunk = typed_steps(a=left, b=right)
        found = applied("concat:a,b→x", chunk).steps["x",]
        parts = [torch.from_numpy(chunk.batch.steps[key,])[:, None] for key in ("a", "b")]
        expected = torch.cat(parts, -1)
        assert found.dtype == expected.numpy().dtype, (left, right)
        assert found.tolist() == expected.tolist()
    mixed = typed_steps(a="int64", b="uint64", c="float32")
    assert applied("concat:a,b,c→x", mixed).steps["x",].dtype == np.float32


def test_text_below_a_beginning_is_in_the_way_of_the_target() -> None:
    chunk = with_leaves(
        toy_chunk([1]),
        observations={"observation.goal": np.array([1, 0], np.int32)},
        words={"observation.goal": ["a", "b"]},
    )
    found = parse_step("concat:observation→state").apply(chunk)
    assert found.words == chunk.words
    assert set(found.batch.observations) == {("state",), CODE, ("observation", "goal")}


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("exclude:obs.velocity,mission", {VELOCITY, ("mission",)}),
        ("exclude:next.observation", {POSITION, VELOCITY}),
        ("select:next.obs.velocity", {POSITION, CODE, ("mission",)}),
        ("select:action", {POSITION, VELOCITY, CODE, ("mission",)}),
        ("select:mission,info", {POSITION, VELOCITY}),
    ],
)
def test_leaves_that_go(text: str, gone: set[tuple[str, ...]]) -> None:
    chunk = toy_chunk([2, 1])
    found = parse_step(text).apply(chunk)
    for table in ("steps", "observations"):
        old, new = getattr(chunk.batch, table), getattr(found.batch, table)
        assert set(new) == set(old) - gone
        assert all(new[key] is old[key] for key in new)
    assert (("mission",) in found.words) == (("mission",) not in gone)
    assert found.batch.episodes == chunk.batch.episodes


def test_action_leaves_may_go_but_for_one() -> None:
    assert {ARM, HAND} & set(applied("exclude:action.arm", arms()).steps) == {HAND}
    assert "no action" in refused("exclude:action", arms())
    assert {ARM, HAND} <= set(applied("select:obs", arms()).steps)
    assert set(applied("select:action.hand", arms()).steps) == {HAND, *REQUIRED}


def grids() -> EpisodeChunk:
    """Make a chunk with leaves of two and of three axes, one of them empty, and text."""
    grid = (np.arange(14 * 6) + 1).reshape(14, 2, 3)
    return with_leaves(
        toy_chunk([3, 1, 4, 2]),
        steps={
            "action": (np.arange(10 * 12, dtype=np.float16) + 0.5).reshape(10, 2, 2, 3),
            "extra": np.arange(40).reshape(10, 2, 2),
        },
        observations={
            "observation.grid": np.asfortranarray(grid),
            "observation.none": np.zeros((14, 0, 3)),
            "observation.text": (np.arange(28, dtype=np.int32) % 2).reshape(14, 2, 1),
        },
        words={"observation.text": ["a", "b"]},
    )


def test_rows_have_one_axis() -> None:
    chunk = grids()
    found = parse_step("flatten").apply(chunk)
    for table in ("steps", "observations"):
        for key, old in getattr(chunk.batch, table).items():
            new = getattr(found.batch, table)[key]
            if key[0] in {"observation", "action"}:
                assert (new.ndim, new.dtype) == (2, old.dtype)
                assert new.tolist() == [[n.item() for n in row.flat] for row in old]
            else:
                assert new is old
    assert found.batch.observations["observation", "none"].shape == (14, 0)
    assert found.words == chunk.words
    named = parse_step("flatten:extra,mission,obs.grid").apply(chunk)
    assert (named.batch.steps["extra",].shape, named.words) == ((10, 4), chunk.words)
    assert named.batch.steps["action",] is chunk.batch.steps["action",]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("info/code=a.b/c", {CODE: ("a.b", "c")}),
        ("info.code=a.b.c", {CODE: ("a", "b", "c")}),
        ("obs=state", {POSITION: ("state", "position"), VELOCITY: ("state", "velocity")}),
        ("next.observation.position=state", {POSITION: ("state",)}),
        ("action=action.arm", {("action",): ARM}),
        (
            "obs.position=observation.velocity,obs.velocity=x",
            {POSITION: VELOCITY, VELOCITY: ("x",)},
        ),
        ("info.code=info.code", {}),
    ],
)
def test_leaves_are_called_otherwise(
    text: str, names: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    chunk = toy_chunk([2, 1])
    found = parse_step(f"rename:{text}").apply(chunk)
    for table in ("steps", "observations"):
        old, new = getattr(chunk.batch, table), getattr(found.batch, table)
        assert [*new] == [names.get(key, key) for key in old]
        assert all(new[names.get(key, key)] is column for key, column in old.items())
    assert found.words == {names.get(("mission",), ("mission",)): ["go", "stop", "turn"]}
    assert found.batch.episodes == chunk.batch.episodes


def test_another_leaf_may_become_the_reward() -> None:
    shaped = np.array([[5.5], [6.5]], np.float32)
    chunk = with_leaves(toy_chunk([2]), steps={"next.shaped": shaped})
    found = applied("rename:reward=next.sparse,next.shaped=next.reward", chunk)
    assert found.steps["next", "reward"].tolist() == [[5.5], [6.5]]
    assert found.steps["next", "sparse"].tolist() == [[0.125], [0.25]]
