from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.preprocess.functions.vectorize import NotVectorized, compare, run_vmap


def table(rows: int = 5) -> Any:
    """Columns whose values are all different, and none zero."""
    numbers = np.arange(1, rows + 1)
    return {
        ("a",): numbers[:, None] * np.array([1.0, -0.5, 0.25]),
        ("n", "b"): numbers.astype(np.int16),
        ("n", "c"): numbers[:, None] * np.array([7.0, 9.0]),
        ("empty",): np.zeros((rows, 0), np.float32),
    }


def test_all_rows_as_if_each_alone() -> None:
    found = run_vmap(
        lambda td: {"x": td["a"] * td["a"].sum(), "n": {"d": td["n", "b"] + 1}}, table()
    )
    assert list(found.leaves) == [("x",), ("n", "d")]
    assert found.leaves["x",].tolist() == [
        [0.75 * k * k, -0.375 * k * k, 0.1875 * k * k] for k in range(1, 6)
    ]
    assert found.leaves["n", "d"].tolist() == [2, 3, 4, 5, 6]
    assert found.leaves["n", "d"].dtype == np.int16
    assert found.untouched == frozenset()


@pytest.mark.parametrize(
    ("fn", "untouched"),
    [
        (lambda td: td, {("a",), ("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: td.clone(False), {("a",), ("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: td.exclude("n"), {("a",), ("empty",)}),
        (lambda td: td.clone(), set()),
        (lambda td: td.set("a", td["a"] * 1), {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: td.set("a", td["a"][:2]), {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: td.set("a", td["a"].view(3, 1)), {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: td.set("a", td["a"].flip(0)), {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: (td["a"].add_(0), td)[1], {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: (td["a"][1:].mul_(2), td)[1], {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: (td["a"].detach().mul_(2), td)[1], {("n", "b"), ("n", "c"), ("empty",)}),
        (lambda td: {"a": td["n", "c"], ("n", "c"): td["a"]}, set()),
        (lambda td: {"a": td["a"], "other": td["a"]}, {("a",)}),
    ],
)  # fmt: skip
def test_what_is_untouched(fn: Any, untouched: set[Any]) -> None:
    given = table()
    made = run_vmap(fn, given)
    assert made.untouched == untouched - ({("empty",)} if ("empty",) not in made.leaves else set())
    original = table()
    for key in made.untouched:
        np.testing.assert_array_equal(made.leaves[key], original[key])
        np.testing.assert_array_equal(given[key], original[key])


def test_writes_into_what_it_gets() -> None:
    def fn(td: Any) -> Any:
        td["a"][0] = td["n", "b"]
        td["n", "c"].masked_fill_(td["n", "c"] > 20, -1)
        return td

    made = run_vmap(fn, table())
    assert made.leaves["a",].tolist() == [[k, -0.5 * k, 0.25 * k] for k in range(1, 6)]
    assert made.leaves["n", "c"].tolist() == [[7, 9], [14, 18], [-1, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda td: td if td["a"][0] > 2 else None, "it looks at values to decide what to do"),
        (lambda td: {"x": [1, 2][td["n", "b"]]}, "it looks at values to decide what to do"),
        (lambda td: {"x": td["a"][td["a"] > 0]}, "the shape of a result depends on values"),
        (lambda td: {"x": td["a"].unique()}, "the shape of a result depends on values"),
        (lambda td: {"x": np.sort(td["a"])}, "it leaves torch, for example for numpy"),
        (lambda td: {"x": td["a"].tolist()[0]}, "it leaves torch, for example for numpy"),
        (lambda _: {"x": torch.rand(2)}, "it draws random numbers"),
        (lambda td: {"x": torch.rand_like(td["a"])}, "it draws random numbers"),
        (lambda _: {"x": float(np.random.rand())}, "it draws random numbers"),  # noqa: NPY002
        (lambda td: {"x": td["nothing"]}, "torch.vmap refuses it: KeyError"),
        (lambda _: None, "torch.vmap refuses it: StepError"),
        (lambda td: {"x": td["a"].to("meta")}, "torch.vmap refuses it: StepError"),
    ],
)  # fmt: skip
def test_why_not(fn: Any, why: str) -> None:
    with pytest.raises(NotVectorized) as error:
        run_vmap(fn, table())
    assert str(error.value).startswith(why)


def test_a_block_whose_rows_have_different_shapes() -> None:
    with pytest.raises(NotVectorized, match="the shape of a result depends on values"):
        run_vmap(lambda td: {"x": torch.arange(3).repeat_interleave(td["n", "b"].long())}, table())


VALUE, SHAPE = "'x' has another value for many rows", "'x' has another dtype or shape for many rows"
NEAR = 1 + 2.0**-18
"""A rounding of float32, and none of float64."""


@pytest.mark.parametrize(
    ("rows", "many", "dtype", "message"),
    [
        ([0.5, 1.5], [0.5, 1.5], "f8", None),
        ([0.5, np.nan], [0.5, np.nan], "f8", None),
        ([np.inf, -np.inf], [np.inf, -np.inf], "f4", None),
        ([0.5, 0.0], [0.5, -0.0], "f8", None),
        ([0.1, 1.7], [0.1, np.nextafter(1.7, 2)], "f8", None),
        ([0.1, 1.7], [0.1, 1.7 * NEAR], "f8", VALUE),
        ([0.5, 1.5], [0.5, np.float32(1.5 * NEAR)], "f4", None),
        ([0.5, 1.5], [0.5, 1.5 * NEAR], "f8", None),  # float32 made float64
        ([0.5, 1.5], [0.5, 1.5002], "f4", VALUE),
        ([5.0, 6.0], [5.0, 7.0], "f8", VALUE),
        ([0.5, 1.5], [0.5, 1.502], "f2", None),
        ([0.5, 1.5], [0.5, 1.55], "f2", VALUE),
        ([100.0, 1e-9], [100.0, 2e-6], "f4", None),  # the terms of a sum that cancel
        ([100.0, 100.0, 1e-9], [100.0, 100.0, 0.1], "f4", VALUE),
        ([1e-9, 2e-9, 1e9], [1e-9, 2.1e-9, 1e9], "f4", VALUE),  # one large row hides no other
        ([0.5, 1.5], [0.5, np.nan], "f8", VALUE),
        ([0.5, np.nan], [0.5, 1.5], "f8", VALUE),
        ([0.5, np.inf], [0.5, -np.inf], "f8", VALUE),
        ([0.5, 1e308], [0.5, np.inf], "f8", VALUE),
        ([1 + 2j, 3j], [1 + 2j, 3j], "c16", None),
        ([1 + 2j, 3j], [1 + 2j, 3j * NEAR], "c8", None),
        ([1 + 2j, 3j], [1 + 2j, 3.5j], "c16", VALUE),
        ([True, False], [True, True], "?", VALUE),
        ([1, 10**15], [1, 10**15 + 1], "i8", VALUE),
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


@pytest.mark.parametrize(("rows", "many"), [([[0.5], [1.5]], [0.5, 1.5]), ([5, 7], [5.0, 7.0])])
def test_other_dtypes_and_shapes(rows: Any, many: Any) -> None:
    with pytest.raises(NotVectorized, match=SHAPE):
        compare({("x",): np.array(rows)}, {("x",): np.array(many)}, np.array([0, 1]))


def test_other_leaves() -> None:
    with pytest.raises(NotVectorized, match="it returns other leaves for many rows than for one"):
        compare({("x",): np.ones(1)}, {("y",): np.ones(1)}, np.array([0]))
