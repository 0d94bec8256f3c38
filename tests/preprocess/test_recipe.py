"""Steps in order, what they learnt, and which of them must be done otherwise."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.recipe import Recipe, Revised
from offline_data.preprocess.steps.base import Revision, Step
from offline_data.testing.pieces import toy_piece, with_leaves


@dataclass(frozen=True)
class Linear(Step):
    """Reward · factor + shift; where the shift is odd, it must be even."""

    name: ClassVar[str] = "linear"

    factor: int
    shift: int = 0
    learnt: str = field(default="", metadata={"state": True})

    def apply(self, piece: Piece) -> Piece:
        if self.shift % 2 and not self.learnt:
            raise Revision(replace(self, learnt="even"), "the shift is odd")
        reward = piece.batch.steps["next", "reward"]
        shift = self.shift - 1 if self.learnt else self.shift
        return piece.having(
            steps={**piece.batch.steps, ("next", "reward"): reward * self.factor + shift}
        )

    def state(self) -> dict[str, Any]:
        return {"learnt": self.learnt} if self.learnt else {}

    def with_state(self, state: Mapping[str, Any]) -> Linear:
        return replace(self, learnt=state.get("learnt", ""))

    def notes(self) -> tuple[str, ...]:
        return (f"shift {self.shift}",)


def rewards(piece: Piece) -> list[float]:
    found: list[float] = piece.batch.steps["next", "reward"][:, 0].tolist()
    return found


def test_steps_are_applied_in_order() -> None:
    piece = toy_piece([3])
    before = rewards(piece)
    found = Recipe((Linear(2, 10), Linear(3, 4))).apply(piece)
    assert rewards(found) == [(value * 2 + 10) * 3 + 4 for value in before]
    assert rewards(Recipe((Linear(3, 4), Linear(2, 10))).apply(piece)) != rewards(found)
    assert rewards(piece) == before


def test_a_revision_names_its_step() -> None:
    recipe = Recipe((Linear(2), Linear(3, 5), Linear(4, 7)))
    with pytest.raises(Revised, match="the shift is odd") as caught:
        recipe.apply(toy_piece([2]))
    found = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (found.number, found.state, str(found)) == (1, {"learnt": "even"}, "the shift is odd")
    again = recipe.revised(found)
    assert again.states() == [{}, {"learnt": "even"}, {}]
    with pytest.raises(Revised) as caught:
        again.apply(toy_piece([2]))
    assert caught.value.number == 2
    ready = again.revised(caught.value)
    before = rewards(toy_piece([2]))
    assert rewards(ready.apply(toy_piece([2]))) == [(v * 2 * 3 + 4) * 4 + 6 for v in before]
    assert recipe.states() == [{}, {}, {}]


def test_a_step_that_never_learns_is_refused() -> None:
    @dataclass(frozen=True)
    class Deaf(Linear):
        def with_state(self, state: Mapping[str, Any]) -> Deaf:  # noqa: ARG002
            return self

    with pytest.raises(StepError, match="does not take the state"):
        Recipe((Deaf(3, 5),)).revised(Revised(0, {"learnt": "even"}, "the shift is odd"))


def test_states_go_through_json() -> None:
    recipe = Recipe((Linear(2), Linear(3, 5, "even")))
    states = json.loads(json.dumps(recipe.states()))
    assert Recipe((Linear(2), Linear(3, 5))).with_states(states) == recipe
    with pytest.raises(ValueError, match="zip"):
        recipe.with_states(states[:1])


def test_what_a_recipe_says_of_itself() -> None:
    recipe = Recipe((Linear(2), Linear(3, 5, "even")))
    assert recipe.describe() == [
        {"step": "linear", "factor": 2, "shift": 0},
        {"step": "linear", "factor": 3, "shift": 5},
    ]
    assert recipe.notes() == ("shift 0", "shift 5")
    assert (recipe.keeps_rows, recipe.per_row, recipe.in_blocks) == (True, False, False)
    assert recipe.then(Linear(9)).describe()[-1]["factor"] == 9


@dataclass(frozen=True)
class Codes(Step):
    """Put other numbers in the place of a text leaf's."""

    name: ClassVar[str] = "codes"

    value: int

    def apply(self, piece: Piece) -> Piece:
        codes = piece.batch.steps["mission",].copy()
        codes[-1] = self.value
        return piece.having(steps={**piece.batch.steps, ("mission",): codes})


@pytest.mark.parametrize("value", [-2, 3, 100])
def test_numbers_that_stand_for_no_words_are_refused(value: int) -> None:
    with pytest.raises(StepError, match=rf"'mission' is text, numbers from -1 .* to 2 .*{value}"):
        Recipe((Codes(value),)).apply(toy_piece([3]))
    for fine in (-1, 0, 2):
        Recipe((Codes(fine),)).apply(toy_piece([3]))
    piece = with_leaves(toy_piece([1]), steps={"mission": np.zeros((1, 0), np.int32)})
    assert Recipe(()).apply(piece) is piece
