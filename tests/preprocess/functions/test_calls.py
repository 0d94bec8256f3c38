"""What a function gets, what it may return, and what it may not leave behind."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, tensorclass

from offline_data.errors import StepError
from offline_data.preprocess.functions.rows import (
    conform,
    described,
    leaves_of,
    run_rows,
    schema_of,
    states,
    user_errors,
)
from offline_data.testing.pieces import assert_same_piece, episodes_of, joined, toy_piece
from tests.preprocess.functions.loops import Fn, big_piece, ready, run, ted_rows


def table(rows: int) -> Any:
    """Columns whose values are all different, and none zero."""
    numbers = np.arange(1, rows + 1)
    return {
        ("a",): numbers[:, None] * np.array([1.0, -0.5, 0.25]),
        ("n", "b"): numbers.astype(np.int16),
        ("n", "c", "d"): numbers % 2 == 0,
        ("empty",): np.zeros((rows, 0), np.float32),
    }


def rows_of(fn: Any, rows: int = 5, **kwargs: Any) -> Any:
    return run_rows(fn, table(rows), np.arange(rows), lambda row: f"row {row}", 0, **kwargs)


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 100])
def test_every_row_once_in_order(rows: int) -> None:
    seen: list[float] = []

    def fn(td: Any) -> Any:
        assert isinstance(td, TensorDict)
        assert (td.batch_size, td.device) == (torch.Size(()), torch.device("cpu"))
        assert set(td.keys(True, True)) == {"a", ("n", "b"), ("n", "c", "d"), "empty"}
        seen.append(td["a"][0].item())
        return {"x": td["a"] * td["n", "b"], "n": {"c": td["n", "c"]}, "empty": td["empty"]}

    found = rows_of(fn, rows)
    given = table(rows)
    assert seen == list(range(1, rows + 1))
    assert list(found) == [("x",), ("n", "c", "d"), ("empty",)]
    assert found["x",].tolist() == [
        (a * b).tolist() for a, b in zip(given["a",], given["n", "b"], strict=True)
    ]
    assert found["n", "c", "d"].tolist() == given["n", "c", "d"].tolist()
    assert (found["n", "c", "d"].dtype, found["empty",].shape) == (np.bool_, (rows, 0))


def test_results_are_copied_at_once() -> None:
    buffer, kept = torch.zeros(3), []

    def fn(td: Any) -> Any:
        buffer.copy_(td["a"])
        kept.append(td)
        if len(kept) > 1:
            kept[-2]["n", "b"].fill_(-7)  # the row before, whose result is there already
        return {"x": buffer, "b": td["n", "b"]}

    found = rows_of(fn, 40)
    assert found["x",].tolist() == table(40)["a",].tolist()
    assert found["b",].tolist() == list(range(1, 41))


def _at(number: int, other: Any) -> Any:
    """Return a function that returns something else for one row."""
    return lambda td: other(td) if td["n", "b"] == number else {"a": td["a"]}


@pytest.mark.parametrize("row", [1, 31, 32, 39])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda td: {"a": td["a"].float()}, r"'a' as float32 \[3\] for {}, and as float64 \[3\]"),
        (
            lambda td: {"a": td["a"][:2]},
            r"'a' as float64 \[2\] for {}, and as float64 \[3\] before",
        ),
        (lambda td: {"a": td["a"][None]}, r"'a' as float64 \[1, 3\] for {}, and"),
        (lambda td: {"a": td["a"][0]}, r"'a' as float64 \[\] for {}, and"),
        (lambda td: {"b": td["a"]}, "for {} lacks a and has, unlike the first one, b"),
        (lambda td: {"a": td["a"], "b": 1}, "for {} has, unlike the first one, b"),
        (lambda _: None, "returned None .* for {}; expected a TensorDict"),
        (lambda _: {"a": "text"}, "'a' for {} as str"),
        (lambda td: {"a": td["a"].to("meta")}, "'a' for {} on device meta: its values"),
        (lambda td: {"a": td["a"].to_sparse()}, "'a' for {} on device cpu, sparse_coo: its"),
        (lambda _: {"a": [].pop()}, "failed on {}: IndexError: pop from empty list"),
    ],
)
def test_a_later_row_that_is_otherwise(row: int, other: Any, message: str) -> None:
    with pytest.raises(StepError, match=message.format(f"row {row}")):
        rows_of(_at(row + 1, other), 40)


def failure(fn: Any) -> StepError:
    with pytest.raises(StepError) as error, user_errors(lambda: "row 5 (episode 1, step 2)"):
        fn(3)
    return error.value


def inner(x: int) -> float:
    return 1 / (x - 3)


def test_own_traceback() -> None:
    """The row, what was raised, and the function's frames without those of this package."""
    error = failure(lambda x: inner(x) + 1)
    first, *lines = error.message.split("\n")
    assert first == (
        "The function failed on row 5 (episode 1, step 2): ZeroDivisionError: division by zero"
    )
    assert lines[0] == "Traceback (most recent call last):"
    assert sum("in inner" in line for line in lines) == 1
    assert sum("in <lambda>" in line for line in lines) == 1
    assert sum(line.lstrip().startswith("File ") for line in lines) == 2
    assert "calling.py" not in error.message.replace("test_calling.py", "")
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.code == "step"


def test_causes_are_said_too() -> None:
    def fn(x: int) -> float:
        try:
            return inner(x)
        except ZeroDivisionError as error:
            raise KeyError("no") from error

    message = failure(fn).message
    assert message.startswith("The function failed on row 5 (episode 1, step 2): KeyError: 'no'\n")
    assert "ZeroDivisionError: division by zero" in message
    assert "direct cause" in message


def test_a_function_cannot_end_the_program() -> None:
    assert ": SystemExit: 7\n" in failure(lambda _: sys.exit(7)).message
    with pytest.raises(KeyboardInterrupt), user_errors(lambda: "row 5"):
        _interrupted(3)


def _interrupted(_: int) -> None:
    raise KeyboardInterrupt


def test_messages_of_several_lines() -> None:
    """The first line says what it is, also where the message is empty or long."""

    def fn(x: int) -> None:
        raise ValueError(f"first {x}\nsecond")

    assert failure(fn).message.split("\n")[0].endswith("step 2): ValueError: first 3")

    def bare(_: int) -> None:
        raise RuntimeError

    assert failure(bare).message.split("\n")[0].endswith("step 2): RuntimeError")


def here() -> str:
    return "row 5"


def plain(result: Any) -> dict[Any, Any]:
    return {key: (str(v.dtype), v.tolist()) for key, v in leaves_of(result, here).items()}


@tensorclass
class Made:
    """A user's own container."""

    action: torch.Tensor
    inner: Any = None


def test_tensordicts_and_mappings() -> None:
    td = TensorDict({"a": torch.tensor([1, 2]), "n": {"b": torch.tensor(0.5), "e": {}}})
    expected = {("a",): ("torch.int64", [1, 2]), ("n", "b"): ("torch.float32", 0.5)}
    assert plain(td) == expected
    assert plain({"a": torch.tensor([1, 2]), "n": td["n"]}) == expected
    assert plain({"a": torch.tensor([1, 2]), ("n", "b"): 0.5}) == expected
    assert plain({"a": np.array([1, 2]), "n": {"b": np.float32(0.5)}}) == expected
    assert plain(Made(action=torch.tensor([1]), inner=td)) == {  # type: ignore[call-arg]
        ("action",): ("torch.int64", [1]),
        **{("inner", *key): value for key, value in expected.items()},
    }
    stack = LazyStackedTensorDict(
        TensorDict({"a": torch.ones(1)}), TensorDict({"a": torch.ones(1)})
    )
    assert plain(stack) == {("a",): ("torch.float32", [[1.0], [1.0]])}
    assert plain({"m": TensorDict({"a": torch.nn.Parameter(torch.ones(1))})}) == {
        ("m", "a"): ("torch.float32", [1.0])
    }


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        (True, "bool", True),
        (3, "int64", 3),
        (2.5, "float32", 2.5),
        (1 + 2j, "complex64", 1 + 2j),
        (np.float64(2.5), "float64", 2.5),
        (np.uint16(9), "uint16", 9),
        (np.bool_(1), "bool", True),
        (np.array([[1.5]]), "float64", [[1.5]]),
        (np.broadcast_to(np.int8(4), (2,)), "int8", [4, 4]),
        (np.arange(6)[::-2], "int64", [5, 3, 1]),
    ],
)
def test_numbers_and_arrays(value: Any, dtype: str, found: Any) -> None:
    assert plain({"x": value}) == {("x",): (f"torch.{dtype}", found)}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"returned None \(is a `return` missing\?\) for row 5; expected a TensorDict"),
        (torch.ones(2), "returned a Tensor for row 5"),
        ([TensorDict({})], "returned a list for row 5"),
        ((1, 2), "returned a tuple for row 5"),
        (3.5, "returned a float for row 5"),
        ({}, "a TensorDict without leaves for row 5"),
        (TensorDict({"a": TensorDict({})}), "a TensorDict without leaves for row 5"),
        ({"a": "text"}, "'a' for row 5 as str; expected a tensor"),
        ({"a": None}, "'a' for row 5 as NoneType; expected a tensor"),
        ({"n": {"a": [1, 2]}}, "'n/a' for row 5 as list; expected a tensor"),
        ({"a": np.array(["x"])}, "'a' for row 5 as ndarray; expected a tensor"),
        ({"a": np.array([object()])}, "'a' for row 5 as ndarray; expected a tensor"),
        ({"a": np.datetime64("2020-01-01")}, "'a' for row 5 as datetime64; expected a tensor"),
        ({"a": 2**70}, "'a' for row 5 as int; expected a tensor"),
        (TensorDict({"n": {"s": "text"}}), "'n/s' for row 5 as NonTensorData; expected a tensor"),
        (TensorDict({"s": NonTensorData([1])}), "'s' for row 5 as NonTensorData"),
        ({3: torch.ones(1)}, "for row 5 has a leaf named 3; expected text"),
        ({(): torch.ones(1)}, r"for row 5 has a leaf named \(\); expected text"),
        ({("a", 1): torch.ones(1)}, r"for row 5 has a leaf named \('a', 1\); expected text"),
    ],
)
def test_what_is_no_result(result: Any, message: str) -> None:
    with pytest.raises(StepError, match=message):
        leaves_of(result, here)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"a/b": 1}, "named 'a/b'.*cannot be a file name"),
        ({"": 1}, "named ''.*cannot be a file name"),
        ({"a": {"..": 1}}, "named '..'.*cannot be a file name"),
        ({"a": 1, ("a", "b"): 2}, "a leaf 'a/b' for row 5; expected a leaf 'a'"),
        ({("a", "b"): 1, ("a", "b", "c"): 2}, "a leaf 'a/b/c' for row 5; expected a leaf 'b'"),
        ({"next": 1}, "a leaf 'next' for row 5; expected leaves below it"),
        ({"index": {"x": 1}}, "a leaf 'index/x' for row 5; expected a leaf 'index'"),
        ({"episode": {"x": 1}}, "a leaf 'episode/x' for row 5; expected a leaf 'episode'"),
        ({"x": torch.ones(1, dtype=torch.bfloat16)}, "'x' for row 5 as bfloat16, which cannot be"),
        ({"x": torch.ones(1).to(torch.float8_e4m3fn)}, "'x' for row 5 as float8_e4m3fn, which"),
    ],
)
def test_what_no_leaf_can_be(result: Any, message: str) -> None:
    with pytest.raises(StepError, match=message) as error:
        schema_of(leaves_of(result, here), here)
    assert error.value.hint


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"b": 1}, "for row 5 lacks a"),
        ({"a": 1.0, "b": 1, "c": 2, "n": {"d": 3}}, "for row 5 has, unlike the first one, c, n/d"),
        ({"b": 1, "c": 2}, "for row 5 lacks a and has, unlike the first one, c"),
        ({"a": 1, "b": 1}, r"'a' as int64 \[\] for row 5, and as float32 \[\] before"),
        (
            {"a": 1.0, "b": torch.ones(1, dtype=torch.int64)},
            r"'b' as int64 \[1\] for row 5, and as i",
        ),
    ],
)
def test_what_differs_from_the_first(found: Any, message: str) -> None:
    first = described(leaves_of({"a": 1.0, "b": 1}, here))
    with pytest.raises(StepError, match=message):
        conform(first, described(leaves_of(found, here)), here)


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
