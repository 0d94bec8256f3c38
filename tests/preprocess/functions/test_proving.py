"""Functions that are none of their row alone are never run on many at once."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.preprocess.functions.proving import are_same, fastest, some
from offline_data.preprocess.functions.ted import to_ted
from offline_data.testing.pieces import toy_piece
from tests.preprocess.functions.loops import RARE, Fn, big_piece, ready, run, ted_rows

RARELY = 1e-9
"""How often functions here do what the probe does not see."""


def rarely(condition: Callable[[], bool]) -> Fn:
    """Return a function that changes the action now and then."""

    def fn(td: Any) -> Any:
        return td.set("action", td["action"] * 0) if condition() else td

    return fn


def _restoring() -> bool:
    before = random.getstate()
    drawn = random.random()  # noqa: S311
    random.setstate(before)
    return drawn < RARELY


def _caught() -> bool:
    try:
        drawn = torch.rand(1)
    except RuntimeError:
        drawn = torch.ones(1)
    return bool(drawn < RARELY)


DRAWING: dict[str, Callable[[], bool]] = {
    "random": lambda: random.random() < RARELY,  # noqa: S311
    "random, put back": _restoring,
    "numpy": lambda: bool(np.random.rand() < RARELY),  # noqa: NPY002
    "numpy, a new one": lambda: bool(np.random.default_rng().random() < RARELY),
    "torch": lambda: bool(torch.rand(1) < RARELY),
    "torch, caught": _caught,
    "torch, seeded": lambda: bool(torch.manual_seed(0) and torch.rand(1) < RARELY),
    "Random": lambda: random.Random().random() < RARELY,  # noqa: S311
    "urandom": lambda: os.urandom(4) == b"\0\0\0\0",
    "secrets": lambda: secrets.token_bytes(4) == b"\0\0\0\0",
    "uuid": lambda: uuid.uuid4().int % 10**9 == 1,
    "dropout": lambda: bool(torch.nn.functional.dropout(torch.ones(1), 1e-6) == 0),
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers(name: str) -> None:
    step = ready(rarely(DRAWING[name]), big_piece())
    assert (step.run, step.why, step.unsteady) == ("rows", "it draws random numbers", "")


@pytest.mark.parametrize(
    "condition",
    [
        lambda: time.time() % 1000 < RARELY,
        lambda: time.perf_counter_ns() % 10**9 == 1,
        lambda: datetime.now().microsecond < 0,
    ],
)
def test_time(condition: Callable[[], bool]) -> None:
    step = ready(rarely(condition), big_piece())
    assert (step.run, step.why) == ("rows", "it asks for the time")


def test_threads() -> None:
    """In another one, nobody notices that an error was caught."""

    def fn(td: Any) -> Any:
        found = []

        def look() -> None:
            with suppress(RuntimeError):
                found.append(bool(td["action"][0] == RARE))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return td.set("action", td["action"] * 0) if any(found) else td

    step = ready(fn, big_piece())
    assert (step.run, step.why) == ("rows", "it starts threads")


def _counted() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


class Holder:
    """Keeps something deep inside."""

    def __init__(self, what: Any) -> None:
        self.inner = {"deep": [what]}

    def __call__(self, td: Any) -> Any:
        return td.set("x", torch.tensor(self.inner["deep"][0].random() < RARELY))


class Counting:
    """Counts in the class, not in the object."""

    calls: list[int] = []  # noqa: RUF012

    def __call__(self, td: Any) -> Any:
        self.calls.append(1)
        return td.set("x", torch.tensor(len(self.calls) == 10**6))


NUMBER = 0


def in_a_global(td: Any) -> Any:
    global NUMBER
    NUMBER += 1
    return td.set("x", torch.tensor(NUMBER == 10**6))


def in_a_default(td: Any, seen: list[Any] = []) -> Any:  # noqa: B006
    seen.append(1)
    return td.set("x", torch.tensor(len(seen) == 10**6))


def with_state() -> dict[str, Fn]:
    """Return functions that change what they refer to, and whose results seldom show it."""
    cell, number, generator = [0], itertools.count(), _counted()
    kept = torch.zeros(1)

    def in_a_list(td: Any) -> Any:
        cell[0] += 1
        return td.set("x", torch.tensor(cell[0] == 10**6))

    def in_a_tensor(td: Any) -> Any:
        kept.add_(1)
        return td.set("x", kept[0] == 10**6)

    def in_itself(td: Any) -> Any:
        in_itself.calls = getattr(in_itself, "calls", 0) + 1  # type: ignore[attr-defined]
        return td.set("x", torch.tensor(in_itself.calls == 10**6))  # type: ignore[attr-defined]

    return {
        "list": in_a_list,
        "tensor": in_a_tensor,
        "attribute": in_itself,
        "global": in_a_global,
        "default": in_a_default,
        "class": Counting(),
        "count": rarely(lambda: next(number) == 10**6),
        "generator": rarely(lambda: next(generator) == 10**6),
        "numpy's Generator": Holder(np.random.default_rng(0)),
        "numpy's RandomState": Holder(np.random.RandomState(0)),
        "Random": Holder(random.Random(0)),  # noqa: S311
        "bound method": Holder(np.random.default_rng(0)).__call__,
    }


@pytest.mark.parametrize("name", with_state())
def test_state_that_seldom_shows(name: str) -> None:
    step = ready(with_state()[name], big_piece())
    assert (step.run, step.why) == ("rows", "it changes what it refers to")
    assert step.unsteady == step.why
    (note,) = step.notes()
    assert "may depend on the order of calls" in note
    assert note.endswith(step.why)


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


def test_blocks_are_watched_too() -> None:
    number = itertools.count()
    step = ready(
        lambda td: td.set("n", torch.full((len(td),), next(number))), big_piece(), batched=5
    )
    assert (step.run, step.unsteady) == (
        "blocks",
        "it gives something else when it is called again",
    )
    assert ready(lambda td: td.set("n", torch.rand(len(td))), big_piece(), batched=5).unsteady == ""


def test_what_is_kept_from_the_first_call() -> None:
    """A list of names, made once, is nothing; data are, for then it matters which row comes first."""

    class Lazy:
        def __init__(self, keep: Callable[[Any], Any]) -> None:
            self.keep = keep

        def __call__(self, td: Any) -> Any:
            if not hasattr(self, "kept"):
                self.kept = self.keep(td)
            return td

    assert ready(Lazy(lambda td: sorted(td.keys())), big_piece()).unsteady == ""
    assert ready(Lazy(lambda td: sorted(td.keys())), big_piece()).run == "vmap"
    for keep in (lambda td: td["action"].clone(), lambda td: {"a": td["action"].numpy().copy()}):
        step = ready(Lazy(keep), big_piece())
        assert (step.run, step.unsteady) == ("rows", "it changes what it refers to")


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
        assert are_same(table, {(key,): np.array(values, float)}, some(9)) is same


def test_what_is_found() -> None:
    table = to_ted(toy_piece([5]))
    rows: Any = {("x",): table["action",][:, 0] * 2}
    found = fastest(lambda td: {"x": td["action"][0] * 2}, dict(table), rows)
    assert (found.run, found.why, found.checked) == ("vmap", "", 4)
    found = fastest(lambda td: {"x": td["action"][0] * 3}, dict(table), rows)
    assert (found.run, found.why) == ("rows", "'x' has another value for many rows at once")
    found = fastest(lambda td: {"y": td["action"][0] * 2}, dict(table), rows)
    assert found.why == "it returns other leaves for many rows than for one"
    found = fastest(lambda td: {"x": td["action"][:1] * 2}, dict(table), rows)
    assert found.why == "'x' has another dtype or shape for many rows at once"
