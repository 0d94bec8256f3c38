"""`Recipe`: steps in order, applied to pieces, and what they learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.identity import describe_function, is_own, unknown_note
from offline_data.preprocess.steps.base import Revision, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class Recipe:
    """Steps, each applied to what the one before it gave."""

    steps: tuple[Step, ...]
    """In order; at least one where a dataset is to be made."""

    @property
    def keeps_rows(self) -> bool:
        """Whether every episode that is read keeps its length."""
        return all(step.keeps_rows for step in self.steps)

    @property
    def per_row(self) -> bool:
        """Whether Python is called for every row."""
        return any(step.per_row for step in self.steps)

    @property
    def in_blocks(self) -> bool:
        """Whether functions run on rows side by side: it may show in a last bit which ones."""
        return any(getattr(step, "run", "rows") != "rows" for step in self.steps)

    def apply(self, piece: Piece) -> Piece:
        """Apply all steps.

        Raises:
            StepError: See `Step.apply`; or text has become numbers that stand for no words.
            Revised: A step must be done otherwise.
        """
        for number, step in enumerate(self.steps):
            before = piece.by_rows
            try:
                piece = step.apply(piece)
            except Revision as found:
                raise Revised(number, found.step.state(), found.reason) from found
            except MemoryError as error:
                raise StepError(
                    f"Memory is short for step {step.name!r} on {len(piece.episodes)} episodes of "
                    f"{piece.batch.transitions} transitions",
                    hint="fewer workers, or smaller blocks (batched=), take less",
                ) from error
            if piece.by_rows != before:
                found_here = (one._replace(step=number) for one in piece.by_rows[len(before) :])
                piece = replace(piece, by_rows=(*before, *found_here))
        _check_text(piece)
        return piece

    def then(self, step: Step) -> Recipe:
        """Return the recipe with one more step."""
        return Recipe((*self.steps, step))

    def revised(self, found: Revised) -> Recipe:
        """Return the recipe with one step done otherwise; raises `StepError` if it can't be."""
        steps = list(self.steps)
        step = steps[found.number].with_state(found.state)
        if step.state() != found.state:  # it would ask for the same for ever
            raise StepError(f"Step {step.name!r} does not take the state that it gives itself")
        steps[found.number] = step
        return Recipe(tuple(steps))

    def describe(self) -> list[dict[str, Any]]:
        """Return what was asked for, as JSON values."""
        return [step.describe() for step in self.steps]

    @cached_property
    def code(self) -> list[dict[str, Any]]:
        """Classes of steps that are the user's own, as `describe_function` has them."""
        own = (type(step) for step in self.steps if is_own(type(step).__module__))
        return [describe_function(kind) for kind in own]

    @property
    def unknown(self) -> str:
        """Why its result is neither used again nor resumed; empty: its functions can be told apart."""
        found = (one for one in (*self.describe(), *self.code) if one.get("unknown"))
        return next((unknown_note(one) for one in found), "")

    def states(self) -> list[dict[str, Any]]:
        """Return what the steps learnt, as JSON values."""
        return [step.state() for step in self.steps]

    def with_states(self, states: Sequence[dict[str, Any]]) -> Recipe:
        """Return the recipe as it was when `states` gave these."""
        pairs = zip(self.steps, states, strict=True)
        return replace(self, steps=tuple(step.with_state(state) for step, state in pairs))

    def notes(self) -> tuple[str, ...]:
        """Return what the steps have to say to the manifest."""
        return tuple(note for step in self.steps for note in step.notes())


def _check_text(piece: Piece) -> None:
    leaves = {**piece.batch.steps, **piece.batch.observations}
    for key, words in piece.words.items():
        codes = leaves[key]
        if codes.size and not -1 <= codes.min() <= codes.max() < len(words):
            raise StepError(
                f"Leaf {join_key(key)!r} is text, numbers from -1 (nothing) to {len(words) - 1} that "
                f"stand for words; the recipe makes it {codes.min()} to {codes.max()}",
                hint="give what is no text another name",
            )


class Revised(Exception):  # noqa: N818 - a finding, not an error
    """A step of a recipe must be done otherwise: what was made so far does not count."""

    def __init__(self, number: int, state: dict[str, Any], reason: str) -> None:
        super().__init__(number, state, reason)
        self.number = number
        """Which step."""
        self.state = state
        """Its state from now on."""
        self.reason = reason
        """Why, in words."""

    def __str__(self) -> str:
        return self.reason
