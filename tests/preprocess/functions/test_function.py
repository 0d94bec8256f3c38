"""However a function of rows is run, it gives what a plain loop over rows gives."""

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

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions import vectorize
from offline_data.preprocess.functions.step import FunctionStep
from offline_data.preprocess.functions.ted import to_ted
from offline_data.testing.pieces import assert_same_piece, episodes_of, joined, toy_piece
from tests.preprocess.functions.loops import (
    ACTION,
    POSITION,
    RARE,
    REWARD,
    VELOCITY,
    Fn,
    after,
    as_td,
    assert_same_as_loop,
    big_piece,
    loop,
    probe_of,
    ready,
    run,
    ted_rows,
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven blocks instead of one."""
    monkeypatch.setattr(vectorize, "BLOCK", 4000)


def on_action(change: Fn) -> Fn:
    """Return a function that changes the action alone."""

    def fn(td: Any) -> Any:
        return td.set("action", change(td["action"]))

    return fn


LINEAR = torch.nn.Linear(3, 2)
MATRIX = torch.linspace(-1, 2, 9).reshape(3, 3)
LOOKUP = torch.linspace(3, 4, 10_000)


class Scale:
    """A function that is an object."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, td: Any) -> Any:
        return td.set("action", td["action"] * self.by)

    def method(self, td: Any) -> Any:
        return td.set("action", td["action"] + self.by)


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
    "clone": lambda td: td.clone().set("action", td["action"] + 1),
    "arithmetic of tensordict": normalized,
    "apply": lambda td: td.apply(lambda x: x * 2 if x.is_floating_point() else x),
    "constant": lambda td: td.set("c", torch.full((2,), 7)),
    "removed": lambda td: td.exclude("info", ("next", "info")),
    "flattened": lambda td: td.flatten_keys("-"),
    "object": Scale(3),
    "method": Scale(3).method,
    "partial": functools.partial(lambda k, td: td.set("action", td["action"] * k), 3.0),
    "own max": on_action(lambda a: a / a.max()),
    "cat of axis 0": on_action(lambda a: torch.cat([a, a + 1])),
    "first of the row": on_action(lambda a: a[0] + a),
    "two of the row": on_action(lambda a: a[:2]),
    "batch size": lambda td: td.set("b", torch.tensor([len(td.batch_size), td["action"].ndim])),
    "index": lambda td: td.set("twice", td["index"] * 2 + td["episode"]),
    "looked up": on_action(lambda a: LOOKUP[a[:1].long()]),
    "sorted": on_action(lambda a: a.sort().values),
    "argmax": on_action(lambda a: (-a).argmax()),
    "to int8": on_action(lambda a: (a * 100).to(torch.int8)),
    "to float16": on_action(lambda a: a.half() / 3),
    "to float64": on_action(lambda a: a.double() / 3),
    "to bool": on_action(lambda a: a > RARE),
    "to uint8": on_action(lambda a: a.to(torch.uint8)),
    "complex": on_action(lambda a: torch.complex(a, a + 1).conj()),
    "overflow": lambda td: td.set("o", td["info", "code"] * 2**60),
    "not a number": on_action(lambda a: torch.where(a == RARE, torch.nan, a)),
    "seeded inside": on_action(lambda a: a + float(np.random.default_rng(3).random())),
}
"""Functions that `torch.vmap` can run."""


@pytest.mark.parametrize("name", VECTORIZED)
def test_vectorised(name: str) -> None:
    piece = big_piece()
    found, step = run(VECTORIZED[name], piece)
    assert (step.run, step.why, step.unsteady) == ("vectorised", "", "")
    assert not found.by_rows
    assert_same_as_loop(VECTORIZED[name], piece, found)


@pytest.mark.parametrize("name", VECTORIZED)
def test_the_same_row_by_row(name: str) -> None:
    piece = toy_piece([3, 1, 4], first_episode=1, unknown_final=[2])
    found, step = run(VECTORIZED[name], piece, vectorize=False)
    assert (step.run, step.why) == ("rows", "asked for")
    assert_same_as_loop(VECTORIZED[name], piece, found)
    assert_same_piece(found, run(VECTORIZED[name], piece)[0])


ROUNDED: dict[str, Fn] = {
    "mean": on_action(lambda a: a - a.mean()),
    "sum of axis 0": on_action(lambda a: a / a.sum(0)),
    "norm": on_action(lambda a: a / a.norm()),
    "network": lambda td: td.set("z", LINEAR(td["action"])),
    "product": on_action(lambda a: a @ MATRIX),
    "sine": on_action(lambda a: (a / 7).sin()),
    "sigmoid": on_action(lambda a: (a / 7000).sigmoid()),
    "softmax": on_action(lambda a: (a / 5000).softmax(0)),
    "angle": on_action(lambda a: torch.atan2(a, a + 1)),
    "remainder": on_action(lambda a: a % 3.0),
    "square of complex numbers": on_action(lambda a: torch.complex(a / 3, a) * torch.complex(a, a)),
    "float16": on_action(lambda a: (a.half() / 3).sum()),
}
"""Functions that may be rounded otherwise for many rows than for one, depending on the machine."""


@pytest.mark.parametrize("name", ROUNDED)
def test_equal_but_for_rounding(name: str) -> None:
    piece = big_piece()
    found, step = run(ROUNDED[name], piece)
    assert step.run == "vectorised"
    expected, mine = loop(ROUNDED[name], piece), ted_rows(found)
    for key in expected[0]:
        one, other = (np.stack([row[key] for row in rows]) for rows in (expected, mine))
        assert one.dtype == other.dtype
        eps = {"f": {2: 1e-2, 4: 1e-5, 8: 1e-12}, "c": {8: 1e-5}}.get(one.dtype.kind, {})
        near = eps.get(one.dtype.itemsize, 0.0) * max(1.0, float(np.abs(one).max(initial=0)))
        np.testing.assert_allclose(other, one, rtol=0, atol=near)
    assert_same_as_loop(ROUNDED[name], piece, run(ROUNDED[name], piece, vectorize=False)[0])


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


def catching_all(td: Any) -> Any:
    try:
        value = td["action"].tolist()[0]
    except:  # noqa: E722
        value = 0
    return td.set("action", td["action"] + (value == RARE))


def catching_number(td: Any) -> Any:
    try:
        return td.set("x", torch.tensor(float(td["action"][0])))
    except Exception:  # noqa: BLE001
        return td.set("x", torch.tensor(0.5))


def through_numpy(td: Any) -> Any:
    action = td["action"].numpy()
    action[action == RARE] = -1
    return td


def by_mask(td: Any) -> Any:
    td["action"][td["action"] == RARE] = -1
    return td


def by_number(td: Any) -> Any:
    return td.set("action", td["action"] + td["index"].item() % 7)


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
    "list, all errors caught": (catching_all, "it leaves torch"),
    "number, error caught": (catching_number, "it looks at values to decide"),
    "numpy": (through_numpy, "it leaves torch"),
    "mask": (by_mask, "the shape of a result depends on values"),
    "item": (by_number, "it looks at values to decide"),
    "nonzero": (on_action(lambda a: (a > 0).nonzero()[:1, 0]), "the shape of a result depends"),
    "equal": (on_action(lambda a: a * torch.equal(a, a)), "torch.vmap refuses it"),
    "compiled": (on_action(compiled), "it looks at values to decide"),
    "not per sample": (on_action(lambda a: otherwise(a, 0)), "'action' has another value"),
}
"""Functions that it cannot, and why."""


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_run_row_by_row(name: str) -> None:
    fn, why = ONE_BY_ONE[name]
    piece = big_piece()
    found, step = run(fn, piece)
    assert (step.run, step.unsteady) == ("rows", "")
    assert step.why.startswith(why)
    assert_same_as_loop(fn, piece, found)


def ted_actions(piece: Any) -> Any:
    return piece.batch.steps[ACTION]


def test_a_block_that_differs_is_run_by_rows_in_its_place() -> None:
    """The probe cannot tell, for it has small values alone; a later block can."""
    fn = on_action(lambda a: otherwise(a, 3000))
    piece = big_piece()
    step = ready(fn, joined(episodes_of(piece)[:2]))
    assert (step.run, step.checked) == ("vectorised", 32)
    found = step.apply(piece)
    assert_same_as_loop(fn, piece, found)
    blocks = -(-240 // vectorize.block_rows(to_ted(piece)))
    late = [one.why for one in found.by_rows]
    assert 0 < len(late) < blocks, "only blocks that have such rows"
    assert late[0].startswith(
        "'action' has another value for many rows at once, first seen near row"
    )
    assert sum(one.rows for one in found.by_rows) >= int((ted_actions(piece)[:, 0] > 3000).sum())
    assert not step.apply(joined(episodes_of(piece)[:2])).by_rows


def test_a_block_that_was_written_into_before_it_failed() -> None:
    def fn(td: Any) -> Any:
        td["action"].mul_(2)
        return td.set("action", otherwise(td["action"], 6000))

    piece = big_piece()
    found = ready(fn, joined(episodes_of(piece)[:2])).apply(piece)
    assert found.by_rows
    assert_same_as_loop(fn, piece, found)


def test_rounding_is_no_difference() -> None:
    piece = big_piece()
    step = ready(on_action(lambda a: otherwise(a, 0, 1 + 2e-7)), piece)
    assert step.run == "vectorised"
    assert not step.apply(piece).by_rows


def test_how_many_rows_are_compared() -> None:
    """Those with 512 values, and 32 at least."""
    assert ready(lambda td: {"action": td["action"] * 3 - 1}, big_piece()).checked == 171
    assert ready(lambda td: {"z": td["action"].sum()}, big_piece()).checked == 512
    assert ready(lambda td: td, big_piece()).checked == 32


def test_one_buffer_that_is_used_again() -> None:
    buffer = torch.zeros(3)

    def fn(td: Any) -> Any:
        buffer.copy_(td["action"] * 2)
        return td.set("action", buffer)

    for batched in (None, 7):
        found, _ = run(fn if batched is None else _by_rows(fn), big_piece(), batched=batched)
        wanted = [2 * row[ACTION] for row in ted_rows(big_piece())]
        np.testing.assert_array_equal(found.batch.steps[ACTION], wanted)


def _by_rows(fn: Fn) -> Fn:
    kept = torch.zeros(7, 3)

    def of_block(td: Any) -> Any:
        for i in range(len(td)):
            kept[i] = fn(td[i])["action"]
        return td.set("action", kept[: len(td)])

    return of_block


def test_pieces_do_not_matter() -> None:
    """Whole, episode by episode, in blocks of any size."""
    piece = toy_piece([3, 1, 4, 2], first_episode=1, unknown_final=[3])
    for fn in (concatenated, branching, lambda td: td.set("n", torch.rand(2) + td["action"][0])):
        step = ready(fn, piece, seed=5)
        whole = step.apply(piece)
        assert_same_piece(joined([step.apply(one) for one in episodes_of(piece)]), whole)
        for size in (1, 300, 900):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(vectorize, "BLOCK", size)
                assert_same_piece(step.apply(piece), whole)


def test_states_travel_as_json() -> None:
    """Names with dots in them too."""
    piece = toy_piece([3, 2])

    def fn(td: Any) -> Any:
        td["a.b"], td["next", "a.b"] = td["action"][0], td["action"][0] + 0.5
        return td

    found, step = run(fn, piece)
    assert step.two_copies == ("a.b",)
    again = replace(step, run="rows", schema=None, two_copies=())
    again = again.with_state(json.loads(json.dumps(step.state())))
    assert (again, again.state()) == (step, step.state())
    assert_same_piece(again.apply(piece), found)
    assert step.notes() == ("a.b: stored before and after every action, for fn tells them apart",)


def test_what_it_says_of_itself() -> None:
    told = ready(branching, big_piece(), seed=3, on="transitions").describe()
    assert {**told, "sha256": ""} == {
        "step": "fn", "name": "branching", "sha256": "", "on": "transitions", "batched": None,
        "vectorize": "auto", "seed": 3,
    }  # fmt: skip
    assert len(told["sha256"]) == 64
    assert ready(branching, big_piece()).per_row
    assert not ready(in_place, big_piece()).per_row


def test_required_leaves_are_kept() -> None:
    """An action, a reward and flags that a function does not return stay, and it is said."""
    piece = big_piece()
    found, step = run(lambda td: {"x": td["action"][0] * 2}, piece)
    assert step.kept == ("next/reward", "next/terminated", "next/truncated", "action")
    for row, old in zip(ted_rows(found), ted_rows(piece), strict=True):
        assert row["x",] == 2 * old[ACTION][0]
        assert (row[ACTION] == old[ACTION]).all()
        assert row[REWARD] == old[REWARD]
    assert not found.batch.observations
    assert "kept as they were" in step.notes()[0]


def test_no_rows_at_all() -> None:
    """A step before it may have left out every episode of a piece."""
    piece = toy_piece([3, 2])
    empty = joined(episodes_of(piece)[:1])
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
        step = ready(concatenated_block if "batched" in calling else concatenated, piece, **calling)
        found = step.apply(empty)
        assert found.batch.transitions == 0
        assert found.batch.observations["obs",].shape == (0, 3)
        assert found.batch.observations["obs",].dtype == np.float64
    with pytest.raises(StepError, match="There is no row to try the function on"):
        replace(ready(in_place, piece), schema=None).settled(empty)


def concatenated_block(td: Any) -> Any:
    for root in (td, td["next"]):
        seen = root["observation"]
        root["obs"] = torch.cat([seen["position"], seen["velocity"].double().unsqueeze(-1)], -1)
    return td.exclude("observation", ("next", "observation"))


def test_batched_is_a_number_of_rows() -> None:
    with pytest.raises(UsageError, match="batched is 0; expected the rows of a block"):
        FunctionStep(in_place, batched=0)


def test_the_loop_itself() -> None:
    """What the tests above compare with."""
    piece = toy_piece([2, 1], first_episode=1)
    rows = ted_rows(piece)
    assert [row[POSITION].tolist() for row in rows] == [[1001, -1001], [1002, -1002], [2001, -2001]]
    assert [row[after(VELOCITY)].item() for row in rows] == [1002.5, 1003.5, 2002.5]
    assert [int(row["index",]) for row in rows] == [2, 3, 4]
    assert set(as_td(rows[0]).keys(include_nested=True, leaves_only=True)) == {
        key if len(key) > 1 else key[0] for key in rows[0]
    }
    assert probe_of(big_piece()).batch.transitions == 12
    assert RARE not in probe_of(big_piece()).batch.steps[ACTION]
    assert (big_piece().batch.steps[ACTION] == RARE).sum() == 1
