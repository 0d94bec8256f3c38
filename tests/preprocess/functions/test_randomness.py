from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.rows import mixed, own_randomness, same, states
from offline_data.testing.pieces import assert_same_piece, episodes_of, joined, toy_piece
from tests.preprocess.functions.loops import Fn, ready, run, ted_rows

PIECE = toy_piece([50] * 8)


def noisy(td: Any) -> Any:
    td["t"] = torch.rand(2)
    td["n"] = torch.tensor(np.random.rand(2))  # noqa: NPY002
    td["p"] = torch.tensor([random.random(), random.gauss(0, 1)])  # noqa: S311
    return td


def noisy_block(td: Any) -> Any:
    return td.set("t", torch.rand(len(td)) + float(np.random.rand()))  # noqa: NPY002


def noisy_observation(td: Any) -> Any:
    td["observation", "noise"] = torch.rand(1)
    return td


CALLINGS: list[tuple[Fn, dict[str, Any]]] = [
    (noisy, {}),
    (noisy_observation, {"on": "observations"}),
    (noisy_block, {"batched": 7}),
    (noisy_block, {"by": "episode"}),
]


def drawn(seed: int, fn: Fn = noisy, key: str = "t", **calling: Any) -> Any:
    return run(fn, PIECE, seed=seed, **calling)[0].batch.steps[key,]


@contextmanager
def untouched() -> Iterator[None]:
    """Assert that the caller's generators are as they were."""
    torch.manual_seed(11)
    np.random.seed(12)  # noqa: NPY002
    random.seed(13)
    before = states()
    expected = (torch.rand(3), np.random.rand(3), random.random())  # noqa: NPY002, S311
    torch.default_generator.set_state(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    random.setstate(before[2])
    yield
    assert torch.equal(torch.rand(3), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])  # noqa: NPY002
    assert random.random() == expected[2]  # noqa: S311


@pytest.mark.parametrize(("fn", "calling"), CALLINGS)
def test_same_seed_same_values(fn: Fn, calling: dict[str, Any]) -> None:
    first = run(fn, PIECE, seed=3, **calling)[0]
    torch.manual_seed(99)  # whatever the caller has drawn
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    assert_same_piece(run(fn, PIECE, seed=3, **calling)[0], first)


@pytest.mark.parametrize(("fn", "calling"), CALLINGS)
def test_other_seeds_other_values(fn: Fn, calling: dict[str, Any]) -> None:
    one, other = (ted_rows(run(fn, PIECE, seed=seed, **calling)[0]) for seed in (3, 4))
    key = ("observation", "noise") if calling.get("on") else ("t",)
    assert not any((a[key] == b[key]).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("key", ["t", "n", "p"])
def test_every_row_has_its_own(key: str) -> None:
    values = drawn(0, key=key)
    assert len(np.unique(values)) == values.size
    if key != "p":
        assert abs(values.mean() - 0.5) < 0.05
        assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.2
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.2


def test_rows_do_not_depend_on_what_else_is_there() -> None:
    """Rows of a piece in any company, in any order of pieces, and in the probe."""
    for fn, calling in CALLINGS:
        if calling.get("batched"):
            continue
        step = ready(fn, PIECE, seed=7, **calling)
        whole, alone = step.apply(PIECE), episodes_of(PIECE)
        parts = [step.apply(one) for one in reversed(alone)]
        assert_same_piece(joined(parts[::-1]), whole)


def test_each_observation_has_one() -> None:
    """The one after an action is the one before the next, and other episodes have others."""
    found, step = run(noisy_observation, PIECE, on="observations")
    noise = found.batch.observations["observation", "noise"]
    assert step.run == "rows"
    assert len(np.unique(noise)) == 8 * 51


def test_blocks_have_their_own() -> None:
    values = drawn(0, noisy_block, batched=7)
    assert len(np.unique(values)) == 400
    assert (drawn(0, noisy_block, batched=7) == values).all()
    assert (drawn(0, noisy_block, batched=8) != values).any()


@pytest.mark.parametrize(("fn", "calling"), CALLINGS)
def test_the_callers_generators_are_left_alone(fn: Fn, calling: dict[str, Any]) -> None:
    with untouched():
        run(fn, PIECE, **calling)
    with untouched():
        run(lambda td: td, PIECE, **calling)


@pytest.mark.parametrize("calling", [{}, {"batched": 7}, {"by": "episode"}])
def test_also_after_an_error(calling: dict[str, Any]) -> None:
    def fails(td: Any) -> Any:
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002, S311
        raise KeyError("no")

    with untouched(), pytest.raises(StepError):
        ready(fails, PIECE, **calling)


def test_who_drew_is_noticed() -> None:
    for draw in (
        lambda: torch.rand(1),
        lambda: np.random.rand(),  # noqa: NPY002
        lambda: random.random(),  # noqa: S311
        lambda: np.random.normal(),  # noqa: NPY002
        lambda: random.gauss(0, 1),
    ):
        with own_randomness():
            before = states()
            assert same(before, states())
            draw()
            assert not same(before, states())
        assert same(before, states())


def test_seeds_are_spread() -> None:
    """Neighbours and equal sums do not collide; any whole number will do."""
    values = {mixed(seed, number) for seed in range(100) for number in range(100)}
    assert len(values) == 10_000
    assert all(0 <= value < 2**64 for value in values)
    assert mixed(-1, 5) != mixed(1, 5)
    ones = [f"{mixed(0, n) ^ mixed(0, n + 1):b}".count("1") for n in range(1000)]
    assert 28 < sum(ones) / 1000 < 36
