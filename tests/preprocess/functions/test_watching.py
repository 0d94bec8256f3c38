from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch

from offline_data.preprocess.functions.watching import Watch, reason, watched

LISTS: dict[str, Any] = {
    "add": (2,),
    "add of lists": ([torch.arange(2.0, 5), torch.tensor([7.5])],),
    "mul": ([2.0, 3.0],),
    "addcmul": ([torch.full((3,), 2.0), torch.ones(1)], [torch.full((3,), 5.0), torch.ones(1)]),
    "maximum": ([torch.arange(3.0, 0, -1), torch.tensor([7.5])],),
    "clamp_min": (3,),
    "lerp": ([torch.arange(2.0, 5), torch.tensor([7.5])], 0.25),
    "norm": (2,),
    "neg": (),
    "pow": (2,),
    "round": (),
}
IN_PLACE: dict[str, Any] = {
    "add_": ([torch.arange(2.0, 5), torch.tensor([7.5])],),
    "copy_": ([torch.arange(2.0, 5), torch.tensor([7.5])],),
    "zero_": (),
    "mul_": (3,),
}
"""Functions of lists, and what they get beside the first one."""


def tensors() -> list[torch.Tensor]:
    return [torch.arange(1.0, 4), torch.tensor([5.5])]


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_done_one_by_one(name: str) -> None:
    """To the same values as torch's own functions give."""
    function = getattr(torch, f"_foreach_{name.split()[0]}")
    expected = function(tensors(), *LISTS[name])
    with Watch() as watch:
        found = function(tensors(), *LISTS[name])
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
    assert watch.found == ""


def test_a_list_that_is_not_the_first() -> None:
    expected = torch._foreach_pow(2.0, tensors())
    with Watch():
        found = torch._foreach_pow(2.0, tensors())
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
    with Watch():
        found = torch._foreach_add(tensors(), tensors(), alpha=3)
    assert [one.tolist() for one in found] == [[4, 8, 12], [22]]


@pytest.mark.parametrize("name", IN_PLACE)
def test_lists_are_changed_one_by_one(name: str) -> None:
    expected, found = tensors(), tensors()
    function = getattr(torch, f"_foreach_{name}")
    function(expected, *IN_PLACE[name])
    with Watch():
        function(found, *IN_PLACE[name])
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (lambda x: bool(x[0] > 1), "it looks at values to decide what to do"),
        (lambda x: x[0].item(), "it looks at values to decide what to do"),
        (lambda x: 2.0 in x, "it looks at values to decide what to do"),
        (sorted, "it looks at values to decide what to do"),
        (lambda x: f"{x[0]:.2f}", "it reads the text of tensors"),
        (lambda x: x.numpy(), "it leaves torch, for example for numpy"),
        (lambda x: x.__dlpack__(), "it leaves torch, for example for numpy"),
        (lambda x: x.untyped_storage(), "it leaves torch, for example for numpy"),
        (lambda x: x[x > 1], "the shape of a result depends on values"),
        (lambda x: x.nonzero(), "the shape of a result depends on values"),
        (lambda x: torch.rand(len(x)), "it draws random numbers"),
        (lambda x: (x.shape, x.dtype, x.ndim, x.device, x.numel(), x.is_contiguous()), ""),
        (list, ""),
        (lambda x: x.sum().reshape(1).expand(3), ""),
    ],
)
def test_what_is_noted_although_it_is_caught(look: Any, found: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with suppress(Exception):
            look(x)
        return x

    with Watch() as watch:
        torch.vmap(fn, randomness="error")(torch.arange(6.0).reshape(2, 3))
    assert watch.found == found


def test_nothing_is_left_behind() -> None:
    """Neither profiler nor tracer, also where something is raised."""
    for error in (None, ValueError):
        found: list[str] = []
        try:
            with watched(found):
                assert sys.getprofile() is not None
                if error is not None:
                    raise error
        except ValueError:
            pass
        assert sys.getprofile() is None
        assert found == []


def test_a_profiler_that_is_there_stays() -> None:
    def own(frame: Any, event: str, arg: Any) -> None:
        pass

    sys.setprofile(own)
    try:
        with watched([]):
            assert sys.getprofile() is own
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)


def test_errors_of_torch_that_are_caught() -> None:
    """Where no function of torch's that can be watched raised them."""

    def raises() -> None:
        raise RuntimeError("vmap: It looks like you're calling .item() on a Tensor.")

    found: list[str] = []
    with watched(found):
        with suppress(RuntimeError):
            raises()
        with suppress(KeyError):
            os.environ["NO_SUCH_NAME"]  # errors of Python are nobody's business
    assert set(found) == {"it looks at values to decide what to do"}


def test_reasons_are_short() -> None:
    long = reason(ValueError("a" * 500 + "\nb"))
    assert long == "torch.vmap refuses it: ValueError: " + "a" * 120
    assert reason(KeyError("x")) == "torch.vmap refuses it: KeyError: 'x'"
