from __future__ import annotations

from typing import Any

import pytest
import torch

from offline_data.buffers.chain import Chain, Link, through
from offline_data.errors import UsageError


class Scale:
    """Both directions, as TorchRL's transforms have them."""

    def __init__(self, by: float) -> None:
        self.by = by
        self.evaluating = False

    def __call__(self, number: float) -> float:
        return number * self.by

    def inv(self, number: float) -> float:
        return number / self.by

    def eval(self) -> None:
        self.evaluating = True


def chain(*links: tuple[Any, bool]) -> Chain:
    made = Chain()
    for transform, invert in links:
        made = made.insert(len(made.links), transform, invert=invert)
    return made


def test_batches_go_forward_and_rows_backward() -> None:
    made = chain((Scale(2), False), (lambda x: x + 1, False), (Scale(10), False))
    assert through(made.outward, 3) == 70
    assert through(made.inward, 40) == 2.0


def test_inverting_swaps_the_directions() -> None:
    made = chain((Scale(2), True), (lambda x: x + 1, True))
    assert through(made.outward, 6) == 3.0
    assert through(made.inward, 6) == 14


def test_inserting_keeps_the_others_in_order() -> None:
    made = chain((lambda x: x + "b", False)).insert(0, lambda x: x + "a", invert=False)
    assert through(made.outward, "") == "ab"


def test_modules_are_put_in_evaluation() -> None:
    scale = Scale(2)
    chain((scale, False))
    assert scale.evaluating


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        Chain().insert(0, "scale", invert=False)  # type: ignore[arg-type]


def test_state_is_that_of_the_transforms_that_have_one() -> None:
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    made = Chain((Link(len), Link(first)))
    other = Chain((Link(len), Link(second)))
    other.load_state_dict(made.state_dict())
    assert torch.equal(first.weight, second.weight)
    with pytest.raises(UsageError, match="2 transforms; this buffer has 0"):
        Chain().load_state_dict(made.state_dict())
