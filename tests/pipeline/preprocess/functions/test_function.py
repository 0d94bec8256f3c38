"""A function of rows or blocks as a step: vectorised where that gives the same, else row by row."""

from __future__ import annotations

import functools
import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import StepError
from offline_data.pipeline.preprocess.functions import vectorize
from offline_data.pipeline.preprocess.functions.ted import table_of
from offline_data.pipeline.preprocess.functions.vectorize import NotVectorized, compare
from offline_data.pipeline.preprocess.job import RunOptions, recipe_of
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.testing.chunks import (
    as_stored,
    assert_same_chunk,
    episodes_of,
    join_chunks,
    toy_chunk,
)
from offline_data.testing.steps import StepContract
from tests.pipeline.preprocess.functions.loops import (
    ACTION,
    POSITION,
    RARE,
    REWARD,
    Fn,
    after,
    assert_same_as_loop,
    big_chunk,
    loop,
    ready,
    run,
    ted_rows,
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven blocks instead of one."""
    monkeypatch.setattr(vectorize, "BLOCK", 1900)


def on_action(change: Fn) -> Fn:
    """Return a function that changes the action alone."""

    def fn(td: Any) -> Any:
        return td.set("action", change(td["action"]))

    return fn


LINEAR = torch.nn.Linear(3, 2)


LOOKUP = torch.linspace(3, 4, 10_000)


def in_place(td: Any) -> Any:
    td["action"].mul_(2)
    td["observation", "position"][1] = 5.5
    td["info", "code"].masked_fill_(td["info", "code"] == 7 * RARE, 3)
    return td


def swapped(td: Any) -> Any:
    before, after = td["observation", "position"], td["next", "observation", "position"]
    td["observation", "position"], td["next", "observation", "position"] = after, before
    return td


def concatenated(td: Any) -> Any:
    for root in (td, td["next"]):
        seen = root["observation"]
        root["obs"] = torch.cat([seen["position"], seen["velocity"].double().unsqueeze(-1)])
    return td.exclude("observation", ("next", "observation"))


def as_mapping(td: Any) -> Any:
    return {
        "action": td["action"] * 2,
        "next": {"reward": td["next", "reward"] + 1, ("new", "deep"): 2.5},
        "count": 3,
        "pair": np.array([1, 2], np.int16),
    }


def new_td(td: Any) -> Any:
    return TensorDict({"action": -td["action"], "next": td["next"].select("reward")}, batch_size=[])


def normalized(td: Any) -> Any:
    for root in (td, td["next"]):
        root["observation"] = (root["observation"] - 1.5) / 3  # tensordict's `_foreach_…`
    return td


VECTORIZED: dict[str, Fn] = {
    "input": lambda td: td,
    "where": on_action(lambda a: torch.where(a == RARE, -a, a)),
    "in place": in_place,
    "swapped": swapped,
    "concatenated": concatenated,
    "mapping": as_mapping,
    "new": new_td,
    "arithmetic of tensordict": normalized,
    "apply": lambda td: td.apply(lambda x: x * 2 if x.is_floating_point() else x),
    "flattened": lambda td: td.flatten_keys("-"),
    "object": torch.nn.Identity(),
    "partial": functools.partial(lambda k, td: td.set("action", td["action"] * k), 3.0),
    "index": lambda td: td.set("twice", td["index"] * 2 + td["episode"]),
    "looked up": on_action(lambda a: LOOKUP[a[:1].long()]),
    "complex": on_action(lambda a: torch.complex(a, a + 1).conj()),
    "overflow": lambda td: td.set("o", td["info", "code"] * 2**60),
    "not a number": on_action(lambda a: torch.where(a == RARE, torch.nan, a)),
    "seeded inside": on_action(lambda a: a + float(np.random.default_rng(3).random())),
}


"""Functions that `torch.vmap` can run."""


@pytest.mark.parametrize("name", VECTORIZED)
def test_vectorised(name: str) -> None:
    chunk = big_chunk()
    found, step = run(VECTORIZED[name], chunk)
    assert (step.run, step.why, step.unsteady) == ("vectorised", "", "")
    assert not found.by_rows
    assert_same_as_loop(VECTORIZED[name], chunk, found)


ROUNDED: dict[str, Fn] = {
    "mean": on_action(lambda a: a - a.mean()),
    "network": lambda td: td.set("z", LINEAR(td["action"])),
    "square of complex numbers": on_action(lambda a: torch.complex(a / 3, a) * torch.complex(a, a)),
    "float16": on_action(lambda a: (a.half() / 3).sum()),
}


"""Functions that may be rounded otherwise for many rows than for one, depending on the machine."""


@pytest.mark.parametrize("name", ROUNDED)
def test_equal_but_for_rounding(name: str) -> None:
    chunk = big_chunk()
    found, step = run(ROUNDED[name], chunk)
    assert step.run == "vectorised"
    expected, mine = loop(ROUNDED[name], chunk), ted_rows(found)
    for key in expected[0]:
        one, other = (np.stack([row[key] for row in rows]) for rows in (expected, mine))
        assert one.dtype == other.dtype
        eps = {"f": {2: 1e-2, 4: 1e-5, 8: 1e-12}, "c": {8: 1e-5}}.get(one.dtype.kind, {})
        near = eps.get(one.dtype.itemsize, 0.0) * max(1.0, float(np.abs(one).max(initial=0)))
        np.testing.assert_allclose(other, one, rtol=0, atol=near)
    assert_same_as_loop(ROUNDED[name], chunk, run(ROUNDED[name], chunk, vectorize=False)[0])


def branching(td: Any) -> Any:
    if td["action"].max() == RARE:
        td["action"] = -td["action"]
    return td


def catching(td: Any) -> Any:
    try:
        if td["action"][0] == RARE:
            td["action"] = -td["action"]
    except RuntimeError:
        pass
    return td


def through_numpy(td: Any) -> Any:
    action = td["action"].numpy()
    action[action == RARE] = -1
    return td


def by_mask(td: Any) -> Any:
    td["action"][td["action"] == RARE] = -1
    return td


def _script(x: torch.Tensor) -> torch.Tensor:
    if bool(x[0] == 5013.0):
        return -x
    return x


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, and still in use
    compiled = torch.jit.script(_script)


def otherwise(a: Any, above: float, by: float = 1.001) -> Any:
    """Give something else for many rows, where values are large."""
    many = torch._C._functorch.is_batchedtensor(a)
    return torch.where(a > above, a * by if many else a, a)


ONE_BY_ONE: dict[str, tuple[Fn, str]] = {
    "branch": (branching, "it looks at values to decide"),
    "branch, error caught": (catching, "it looks at values to decide"),
    "numpy": (through_numpy, "it leaves torch"),
    "mask": (by_mask, "the shape of a result depends on values"),
    "compiled": (on_action(compiled), "it looks at values to decide"),
    "not per sample": (on_action(lambda a: otherwise(a, 0)), "'action' has another value"),
}


"""Functions that it cannot, and why."""


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_run_row_by_row(name: str) -> None:
    fn, why = ONE_BY_ONE[name]
    chunk = big_chunk()
    found, step = run(fn, chunk)
    assert (step.run, step.unsteady) == ("rows", "")
    assert step.why.startswith(why)
    assert_same_as_loop(fn, chunk, found)


def ted_actions(chunk: Any) -> Any:
    return chunk.batch.steps[ACTION]


def test_a_block_that_differs_is_run_by_rows_in_its_place() -> None:
    """The probe cannot tell, for it has small values alone; a later block can."""
    fn = on_action(lambda a: otherwise(a, 3000))
    chunk = big_chunk()
    step = ready(fn, join_chunks(episodes_of(chunk)[:2]))
    assert (step.run, step.checked) == ("vectorised", 32)
    found = step.apply(chunk)
    assert_same_as_loop(fn, chunk, found)
    blocks = -(-112 // vectorize.block_rows(table_of(chunk)))
    late = [why for _, why, _ in found.by_rows]
    assert 0 < len(late) < blocks, "only blocks that have such rows"
    assert late[0].startswith(
        "'action' has another value for many rows at once, first seen near row"
    )
    assert sum(rows for rows, _, _ in found.by_rows) >= int((ted_actions(chunk)[:, 0] > 3000).sum())
    assert not step.apply(join_chunks(episodes_of(chunk)[:2])).by_rows


def test_a_block_that_was_written_into_before_it_failed() -> None:
    def fn(td: Any) -> Any:
        td["action"].mul_(2)
        return td.set("action", otherwise(td["action"], 6000))

    chunk = big_chunk()
    found = ready(fn, join_chunks(episodes_of(chunk)[:2])).apply(chunk)
    assert found.by_rows
    assert_same_as_loop(fn, chunk, found)


def test_rounding_is_no_difference() -> None:
    chunk = big_chunk()
    step = ready(on_action(lambda a: otherwise(a, 0, 1 + 2e-7)), chunk)
    assert step.run == "vectorised"
    assert not step.apply(chunk).by_rows


def test_one_buffer_that_is_used_again() -> None:
    buffer = torch.zeros(3)

    def fn(td: Any) -> Any:
        buffer.copy_(td["action"] * 2)
        return td.set("action", buffer)

    found, _ = run(fn, big_chunk())
    wanted = [2 * row[ACTION] for row in ted_rows(big_chunk())]
    np.testing.assert_array_equal(found.batch.steps[ACTION], wanted)


def test_one_tensor_for_all_rows_stays_the_functions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorize, "BLOCK", 1 << 20)  # one block
    constant = torch.tensor([1.5, 2.5])
    found, step = run(lambda td: td.set("constant", constant), big_chunk())
    constant.fill_(7)
    assert step.run == "vectorised"
    assert (found.batch.steps["constant",] == [1.5, 2.5]).all()


def test_states_travel_as_json() -> None:
    """Names with dots in them too."""
    chunk = toy_chunk([3, 2])

    def fn(td: Any) -> Any:
        td["a.b"], td["next", "a.b"] = td["action"][0], td["action"][0] + 0.5
        return td

    found, step = run(fn, chunk)
    assert step.explicit_next == ("/a.b",)
    again = replace(step, run="rows", schema=None, explicit_next=())
    again = again.with_state(json.loads(json.dumps(step.state())))
    assert (again, again.state()) == (step, step.state())
    assert_same_chunk(again.apply(chunk), found)
    assert step.notes() == ("/a.b: stored before and after every action, for fn tells them apart",)


def test_required_leaves_are_kept() -> None:
    """An action, a reward and flags that a function does not return stay, and it is said."""
    chunk = big_chunk()
    found, step = run(lambda td: {"x": td["action"][0] * 2}, chunk)
    assert step.kept == ("next/reward", "next/terminated", "next/truncated", "action")
    for row, old in zip(ted_rows(found), ted_rows(chunk), strict=True):
        assert row["x",] == 2 * old[ACTION][0]
        assert (row[ACTION] == old[ACTION]).all()
        assert row[REWARD] == old[REWARD]
    assert not found.batch.observations
    assert "kept as they were" in step.notes()[0]


def test_no_rows_at_all() -> None:
    """A step before it may have left out every episode of a chunk."""
    chunk = toy_chunk([3, 2])
    empty = join_chunks(episodes_of(chunk)[:1])
    empty = replace(
        empty,
        batch=replace(
            empty.batch,
            lengths=empty.batch.lengths[:0],
            final_observation=empty.batch.final_observation[:0],
            steps={key: column[:0] for key, column in empty.batch.steps.items()},
            observations={key: column[:0] for key, column in empty.batch.observations.items()},
            episodes={key: column[:0] for key, column in empty.batch.episodes.items()},
        ),
        episodes=empty.episodes[:0],
        rows=empty.rows[:0],
        steps=empty.steps[:0],
    )
    for calling in ({}, {"vectorize": False}, {"batched": 3}):
        step = ready(concatenated_block if "batched" in calling else concatenated, chunk, **calling)
        found = step.apply(empty)
        assert found.batch.transitions == 0
        assert found.batch.observations["obs",].shape == (0, 3)
        assert found.batch.observations["obs",].dtype == np.float64
    with pytest.raises(StepError, match="There is no row to try the function on"):
        replace(ready(in_place, chunk), schema=None).settled(empty)


def concatenated_block(td: Any) -> Any:
    for root in (td, td["next"]):
        seen = root["observation"]
        root["obs"] = torch.cat([seen["position"], seen["velocity"].double().unsqueeze(-1)], -1)
    return td.exclude("observation", ("next", "observation"))


CHUNK = toy_chunk([4, 1, 5, 3], first_episode=1)


@pytest.mark.parametrize("size", [1, 5, 13, 100])
def test_blocks_end_where_rows_are_counted(size: int) -> None:
    """From the first row of the chunk on, whatever episodes there are."""
    seen: list[list[int]] = []

    def fn(td: Any) -> Any:
        seen.append(td["index"].tolist())
        return td.set("action", td["action"] - td["action"].mean(0))

    step = ready(fn, CHUNK, batched=size)
    seen.clear()
    found = step.apply(as_stored(CHUNK))
    indices, actions = list(range(4, 17)), CHUNK.batch.steps[ACTION]
    parts = [slice(begin, begin + size) for begin in range(0, 13, size)]
    assert seen == [indices[part] for part in parts]
    expected = np.concatenate([actions[part] - actions[part].mean(0) for part in parts])
    np.testing.assert_allclose(found.batch.steps[ACTION], expected, atol=1e-4)
    assert (step.run, step.per_row) == ("blocks", False)


def test_numpy_inside() -> None:
    """What is written past torch counts too, whatever torch says of it."""

    def fn(td: Any) -> Any:
        td["observation", "position"].numpy()[:] += 1
        td["next", "observation", "position"].numpy()[:] += 1
        td["action"] = torch.from_numpy(np.sort(td["action"].numpy(), axis=1))
        return td

    found, _ = run(fn, CHUNK, batched=4)
    position = CHUNK.batch.observations[POSITION]
    assert found.batch.observations[POSITION].tolist() == (position + 1).tolist()
    assert (found.batch.steps[ACTION] == np.sort(CHUNK.batch.steps[ACTION], axis=1)).all()


def test_blocks_of_which_the_first_stay_as_they_were() -> None:
    def fn(td: Any) -> Any:
        return td.set("action", td["action"] * 2) if td["index"][0] > 8 else td

    found, _ = run(fn, CHUNK, batched=4)
    wanted = CHUNK.batch.steps[ACTION].copy()
    wanted[8:] *= 2
    np.testing.assert_array_equal(found.batch.steps[ACTION], wanted)


def test_batched_one_buffer_that_is_used_again() -> None:
    buffer = torch.zeros(13, 3)

    def fn(td: Any) -> Any:
        return td.set("action", torch.mul(td["action"], 2, out=buffer[: len(td)]))

    for size in (4, 13):
        found, _ = run(fn, CHUNK, batched=size)
        kept = found.batch.steps[ACTION].copy()
        buffer.fill_(7)
        np.testing.assert_array_equal(found.batch.steps[ACTION], kept)
        np.testing.assert_array_equal(kept, CHUNK.batch.steps[ACTION] * 2)


def test_two_copies_in_blocks() -> None:
    def fn(td: Any) -> Any:
        after = td["next", "observation", "position"]
        return td.set(("next", "observation", "position"), after + 0.5)

    found, step = run(fn, CHUNK, batched=6)
    assert step.explicit_next == ("observation/position",)
    for row, old in zip(ted_rows(found), ted_rows(CHUNK), strict=True):
        assert (row[POSITION] == old[POSITION]).all()
        assert (row[after(POSITION)] == old[after(POSITION)] + 0.5).all()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda td: td[:-1], r"'.*' as \[3.*\] for the block of 4 rows from row .*; expected 4 rows"),
        (lambda td: {**td, "x": torch.ones(3)}, r"'x' as \[3\] for the block of 4 rows from row 4"),
        (lambda td: {**td, "x": 2.5}, r"'x' as \[\] for the block of 4 rows"),
        (lambda td: td["action"], "returned a Tensor for the block of 4 rows"),
        (lambda td: {**td, "x": ["a"] * 4}, "'x' as list for the block of 4 rows .*; expected"),
        (lambda td: {**td, "x": td["action"].bfloat16()}, "'x' as bfloat16 for the block"),
        (lambda td: {**td, "x": td["action"].to("meta")}, "'x' as a tensor on device meta for the block"),
        (lambda td: {**td, "x": td["action"].to_sparse()}, "'x' as a tensor on device cpu, sparse_coo for"),
        (lambda td: {**td, "next": td["action"]}, "a leaf 'next' for the block .*; expected leaves"),
        (lambda _: 1 / 0, r"failed on the block of 4 rows from row 4 \(episode 1, step 0\) to row "),
    ],
)  # fmt: skip
def test_what_cannot_be(fn: Fn, message: str) -> None:
    with pytest.raises(StepError, match=message):
        run(fn, CHUNK, batched=4)


def test_a_later_block_is_held_to_the_first() -> None:
    def fn(td: Any) -> Any:
        if 10 in td["index"].tolist() and len(td) == 4:
            return td.set("reward", td["next", "reward"]).exclude("action")
        return td

    with pytest.raises(StepError, match=r"block of 4 .* lacks action and has, unlike .*, reward"):
        ready(fn, CHUNK, batched=4)

    def double(td: Any) -> Any:
        return td.set("action", td["action"].double()) if td["index"][0] > 1000 else td

    step = ready(double, CHUNK, batched=4)
    later = replace(CHUNK, rows=CHUNK.rows + 1000)
    place = r"for the block of 4 rows from row 1004 \(episode 1, step 0\) to row 1007 "
    with pytest.raises(
        StepError, match=rf"'action' as float64 \[3\] {place}.*; expected float32 \[3\]"
    ):
        step.apply(later)


VALUE, SHAPE = "'x' has another value for many rows", "'x' has another dtype or shape for many rows"


NEAR = 1 + 2.0**-18


"""A rounding of float32, and none of float64."""


@pytest.mark.parametrize(
    ("rows", "many", "dtype", "message"),
    [
        ([0.5, np.nan], [0.5, np.nan], "f8", None),
        ([np.inf, -np.inf], [np.inf, -np.inf], "f4", None),
        ([0.5, 0.0], [0.5, -0.0], "f8", None),
        ([0.1, 1.7], [0.1, 1.7 * NEAR], "f8", VALUE),
        ([0.5, 1.5], [0.5, np.float32(1.5 * NEAR)], "f4", None),
        ([0.5, 1.5], [0.5, 1.5 * NEAR], "f8", None),  # float32 made float64
        ([0.5, 1.5], [0.5, 1.5002], "f4", VALUE),
        ([0.5, 1.5], [0.5, 1.55], "f2", VALUE),
        ([100.0, 1e-9], [100.0, 2e-6], "f4", None),  # the terms of a sum that cancel
        ([1e-9, 2e-9, 1e9], [1e-9, 2.1e-9, 1e9], "f4", VALUE),  # one large row hides no other
        ([0.5, 1.5], [0.5, np.nan], "f8", VALUE),
        ([0.5, np.inf], [0.5, -np.inf], "f8", VALUE),
        ([0.5, 1e308], [0.5, np.inf], "f8", VALUE),
        ([1 + 2j, 3j], [1 + 2j, 3j * NEAR], "c8", None),
        ([1 + 2j, 3j], [1 + 2j, 3.5j], "c16", VALUE),
        ([3, 4], [3, 5], "i4", VALUE),
    ],
)
def test_values_are_equal_up_to_rounding(
    rows: Any, many: Any, dtype: str, message: str | None
) -> None:
    one: Any = {("x",): np.array(rows, dtype)}
    other: Any = {("x",): np.array([0, *many], dtype)}
    if message is None:
        compare(one, other, np.arange(1, len(rows) + 1))
        return
    with pytest.raises(NotVectorized, match=message):
        compare(one, other, np.arange(1, len(rows) + 1))


def doubled(td: Any) -> Any:
    td["observation", "position"].mul_(2)
    return td.set("info", td["info"].clone())


def noisy(td: Any) -> Any:
    return td.set("noise", torch.rand(*td.batch_size, 2)).exclude("mission")


def branching_twice(td: Any) -> Any:
    return td.set("action", td["action"] * (2 if td["action"].max() > 2000 else 3))


def told_apart(td: Any) -> Any:
    return td.set(("next", "info", "code"), td["next", "info", "code"] + 1)


class TestFunctionsOfRows(StepContract):
    @pytest.fixture(
        params=[
            (concatenated_block, RunOptions()),
            (concatenated_block, RunOptions(batched=2)),
            (doubled, RunOptions(on="observations", batched=3)),
            (noisy, RunOptions(seed=3)),
            (branching_twice, RunOptions()),
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return recipe_of(request.param[:1], request.param[1]).steps[0]


class TestFunctionsOfEpisodes(StepContract):
    @pytest.fixture(params=[concatenated_block, noisy])
    def step(self, request: pytest.FixtureRequest) -> Step:
        options = RunOptions(by="episode", seed=5)
        return recipe_of([request.param], options).steps[0]


class TestLeavesThatAreToldApart(StepContract):
    @pytest.fixture(params=[RunOptions(), RunOptions(by="episode")])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return recipe_of([told_apart], request.param).steps[0]

    @pytest.fixture
    def ready(self, step: Any, chunk: Any) -> Any:
        """Give the step as it is after it found out on whole episodes."""
        settled = step.settled(chunk)
        if not settled.explicit_next:
            settled = settled.with_state({**settled.state(), "two_copies": ["info/code"]})
        assert settled.explicit_next == ("info/code",)
        return settled
