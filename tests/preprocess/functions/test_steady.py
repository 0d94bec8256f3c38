"""Random numbers are drawn row by row, and a function that is not pure is said to be none."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.preprocess.functions.step import same_rows, some
from offline_data.testing.pieces import toy_piece
from tests.preprocess.functions.loops import Fn, big_piece, ready, run, ted_rows

RARELY = 1e-9
"""How often functions here do what the probe does not see."""


def rarely(condition: Callable[[], bool]) -> Fn:
    """Return a function that changes the action now and then."""

    def fn(td: Any) -> Any:
        return td.set("action", td["action"] * 0) if condition() else td

    return fn


def _caught() -> bool:
    try:
        drawn = torch.rand(1)
    except RuntimeError:
        drawn = torch.ones(1)
    return bool(drawn < RARELY)


DRAWING: dict[str, Callable[[], bool]] = {
    "random": lambda: random.random() < RARELY,  # noqa: S311
    "numpy": lambda: bool(np.random.rand() < RARELY),  # noqa: NPY002
    "torch": lambda: bool(torch.rand(1) < RARELY),
    "torch, caught": _caught,
    "torch, seeded": lambda: bool(torch.manual_seed(0) and torch.rand(1) < RARELY),
    "dropout": lambda: bool(torch.nn.functional.dropout(torch.ones(1), 1e-6) == 0),
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers(name: str) -> None:
    step = ready(rarely(DRAWING[name]), big_piece())
    assert (step.run, step.why, step.unsteady) == ("rows", "it draws random numbers", "")


def test_state_that_shows() -> None:
    """The last row, a counter, a generator of torch's."""
    before: list[Any] = []
    number = itertools.count(1)
    generator = torch.Generator()
    generator.manual_seed(0)

    def with_last(td: Any) -> Any:
        last = before.pop() if before else td["action"]
        before.append(td["action"].clone())
        return td.set("action", td["action"] - last)

    for fn in (
        with_last,
        lambda td: td.set("n", torch.tensor(next(number))),
        lambda td: td.set("n", torch.rand(1, generator=generator)),
        lambda td: td.set("n", torch.tensor(random.SystemRandom().random())),
    ):
        for vectorize in (True, False):
            step = ready(fn, big_piece(), vectorize=vectorize)
            assert step.run == "rows"
            assert step.unsteady == "it gives something else when it is called again"
            assert step.why == (step.unsteady if vectorize else "asked for")
            assert "may depend on the order of calls" in step.notes()[0]


def test_state_runs_in_the_order_of_rows() -> None:
    """Nothing is promised of it, but that rows are not mixed: here each sees the one before."""
    before: list[Any] = []

    def fn(td: Any) -> Any:
        last = before.pop() if before else td["index"] * 0
        before.append(td["index"].clone())
        return td.set("last", last)

    found, _ = run(fn, big_piece())
    assert [int(row["last",]) for row in ted_rows(found)][1:] == list(range(239))


def test_blocks_too() -> None:
    number = itertools.count()
    step = ready(
        lambda td: td.set("n", torch.full((len(td),), next(number))), big_piece(), batched=5
    )
    assert step.run == "blocks"
    assert step.unsteady == "it gives something else when it is called again"
    assert ready(lambda td: td.set("n", torch.rand(len(td))), big_piece(), batched=5).unsteady == ""


def test_rows_are_tried_again_the_last_first() -> None:
    assert some(9).tolist() == [8, 5, 2, 0]
    assert some(2).tolist() == [1, 0]
    seen: list[int] = []

    def fn(td: Any) -> Any:
        seen.append(int(td["index"]))
        return td

    ready(fn, toy_piece([9]), vectorize=False)
    assert seen == [*range(9), 8, 5, 2, 0]


def test_same_rows() -> None:
    table: Any = {("x",): np.arange(9.0)}
    for key, values, same in (
        ("x", [8, 5, 2, 0], True),
        ("x", [8, 5, 2, 1], False),
        ("y", [8], False),
    ):
        assert same_rows(table, {(key,): np.array(values, float)}, some(9)) is same
