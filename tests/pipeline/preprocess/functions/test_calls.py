"""What a function gets, what it may return, and what it may not leave behind."""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from offline_data.base.errors import StepError
from offline_data.testing.chunks import assert_same_chunk, episodes_of, join_chunks, toy_chunk
from tests.pipeline.preprocess.functions.loops import Fn, big_chunk, ready, run, ted_rows

ONE = toy_chunk([1])


def plain(result: Any) -> dict[Any, Any]:
    """Return the leaves of a result as they are stored, but for those that every row has."""
    found = run(lambda _: result, ONE)[0].batch
    kept = {("next", "reward"), ("next", "terminated"), ("next", "truncated"), ("action",)}
    return {
        key: (str(column.dtype), column[0].tolist())
        for key, column in found.steps.items()
        if key not in kept
    }


@tensorclass
class Made:
    """A user's own container."""

    a: torch.Tensor
    n: Any = None


def test_tensordicts_and_mappings() -> None:
    inner = TensorDict({"b": torch.tensor(0.5), "e": {}})
    expected = {("a",): ("int64", [1, 2]), ("n", "b"): ("float32", 0.5)}
    for result in (
        TensorDict({"a": torch.tensor([1, 2]), "n": inner}),
        {"a": torch.tensor([1, 2]), "n": inner},
        {"a": torch.tensor([1, 2]), ("n", "b"): 0.5},
        {"a": np.array([1, 2]), "n": {"b": np.float32(0.5)}},
        Made(a=torch.tensor([1, 2]), n=inner),  # type: ignore[call-arg]
        {"a": torch.nn.Parameter(torch.tensor([1, 2]), requires_grad=False), "n": inner},
    ):
        assert plain(result) == expected
    one = TensorDict({"a": torch.ones(1)})
    assert plain(LazyStackedTensorDict(one, one)) == {("a",): ("float32", [[1.0], [1.0]])}


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        (True, "bool", True),
        (3, "int64", 3),
        (2.5, "float32", 2.5),
        (1 + 2j, "complex64", 1 + 2j),
        (np.float64(2.5), "float64", 2.5),
        (np.uint16(9), "uint16", 9),
        (np.broadcast_to(np.int8(4), (2,)), "int8", [4, 4]),
        (np.arange(6)[::-2], "int64", [5, 3, 1]),
    ],
)
def test_numbers_and_arrays(value: Any, dtype: str, found: Any) -> None:
    assert plain({"x": value}) == {("x",): (dtype, found)}


def failure(fn: Fn) -> StepError:
    with pytest.raises(StepError) as error:
        run(fn, ONE)
    return error.value


def inner(td: Any) -> float:
    return 1 / (len(td.batch_size))


def test_own_traceback() -> None:
    """The row, what was raised, and the function's frames without those of this package."""
    error = failure(lambda td: inner(td) + 1)
    first, *lines = error.message.split("\n")
    assert first == (
        "The function failed on row 0 (episode 0, step 0): ZeroDivisionError: division by zero"
    )
    assert lines[0] == "Traceback (most recent call last):"
    assert sum("in inner" in line for line in lines) == 1
    assert sum("in <lambda>" in line for line in lines) == 1
    assert sum(line.lstrip().startswith("File ") for line in lines) == 2
    assert isinstance(error.__cause__, ZeroDivisionError)

    def caught(td: Any) -> float:
        try:
            return inner(td)
        except ZeroDivisionError as cause:
            raise KeyError("first line\nsecond") from cause

    message = failure(caught).message
    assert "ZeroDivisionError: division by zero" in message
    assert "direct cause" in message

    def several_lines(_: Any) -> None:
        raise ValueError("first\nsecond")

    assert failure(several_lines).message.split("\n")[0].endswith("step 0): ValueError: first")
    assert ": SystemExit: 7\n" in failure(lambda _: sys.exit(7)).message


def test_an_interrupt_stays_one() -> None:
    def fn(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fn, ONE)


CHUNK = toy_chunk([20] * 5)


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


def states() -> list[Any]:
    """Return what the three global generators will draw next."""
    kind, numbers, *rest = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), kind, list(numbers), rest, random.getstate()]


@pytest.mark.parametrize(("fn", "calling"), CALLINGS)
def test_random_numbers_depend_on_the_seed_alone(fn: Fn, calling: dict[str, Any]) -> None:
    first = run(fn, CHUNK, seed=3, **calling)[0]
    torch.manual_seed(99)  # whatever the caller has drawn
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    before = states()
    assert_same_chunk(run(fn, CHUNK, seed=3, **calling)[0], first)
    assert states() == before, "the caller's generators are as they were"
    one, other = (ted_rows(chunk) for chunk in (first, run(fn, CHUNK, seed=4, **calling)[0]))
    key = ("observation", "noise") if calling.get("on") else ("t",)
    assert not any((a[key] == b[key]).any() for a, b in zip(one, other, strict=True))


def test_every_row_has_its_own() -> None:
    steps: Any = run(noisy, CHUNK)[0].batch.steps
    for key in ("t", "n", "p"):
        values = steps[key,]
        assert len(np.unique(values)) == values.size
        assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.3


def test_rows_do_not_depend_on_what_else_is_there() -> None:
    """Rows of a chunk in any company, in any order of chunks, and in the probe."""
    for fn, calling in CALLINGS:
        if not calling.get("batched"):
            step = ready(fn, CHUNK, seed=7, **calling)
            parts = [step.apply(one) for one in reversed(episodes_of(CHUNK))]
            assert_same_chunk(join_chunks(parts[::-1]), step.apply(CHUNK))


def test_observations_and_blocks_have_their_own() -> None:
    found, step = run(noisy_observation, CHUNK, on="observations")
    assert step.run == "rows"
    assert len(np.unique(found.batch.observations["observation", "noise"])) == 5 * 21
    sizes = [run(noisy_block, CHUNK, batched=size)[0].batch.steps["t",] for size in (7, 8)]
    assert len(np.unique(sizes[0])) == 100
    assert (sizes[0] != sizes[1]).any()


RARELY = 1e-9
"""How often functions here do what the probe does not see."""


def _caught() -> bool:
    try:
        drawn = torch.rand(1)
    except RuntimeError:
        drawn = torch.ones(1)
    return bool(drawn < RARELY)


@pytest.mark.parametrize(
    "condition",
    [
        lambda: random.random() < RARELY,  # noqa: S311
        lambda: bool(np.random.rand() < RARELY),  # noqa: NPY002
        lambda: bool(torch.rand(1) < RARELY),
        _caught,
        lambda: bool(torch.manual_seed(0) and torch.rand(1) < RARELY),
    ],
    ids=["random", "numpy", "torch", "torch, caught", "torch, seeded"],
)
def test_random_numbers_are_found(condition: Any) -> None:
    step = ready(lambda td: td.set("action", td["action"] * 0) if condition() else td, big_chunk())
    assert (step.run, step.why, step.unsteady) == ("rows", "it draws random numbers", "")


def test_state_that_shows() -> None:
    """A counter, a generator of torch's."""
    number, generator = itertools.count(1), torch.Generator()
    for fn in (
        lambda td: td.set("n", torch.tensor(next(number))),
        lambda td: td.set("n", torch.rand(1, generator=generator)),
    ):
        for vectorize in (True, False):
            step = ready(fn, big_chunk(), vectorize=vectorize)
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

    found, _ = run(fn, big_chunk())
    assert [int(row["last",]) for row in ted_rows(found)][1:] == list(range(111))
