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
MISSION, REWARD = ("mission",), ("next", "reward")


def applied(text: str, chunk: EpisodeChunk) -> Any:
    return parse_step(text).apply(chunk).batch


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
    found = parse_step("cast:obs=float32").apply(GOAL)
    assert found.batch.observations["observation", "goal"].dtype == np.int32
    assert found.words == GOAL.words
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


GOAL = with_leaves(
    toy_chunk([2]),
    observations={
        "observation.goal": np.array([1, 0, 1], np.int32),
        "observation.alive": np.array([True, False, True]),
    },
    words={"observation.goal": ["a", "b"]},
)
STATES = [[i, -i, i + 0.5] for i in (1, 2, 3)]
ACTIONS = [[6, 5.5, 5.25, 1, 0.5, 0.25], [7, 6, 5.5, 2, 1, 0.5]]
COST = with_leaves(toy_chunk([1]), steps={"next.cost": np.array([[5.5]])})


@pytest.mark.parametrize(
    ("text", "chunk", "values", "gone"),
    [
        ("observation→observation", toy_chunk([2]), STATES, {POSITION, VELOCITY}),
        ("info.code→info", toy_chunk([2]), [[7], [14], [21]], {CODE}),
        ("action.hand,action.arm→action", arms(), ACTIONS, {ARM, HAND}),
        ("next.cost,reward→next.both,keep=true", COST, [[5.5, 0.125]], set()),
        (
            *("observation→state", GOAL, [[1, *STATES[0]], [0, *STATES[1]], [1, *STATES[2]]]),
            {POSITION, VELOCITY, ("observation", "alive")},  # text stays
        ),
    ],
)
def test_leaves_that_are_joined(text: str, chunk: EpisodeChunk, values: Any, gone: Any) -> None:
    found = parse_step(f"concat:{text}").apply(chunk)
    old, new = ({**one.batch.steps, **one.batch.observations} for one in (chunk, found))
    target = tuple(text.partition("→")[2].partition(",")[0].split("."))
    assert new.pop(target).tolist() == values
    assert new.keys() == old.keys() - gone - {target}
    assert all(new[key] is old[key] for key in new)
    assert found.words == chunk.words


def test_only_the_last_axis_may_differ() -> None:
    left, right = np.arange(24.0).reshape(2, 3, 4) + 1, np.arange(12.0).reshape(2, 3, 2) + 100
    more = {"d": left[:, 0], "e": left[:, 0, 0]}
    chunk = with_leaves(toy_chunk([2]), steps={"a": left, "b": right, **more})
    found = applied("concat:a,b→ab", chunk).steps["ab",]
    assert found[1, 2].tolist() == [*left[1, 2], *right[1, 2]]
    assert found.shape == (2, 3, 6)
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


@pytest.mark.parametrize(
    ("text", "chunk", "gone"),
    [
        ("exclude:obs.velocity,mission", toy_chunk([2, 1]), {VELOCITY, MISSION}),
        ("exclude:next.observation", toy_chunk([2, 1]), {POSITION, VELOCITY}),
        ("exclude:action.arm", arms(), {ARM}),
        ("select:next.obs.velocity", toy_chunk([2, 1]), {POSITION, CODE, MISSION}),
        ("select:action", toy_chunk([2, 1]), {POSITION, VELOCITY, CODE, MISSION}),
        ("select:action.hand", arms(), {ARM, POSITION, VELOCITY, CODE, MISSION}),
        ("select:mission,info", toy_chunk([2, 1]), {POSITION, VELOCITY}),
        ("select:obs", arms(), {CODE, MISSION}),
    ],
)
def test_leaves_that_go(text: str, chunk: EpisodeChunk, gone: set[tuple[str, ...]]) -> None:
    found = parse_step(text).apply(chunk)
    for table in ("steps", "observations"):
        old, new = getattr(chunk.batch, table), getattr(found.batch, table)
        assert set(new) == set(old) - gone
        assert all(new[key] is old[key] for key in new)
    assert (MISSION in found.words) == (MISSION not in gone)
    assert found.batch.episodes == chunk.batch.episodes


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


SHAPED = with_leaves(
    toy_chunk([2, 1]), steps={"next.shaped": np.array([[5.5], [6.5], [7.5]], np.float32)}
)


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
        (
            "reward=next.sparse,next.shaped=next.reward",
            {REWARD: ("next", "sparse"), ("next", "shaped"): REWARD},
        ),
        ("mission=task", {MISSION: ("task",)}),
        ("info.code=info.code", {}),
    ],
)
def test_leaves_are_called_otherwise(
    text: str, names: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    found = parse_step(f"rename:{text}").apply(SHAPED)
    for table in ("steps", "observations"):
        old, new = getattr(SHAPED.batch, table), getattr(found.batch, table)
        assert [*new] == [names.get(key, key) for key in old]
        assert all(new[names.get(key, key)] is column for key, column in old.items())
    assert found.words == {names.get(MISSION, MISSION): ["go", "stop", "turn"]}
    assert found.batch.episodes == SHAPED.batch.episodes
