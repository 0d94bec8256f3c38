"""What is called exact is: measured on values of all kinds, many at once and one at a time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from offline_data.preprocess.functions.rounding import Rounding

SPECIAL = [
    0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 127.0, 128.0, 255.0, 256.0, 300.0, -129.0, 32768.0, 65536.0,
    2.0**31, -(2.0**31) - 512, 2.0**63, -(2.0**63), 1e20, math.inf, -math.inf, math.nan, 1e-40, 1e-45,
    -1e-45, 3.4e38, 65504.0, 1e-8, 1 / 3, math.pi,
]  # fmt: skip

EXACT: dict[str, Any] = {
    "arithmetic": lambda x, y: (x + y, x - y, x * y, x / y, -x, 2 - x, x * 3 + 1, 1 / x),
    "of one": lambda x, _: (x.abs(), x.sqrt(), x.sign(), x.reciprocal(), x.relu()),
    "whole": lambda x, _: (x.floor(), x.ceil(), x.round(), x.trunc()),
    "limits": lambda x, y: (x.clamp(-1, 1), x.clamp(min=0.25), torch.maximum(x, y), x.nan_to_num()),
    "choices": lambda x, y: (torch.where(x > y, x, y), x.masked_fill(y > 1, 3), torch.copysign(x, y)),
    "comparisons": lambda x, y: (x > y, x == y, x.isnan(), x.isfinite(), (x > 0) & (y > 0)),
    "shapes": lambda x, y: (torch.cat([x, y]), torch.stack([x, y]), x.flip(0), x[None], x.expand(2, 1)),
    "to whole numbers": lambda x, _: (x.to(torch.uint8), x.to(torch.int8), x.int(), x.long(), x.bool()),
    "to other floats": lambda x, _: (x.half(), x.float(), x.double(), x.bfloat16()),
    "whole numbers": lambda x, y: (x.int() * 7 + y.int(), x.long() & 5, x.bool().sum(), x.int() << 2),
    "sorted": lambda x, y: (torch.cat([x, y]).sort().values, torch.cat([x, y]).amax(), x.argmax()),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", EXACT)
def test_exact_is_exact(name: str, dtype: torch.dtype) -> None:
    """But for the sign of a zero and the bits of a NaN, of which nothing is promised."""
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL))).to(dtype)
    x, y = pairs[:, :1].contiguous(), pairs[:, 1:].contiguous()
    rounding = Rounding()
    with rounding:
        many = torch.vmap(EXACT[name])(x, y)
    assert (rounding.found, rounding.unequal) == (set(), set())
    alone = [EXACT[name](a.clone(), b.clone()) for a, b in zip(x, y, strict=True)]
    for i, found in enumerate(many):
        expected = torch.stack([one[i] for one in alone])
        assert found.dtype == expected.dtype
        assert ((found == expected) | (found.isnan() & expected.isnan())).all(), (name, i)


ROUNDED: dict[str, Any] = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "exp": lambda x: x.exp(),
    "sigmoid": lambda x: x.sigmoid(),
    "pow": lambda x: x**2.5,
    "mm": lambda x: x.reshape(1, 4) @ torch.ones(4, 2),
    "add": lambda x: torch.add(x, x, alpha=0.3),
    "round": lambda x: torch.round(x, decimals=2),
    "div": lambda x: torch.div(x, 3.0, rounding_mode="floor"),
    "remainder": lambda x: x % 3.0,
    "mul": lambda x: torch.complex(x, x) * 1j,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "scatter": lambda x: x.scatter(0, torch.zeros(1, dtype=torch.int64), 1.5, reduce="add"),
    "cumsum": lambda x: x.cumsum(0),
    "var": lambda x: x.var(),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_looked_at_closely(name: str) -> None:
    rounding = Rounding()
    with rounding:
        ROUNDED[name](torch.arange(4.0))
    assert name in rounding.found
    assert not rounding.unequal


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: x % (x + 1), "remainder"),
        (lambda x: torch.fmod(x, x + 1), "fmod"),
        (lambda x: x // (x + 1), "floor_divide"),
        (lambda x: torch.div(x, x + 1, rounding_mode="trunc"), "div"),
        (lambda x: x.to(torch.uint32), "_to_copy"),
        (lambda x: x.to(torch.uint64), "_to_copy"),
        (lambda x: torch.zeros(4, dtype=torch.uint32).copy_(x), "copy"),
    ],
)
def test_what_is_not_done_on_many_at_once(call: Any, name: str) -> None:
    rounding = Rounding()
    with rounding:
        call(torch.arange(4.0))
    assert rounding.unequal == {name}


def test_whole_numbers_are_exact_in_any_order() -> None:
    rounding = Rounding()
    with rounding:
        torch.vmap(lambda x: (x.sum(), x.prod(), x % (x + 1), x.cumsum(0)))(
            torch.arange(8).reshape(2, 4)
        )
    assert (rounding.found, rounding.unequal) == (set(), set())
