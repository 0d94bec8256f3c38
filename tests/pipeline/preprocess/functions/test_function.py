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
from tests.slow import every_second


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
        root["obs"] = torch.cat([seen["position"], seen["velocity"].double().unsqueeze(-1)], -1)
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


ROUNDED: dict[str, Fn] = {  # for many rows than for one, depending on the machine
    "mean": on_action(lambda a: a - a.mean()),
    "network": lambda td: td.set("z", LINEAR(td["action"])),
    "square of complex numbers": on_action(lambda a: torch.complex(a / 3, a) * torch.complex(a, a)),
    "float16": on_action(lambda a: (a.half() / 3).sum()),
}


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
ONE_BY_ONE: dict[str, tuple[Fn, str]] = {  # with what is said of it
    "branch": (branching, "it looks at values to decide"),
    "branch, error caught": (catching, "it looks at values to decide"),
    "numpy": (through_numpy, "it leaves torch"),
    "mask": (by_mask, "the shape of a result depends on values"),
    "compiled": (on_action(compiled), "it looks at values to decide"),
    "not per sample": (on_action(lambda a: otherwise(a, 0)), "'action' has another value"),
}
FUNCTIONS = {name: (fn, "") for name, fn in VECTORIZED.items()} | ONE_BY_ONE


@pytest.mark.parametrize("name", every_second(FUNCTIONS))
def test_functions_of_rows(name: str) -> None:
    fn, why = FUNCTIONS[name]
    chunk = big_chunk()
    found, step = run(fn, chunk)
    assert (step.run, step.unsteady) == ("rows" if why else "vectorised", "")
    assert step.why.startswith(why)
    assert bool(step.why) == bool(why)
    assert not found.by_rows
    assert_same_as_loop(fn, chunk, found)


def test_a_block_that_differs_is_run_by_rows_in_its_place() -> None:
    """The probe cannot tell, for it has small values alone; a later block can."""
    fn = on_action(lambda a: otherwise(a, 3000))
    chunk: Any = big_chunk()
    step = ready(fn, join_chunks(episodes_of(chunk)[:2]))
    assert (step.run, step.checked) == ("vectorised", 8)
    found = step.apply(chunk)
    assert_same_as_loop(fn, chunk, found)
    blocks = -(-112 // vectorize.block_rows(table_of(chunk)))
    late = [why for _, why, _ in found.by_rows]
    assert 0 < len(late) < blocks, "only blocks that have such rows"
    assert late[0].startswith(
        "'action' has another value for many rows at once, first seen near row"
    )
    assert sum(rows for rows, _, _ in found.by_rows) >= int(
        (chunk.batch.steps[ACTION][:, 0] > 3000).sum()
    )
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
        return td.set("action", buffer.copy_(td["action"] * 2))

    found, _ = run(fn, big_chunk())
    buffer.fill_(7)
    assert_same_as_loop(lambda td: td.set("action", td["action"] * 2), big_chunk(), found)


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

    def none_of(table: Any) -> dict[Any, Any]:
        return {key: column[:0] for key, column in table.items()}

    batch = chunk.batch
    empty = replace(
        chunk,
        batch=replace(
            batch,
            lengths=batch.lengths[:0],
            final_observation=batch.final_observation[:0],
            steps=none_of(batch.steps),
            observations=none_of(batch.observations),
            episodes=none_of(batch.episodes),
        ),
        episodes=chunk.episodes[:0],
        rows=chunk.rows[:0],
        steps=chunk.steps[:0],
    )
    for calling in ({}, {"vectorize": False}, {"batched": 3}):
        step = ready(concatenated, chunk, **calling)
        found = step.apply(empty)
        assert found.batch.transitions == 0
        assert found.batch.observations["obs",].shape == (0, 3)
        assert found.batch.observations["obs",].dtype == np.float64
    with pytest.raises(StepError, match="There is no row to try the function on"):
        replace(ready(in_place, chunk), schema=None).settled(empty)


CHUNK = toy_chunk([4, 1, 5, 3], first_episode=1)


def through_numpy_in_blocks(td: Any) -> Any:
    """What is written past torch counts too, whatever torch says of it."""
    td["observation", "position"].numpy()[:] += 1
    td["next", "observation", "position"].numpy()[:] += 1
    return td.set("action", torch.from_numpy(np.sort(td["action"].numpy(), axis=1)))


BLOCKS: dict[str, Fn] = {
    "mean": on_action(lambda a: a - a.mean(0)),
    "numpy": through_numpy_in_blocks,
    "the first as they were": lambda td: td.set("action", td["action"] * (2 if td["index"][0] > 8 else 1)),
    "the first themselves": lambda td: td.set("action", td["action"] * 2) if td["index"][0] > 8 else td,
    "two copies": lambda td: td.set(after(POSITION), td[after(POSITION)] + 0.5),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 5, 13, 100])
@pytest.mark.parametrize("name", BLOCKS)
def test_functions_of_blocks(name: str, size: int) -> None:
    """Blocks end where rows are counted, from the chunk's first on, whatever episodes there are."""
    seen: list[list[int]] = []

    def fn(td: Any) -> Any:
        seen.append(td["index"].tolist())
        return BLOCKS[name](td)

    found, step = run(fn, as_stored(CHUNK), batched=size)
    assert_same_as_loop(BLOCKS[name], CHUNK, found, size)
    assert (step.run, step.per_row) == ("blocks", False)
    assert step.explicit_next == (("observation/position",) if name == "two copies" else ())
    parts = [list(range(4, 17))[begin : begin + size] for begin in range(0, 13, size)]
    assert seen[-len(parts) :] == parts


def test_batched_one_buffer_that_is_used_again() -> None:
    buffer = torch.zeros(13, 3)

    def fn(td: Any) -> Any:
        return td.set("action", torch.mul(td["action"], 2, out=buffer[: len(td)]))

    for size in (4, 13):
        found, _ = run(fn, CHUNK, batched=size)
        buffer.fill_(7)
        np.testing.assert_array_equal(found.batch.steps[ACTION], CHUNK.batch.steps[ACTION] * 2)


VALUE = "'x' has another value for many rows"

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
            (concatenated, RunOptions()),
            (concatenated, RunOptions(batched=2)),
            (doubled, RunOptions(on="observations", batched=3)),
            (noisy, RunOptions(seed=3)),
            (branching_twice, RunOptions()),
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return recipe_of(request.param[:1], request.param[1]).steps[0]


class TestFunctionsOfEpisodes(StepContract):
    @pytest.fixture(params=[concatenated, noisy])
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
