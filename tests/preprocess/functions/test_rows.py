from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions import rows as by_rows
from offline_data.preprocess.functions.rows import run_rows


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


def test_gradients_and_parameters() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64))

    def fn(td: Any) -> Any:
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            return {"x": td["a"] * weight, "w": weight}

    found = rows_of(fn)
    assert found["x",][1].tolist() == [4.0, -3.0, 2.5]
    assert found["w",].tolist() == [[2.0, 3.0, 5.0]] * 5


def test_a_schema_is_kept_to() -> None:
    """Its order too: columns of all pieces are alike."""
    schema = {("b",): ("int16", ()), ("a",): ("float64", (3,))}
    found = rows_of(lambda td: {"a": td["a"], "b": td["n", "b"]}, schema=schema)
    assert list(found) == [("b",), ("a",)]
    with pytest.raises(StepError, match=r"'b' as int32 \[\] for row 0, and as int16 \[\] before"):
        rows_of(lambda td: {"a": td["a"], "b": td["n", "b"].int()}, schema=schema)


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


def test_what_cannot_be_stored_is_said_of_the_first_row() -> None:
    with pytest.raises(StepError, match="'x' for row 0 as bfloat16, which cannot be stored"):
        rows_of(lambda td: {"x": td["a"].bfloat16()})
    with pytest.raises(StepError, match="a leaf 'next' for row 0; expected leaves below it"):
        rows_of(lambda td: {"next": td["a"]})


def test_few_tensors_are_kept() -> None:
    """Rows become tensors a few at a time, however many there are."""
    most = 0

    def fn(td: Any) -> Any:
        nonlocal most
        if td["n", "b"] % 100 == 0:
            most = max(most, sum(type(one) is torch.Tensor for one in gc.get_objects()))
        return td

    gc.collect()
    before = sum(type(one) is torch.Tensor for one in gc.get_objects())
    rows_of(fn, 400)
    assert most - before < 12 * by_rows._STRIP
