"""The contract of steps goes red for a step that is wrong, in each way a step can be."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.episodes import Key
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import MeasuredStep, Selection, Step
from offline_data.testing.pieces import (
    as_stored,
    assert_same_piece,
    episodes_of,
    joined,
    toy_piece,
    transitions_of,
)
from offline_data.testing.steps import StepContract, prepared

ACTION, VELOCITY = ("action",), ("observation", "velocity")
MEASURED, CHOSEN = "test_what_is_measured", "test_what_is_chosen"


def action_to(piece: Piece, values: Any) -> Piece:
    return piece.having(steps={**piece.batch.steps, ACTION: np.asarray(values)})


@dataclass(frozen=True)
class Doubled(Step):
    """As it should be."""

    name: ClassVar[str] = "doubled"
    example: ClassVar[str] = "doubled:3"

    times: float = 2.0

    def apply(self, piece: Piece) -> Piece:
        return action_to(piece, piece.batch.steps[ACTION] * np.float32(self.times))


@dataclass(frozen=True)
class Centred(MeasuredStep):
    """As it should be."""

    name: ClassVar[str] = "centred"

    mean: float | None = field(default=None, metadata={"state": True})

    def measure(self, piece: Piece) -> tuple[float, int]:
        values = piece.batch.steps[ACTION].astype(np.float64)
        return float(values.sum()), values.size

    def fitted(self, measures: Sequence[Any]) -> Centred:
        total, count = (sum(one) for one in zip(*measures, strict=True))
        return replace(self, mean=total / count)

    def apply(self, piece: Piece) -> Piece:
        return action_to(piece, piece.batch.steps[ACTION] - np.float32(self.mean or 0))

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def with_state(self, state: Mapping[str, Any]) -> Centred:
        return replace(self, mean=state["mean"])

    def notes(self) -> tuple[str, ...]:
        return ("The action has mean 0",)


@dataclass(frozen=True)
class Long(Selection):
    """As it should be."""

    name: ClassVar[str] = "long"

    def choose(
        self,
        table: Mapping[Key, NDArray[Any]],
        words: Mapping[Key, Sequence[str]],  # noqa: ARG002
    ) -> NDArray[np.bool_]:
        return np.asarray(table[("length",)] > 1)


@dataclass(frozen=True)
class Halved(Step):
    """As it should be: the second half of every episode goes, and episodes of one step."""

    name: ClassVar[str] = "halved"
    keeps_rows: ClassVar[bool] = False

    def apply(self, piece: Piece) -> Piece:
        alone = [one for one in episodes_of(piece) if one.batch.transitions > 1]
        halves = [self._half(one) for one in alone]
        return joined(halves) if halves else self._none(piece)

    @staticmethod
    def _half(piece: Piece) -> Piece:
        count = piece.batch.transitions // 2
        return cut(piece, count)

    @staticmethod
    def _none(piece: Piece) -> Piece:
        batch = piece.batch
        empty = replace(
            batch,
            lengths=batch.lengths[:0],
            steps={key: column[:0] for key, column in batch.steps.items()},
            observations={key: column[:0] for key, column in batch.observations.items()},
            final_observation=batch.final_observation[:0],
            episodes={key: column[:0] for key, column in batch.episodes.items()},
        )
        return Piece(empty, piece.episodes[:0], piece.rows[:0], piece.steps[:0], piece.words)


def cut(piece: Piece, count: int) -> Piece:
    """Return the first transitions of the one episode of a piece."""
    batch = piece.batch
    shorter = replace(
        batch,
        lengths=np.array([count]),
        steps={key: column[:count] for key, column in batch.steps.items()},
        observations={key: column[: count + 1] for key, column in batch.observations.items()},
        final_observation=np.array([True]),
    )
    return replace(piece, batch=shorter)


@dataclass(frozen=True)
class Wrong(Doubled):
    """A step whose `apply` is given."""

    does: Callable[[Piece], Piece] = field(default=lambda piece: piece, metadata={"state": True})

    def apply(self, piece: Piece) -> Piece:
        return self.does(piece)


def writes(piece: Piece) -> Piece:
    values: Any = piece.batch.steps[ACTION]
    values *= 2
    return piece


def writes_where_it_may(piece: Piece) -> Piece:
    values = piece.batch.steps[ACTION]
    result = action_to(piece, values * 2)
    if values.flags.writeable:
        values[0] = 0.25
    return result


def views_bytes(piece: Piece) -> Piece:
    values = piece.batch.steps[ACTION]
    return action_to(piece, np.frombuffer(values, np.float32).reshape(values.shape) * 2)


_calls = itertools.count()


def counts_calls(piece: Piece) -> Piece:
    return action_to(piece, piece.batch.steps[ACTION] + np.float32(next(_calls)))


def knows_the_others(piece: Piece) -> Piece:
    values = piece.batch.steps[ACTION]
    return action_to(piece, values - values.mean(dtype=np.float32))


def counts_rows(piece: Piece) -> Piece:
    values: Any = piece.batch.steps[ACTION]
    return action_to(piece, values + np.arange(len(values), dtype=np.float32)[:, None])


def mixes_episodes(piece: Piece) -> Piece:
    """Smooth over the seams."""
    values = piece.batch.steps[ACTION]
    return action_to(piece, values + np.concatenate([values[:1], values[:-1]]))


def other_type_for_one(piece: Piece) -> Piece:
    wide = np.float64 if piece.batch.lengths.max() > 1 else np.float32
    return action_to(piece, piece.batch.steps[ACTION].astype(wide))


def other_shape_for_one(piece: Piece) -> Piece:
    values = piece.batch.steps[ACTION]
    return action_to(piece, values[:, : 2 if piece.batch.lengths.max() > 1 else 3])


def no_leaf_for_one(piece: Piece) -> Piece:
    kept = {k: c for k, c in piece.batch.observations.items() if k != VELOCITY}
    return piece.having(observations=kept) if piece.batch.lengths.max() == 1 else piece


def no_words_for_one(piece: Piece) -> Piece:
    return piece.having(words={}) if piece.batch.lengths.max() == 1 else piece


def touches_seeds(piece: Piece) -> Piece:
    seeds = piece.batch.episodes[("seed",)] + 1
    return replace(piece, batch=replace(piece.batch, episodes={("seed",): seeds}))


def turns_around(piece: Piece) -> Piece:
    return joined(episodes_of(piece)[::-1])


def moves(piece: Piece) -> Piece:
    return replace(piece, rows=piece.rows + 1)


def invents_final_observations(piece: Piece) -> Piece:
    final = np.ones(len(piece.episodes), bool)
    return replace(piece, batch=replace(piece.batch, final_observation=final))


def shortens(piece: Piece) -> Piece:
    first, *others = episodes_of(piece)
    count = max(1, first.batch.transitions - 1)
    return joined([cut(first, count), *others])


INPUT, TWICE = "test_input_stays_as_it_was", "test_same_input_same_result"
OTHERS, SINGLE = (
    "test_other_episodes_do_not_matter",
    "test_single_transitions_have_the_same_schema",
)
STAY, PICKLE = "test_episodes_stay_themselves", "test_pickling_keeps_it"
JSON, STATE = "test_describes_itself_as_json", "test_state_goes_through_json"
EXAMPLE, VALUE = "test_example_is_read", "test_is_a_value"

WRONG_APPLY: dict[Callable[[Piece], Piece], set[str]] = {
    writes: {INPUT, OTHERS},
    writes_where_it_may: {INPUT, TWICE, OTHERS, PICKLE, STATE},
    views_bytes: {INPUT},
    counts_calls: {INPUT, TWICE, OTHERS, PICKLE, STATE},
    knows_the_others: {OTHERS},
    counts_rows: {OTHERS},
    mixes_episodes: {OTHERS},
    other_type_for_one: {SINGLE, OTHERS},
    other_shape_for_one: {SINGLE, OTHERS},
    no_leaf_for_one: {SINGLE, OTHERS},
    no_words_for_one: {SINGLE, OTHERS},
    touches_seeds: {STAY},
    turns_around: {STAY, OTHERS},
    moves: {STAY},
    invents_final_observations: {STAY},
    shortens: {STAY, OTHERS},
}
"""What is done wrong, and every test that says so."""


def red(step: Step) -> set[str]:
    """Run the contract on a step; return the names of the tests that fail."""
    tests = dict(inspect.getmembers(StepContract(), inspect.ismethod))
    return {name for name, test in tests.items() if name.startswith("test_") and fails(test, step)}


def fails(test: Callable[..., None], step: Step) -> bool:
    wanted = inspect.signature(test).parameters
    piece = toy_piece([3, 1, 4, 2], first_episode=1, unknown_final=[3])
    known: dict[str, Any] = {"step": step, "piece": piece}
    try:
        if "ready" in wanted:
            known["ready"] = prepared(step, piece)
        test(**{name: known[name] for name in wanted})
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 -- whatever a wrong step raises
        return True
    return False


@pytest.mark.parametrize("step", [Doubled(), Doubled(-1.5), Centred(), Long(), Halved()])
def test_a_right_step_passes(step: Step) -> None:
    assert red(step) == set()


@pytest.mark.parametrize("does", WRONG_APPLY)
def test_what_apply_does_wrong(does: Callable[[Piece], Piece]) -> None:
    assert red(Wrong(does=does)) == WRONG_APPLY[does]


@dataclass
class NotFrozen(Step):
    name: ClassVar[str] = "not_frozen"

    def apply(self, piece: Piece) -> Piece:
        return piece


class NoDataclass(Step):
    name: ClassVar[str] = "no_dataclass"

    def apply(self, piece: Piece) -> Piece:
        return piece

    def describe(self) -> dict[str, Any]:
        return {"step": self.name}


class OtherExample(Doubled):
    example: ClassVar[str] = "double:3"


class BadExample(Doubled):
    example: ClassVar[str] = "doubled:much"


@dataclass(frozen=True)
class Holds(Doubled):
    """A step with a parameter of any kind."""

    what: Any = None


class SaysWhoItIs(Doubled):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "object": id(self)}


class SaysAnotherName(Doubled):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "step": "else"}


class NotesNothing(Doubled):
    def notes(self) -> tuple[str, ...]:
        return ("",)


class TellsWhatItLearnt(Centred):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "mean": self.mean}


class LosesState(Centred):
    def with_state(self, state: Mapping[str, Any]) -> LosesState:  # noqa: ARG002
        return self


class RoundsState(Centred):
    def state(self) -> dict[str, Any]:
        return {"mean": None if self.mean is None else round(self.mean)}


class StateIsNoJson(Centred):
    def state(self) -> dict[str, Any]:
        return {"mean": np.float32(self.mean)}


class MeasureWrites(Centred):
    def measure(self, piece: Piece) -> tuple[float, int]:
        piece.batch.steps[ACTION][0] = 1
        return super().measure(piece)


class MeasureStays(Centred):
    def measure(self, piece: Piece) -> Any:
        return lambda: Centred().measure(piece)

    def fitted(self, measures: Sequence[Any]) -> MeasureStays:
        return replace(self, mean=measures[0]()[0])


class FitsByChance(Centred):
    def fitted(self, measures: Sequence[Any]) -> FitsByChance:  # noqa: ARG002
        return replace(self, mean=float(next(_calls)))


class ChoosesNumbers(Long):
    def choose(
        self,
        table: Mapping[Key, NDArray[Any]],
        words: Mapping[Key, Sequence[str]],  # noqa: ARG002
    ) -> Any:
        return np.flatnonzero(table[("length",)] > 1)


class ChoosesByChance(Long):
    def choose(
        self,
        table: Mapping[Key, NDArray[Any]],
        words: Mapping[Key, Sequence[str]],  # noqa: ARG002
    ) -> NDArray[np.bool_]:
        return np.asarray(table[("length",)] == next(_calls) % 4)


class ChoosesAndChanges(Long):
    def apply(self, piece: Piece) -> Piece:
        return action_to(piece, piece.batch.steps[ACTION] * 2)


class LooksAtTheOthers(Long):
    def measure(self, piece: Piece) -> dict[Key, NDArray[Any]]:
        return {("length",): piece.batch.lengths, ("of",): np.full(4, len(piece.episodes))}


@pytest.mark.parametrize(
    ("step", "tests"),
    [
        (NotFrozen(), {VALUE}),
        (NoDataclass(), {VALUE, JSON, PICKLE}),
        (OtherExample(), {EXAMPLE}),
        (BadExample(), {EXAMPLE}),
        (Holds(what=np.float32(2)), {JSON}),
        (Holds(what=float("inf")), {JSON}),
        (Holds(what=lambda: 1), {JSON, PICKLE}),
        (SaysWhoItIs(), {JSON, PICKLE}),
        (SaysAnotherName(), {JSON}),
        (NotesNothing(), {JSON}),
        (TellsWhatItLearnt(), {JSON}),
        (LosesState(), {STATE}),
        (RoundsState(), {STATE}),
        (StateIsNoJson(), {STATE}),
        (MeasureWrites(), {MEASURED}),
        (MeasureStays(), {MEASURED}),
        (FitsByChance(), {MEASURED}),
        (ChoosesNumbers(), {CHOSEN}),
        (ChoosesByChance(), {CHOSEN}),
        (ChoosesAndChanges(), {CHOSEN}),
        (LooksAtTheOthers(), {CHOSEN}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_else_may_be_wrong(step: Step, tests: set[str]) -> None:
    assert tests <= red(step)


def test_pieces_taken_apart_are_the_same_episodes() -> None:
    piece = toy_piece([2, 1, 3], first_episode=2, unknown_final=[3])
    assert_same_piece(joined(episodes_of(piece)), piece)
    assert_same_piece(as_stored(piece), piece)
    apart = transitions_of(piece)
    seen = 0
    for e, length in zip(piece.episodes, piece.batch.lengths, strict=True):
        for t in range(length):
            alone = episodes_of(apart)[seen]
            velocity = alone.batch.observations[VELOCITY].tolist()
            repeated = t == length - 1 and e == 3
            assert velocity == [1000 * e + t + 1.5, 1000 * e + t + 2.5 - repeated]
            assert alone.batch.steps[ACTION][0, 0] == 1000 * e + t + 1
            assert alone.batch.episodes[("seed",)].tolist() == [e + 100]
            assert alone.batch.final_observation.tolist() == [not repeated]
            assert (alone.episodes[0], alone.rows[0], alone.steps[0]) == (e, 4 + seen, t)
            seen += 1
    assert seen == apart.batch.transitions == 6


def test_a_piece_that_differs_is_not_the_same() -> None:
    piece = toy_piece([2, 1])
    for other in (
        replace(piece, rows=piece.rows + 1),
        replace(piece, steps=piece.steps + 1),
        replace(piece, episodes=piece.episodes + 1),
        replace(piece, words={("mission",): ["go", "stop", "wait"]}),
        action_to(piece, piece.batch.steps[ACTION] + 1),
    ):
        with pytest.raises(AssertionError):
            assert_same_piece(other, piece)
