from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, tensorclass

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.results import (
    STORABLE,
    conform,
    described,
    leaves_of,
    schema_of,
    to_array,
)


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


def test_all_storable_types_are_arrays() -> None:
    for dtype in STORABLE:
        name = str(dtype).removeprefix("torch.")
        array = to_array(("x",), torch.ones(2).to(dtype), here)
        assert (array.dtype.name, array.tolist()) == (name, [1, 1])
    assert len(STORABLE) == 14


def test_schemas() -> None:
    leaves = leaves_of({"a": torch.ones(3, 2), "n": {"b": torch.ones(3, dtype=torch.int8)}}, here)
    assert schema_of(leaves, here) == {("a",): ("float32", (3, 2)), ("n", "b"): ("int8", (3,))}
    assert described(leaves, 3) == {("a",): ("float32", (2,)), ("n", "b"): ("int8", ())}
    conform(described(leaves), described(dict(reversed(leaves.items()))), here)


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


def test_values_are_read_as_they_are() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert to_array(("x",), x.conj(), here).tolist() == [1 - 2j, 3 + 1j]
    assert to_array(("x",), x.conj().imag, here).tolist() == [-2.0, 1.0]
    weights = torch.nn.Parameter(torch.tensor([0.5]))
    assert to_array(("x",), weights * 2, here).tolist() == [1.0]
    assert to_array(("x",), torch.tensor(3).expand(2), here).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, device="meta"), "'x' for row 5 on device meta: its values cannot be read"),
        (torch.ones(2).to_sparse(), "'x' for row 5 on device cpu, sparse_coo: its values cannot"),
    ],
)
def test_what_has_no_values(value: Any, message: str) -> None:
    with pytest.raises(StepError, match=message):
        to_array(("x",), value, here)
