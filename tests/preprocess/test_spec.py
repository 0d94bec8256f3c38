from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.errors import NotFoundError, UsageError
from offline_data.preprocess.spec import Calling, recipe_of
from offline_data.testing.pieces import toy_piece


def first(td: Any) -> Any:
    td["first"] = torch.rand(2)
    return td


def second(td: Any) -> Any:
    td["second"] = torch.rand(2)
    return td


def drawn(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    piece = toy_piece([4, 3])
    for step in recipe_of([first, second], Calling(seed=seed)).steps:
        piece = step.settled(piece).apply(piece)
    steps = piece.batch.steps
    return np.array(steps["first",]), np.array(steps["second",])


def test_two_functions_of_a_recipe_draw_different_numbers_the_same_every_time() -> None:
    one, other = drawn(3)
    assert len(np.unique(np.concatenate([one, other]))) == 28
    np.testing.assert_array_equal(drawn(3), (one, other))
    assert not np.isin(drawn(4), (one, other)).any()


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(UsageError, match="Nothing is to be done"):
        recipe_of([])
    with pytest.raises(UsageError, match="neither a function nor a step"):
        recipe_of([5])  # type: ignore[list-item]
    with pytest.raises(NotFoundError) as unknown:
        recipe_of(["clipp:action,low=1"])
    assert "clip" in str(unknown.value.hint)
    with pytest.raises(UsageError, match="by='episode'"):
        Calling(by="episode", batched=4)
