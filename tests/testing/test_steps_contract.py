"""The contract of steps goes red for a step that is wrong, every test of it for at least one."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.episode import Key
from offline_data.pipeline.preprocess.steps.base import MeasuredStep, Selection, Step
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.chunks import (
    as_stored,
    assert_same_chunk,
    episodes_of,
    join_chunks,
    toy_chunk,
    transitions_of,
)
from offline_data.testing.steps import StepContract, prepare_step

ACTION, VELOCITY = ("action",), ("observation", "velocity")


def action_to(chunk: EpisodeChunk, values: Any) -> EpisodeChunk:
    return chunk.having(steps={**chunk.batch.steps, ACTION: np.asarray(values)})


@dataclass(frozen=True)
class Doubled(Step):
    name: ClassVar[str] = "doubled"
    example: ClassVar[str] = "doubled:3"

    times: float = 2.0

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return action_to(chunk, chunk.batch.steps[ACTION] * np.float32(self.times))


@dataclass(frozen=True)
class Centred(MeasuredStep):
    name: ClassVar[str] = "centred"

    mean: float | None = field(default=None, metadata={"state": True})

    def measure(self, chunk: EpisodeChunk) -> tuple[float, int]:
        values = chunk.batch.steps[ACTION].astype(np.float64)
        return float(values.sum()), values.size

    def fitted(self, measures: Sequence[Any]) -> Centred:
        total, count = (sum(one) for one in zip(*measures, strict=True))
        return replace(self, mean=total / count)

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return action_to(chunk, chunk.batch.steps[ACTION] - np.float32(self.mean or 0))

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def with_state(self, state: Mapping[str, Any]) -> Centred:
        return replace(self, mean=state["mean"])

    def notes(self) -> tuple[str, ...]:
        return ("The action has mean 0",)


@dataclass(frozen=True)
class Long(Selection):
    name: ClassVar[str] = "long"

    def choose(self, table: Any, words: Any) -> NDArray[np.bool_]:  # noqa: ARG002
        return np.asarray(table[("length",)] > 1)


@dataclass(frozen=True)
class Wrong(Doubled):
    """A step whose `apply` is given."""

    does: Callable[[EpisodeChunk], EpisodeChunk] = field(
        default=lambda chunk: chunk, metadata={"state": True}
    )

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return self.does(chunk)


def writes(chunk: EpisodeChunk) -> EpisodeChunk:
    values: Any = chunk.batch.steps[ACTION]
    values *= 2
    return chunk


_calls = itertools.count()


def counts_calls(chunk: EpisodeChunk) -> EpisodeChunk:
    return action_to(chunk, chunk.batch.steps[ACTION] + np.float32(next(_calls)))


def knows_the_others(chunk: EpisodeChunk) -> EpisodeChunk:
    values = chunk.batch.steps[ACTION]
    return action_to(chunk, values - values.mean(dtype=np.float32))


def other_type_for_one(chunk: EpisodeChunk) -> EpisodeChunk:
    wide = np.float64 if chunk.batch.lengths.max() > 1 else np.float32
    return action_to(chunk, chunk.batch.steps[ACTION].astype(wide))


def touches_seeds(chunk: EpisodeChunk) -> EpisodeChunk:
    seeds = chunk.batch.episodes[("seed",)] + 1
    return replace(chunk, batch=replace(chunk.batch, episodes={("seed",): seeds}))


def invents_final_observations(chunk: EpisodeChunk) -> EpisodeChunk:
    final = np.ones(len(chunk.episodes), bool)
    return replace(chunk, batch=replace(chunk.batch, final_observation=final))


@dataclass
class NotFrozen(Step):
    name: ClassVar[str] = "not_frozen"

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return chunk


class BadExample(Doubled):
    example: ClassVar[str] = "doubled:much"


class SaysWhoItIs(Doubled):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "object": id(self)}


class TellsWhatItLearnt(Centred):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "mean": self.mean}


class LosesState(Centred):
    def with_state(self, state: Mapping[str, Any]) -> LosesState:  # noqa: ARG002
        return self


class MeasureWrites(Centred):
    def measure(self, chunk: EpisodeChunk) -> tuple[float, int]:
        chunk.batch.steps[ACTION][0] = 1
        return super().measure(chunk)


class FitsByChance(Centred):
    def fitted(self, measures: Sequence[Any]) -> FitsByChance:  # noqa: ARG002
        return replace(self, mean=float(next(_calls)))


class ChoosesByChance(Long):
    def choose(self, table: Any, words: Any) -> NDArray[np.bool_]:  # noqa: ARG002
        return np.asarray(table[("length",)] == next(_calls) % 4)


class LooksAtTheOthers(Long):
    def measure(self, chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
        return {("length",): chunk.batch.lengths, ("of",): np.full(4, len(chunk.episodes))}


def red(step: Step) -> set[str]:
    """Run the contract on a step; return the names of the tests that fail."""
    tests = dict(inspect.getmembers(StepContract(), inspect.ismethod))
    return {
        name.removeprefix("test_")
        for name, test in tests.items()
        if name.startswith("test_") and fails(test, step)
    }


def fails(test: Callable[..., None], step: Step) -> bool:
    wanted = inspect.signature(test).parameters
    chunk = toy_chunk([3, 1, 4, 2], first_episode=1, unknown_final=[3])
    known: dict[str, Any] = {"step": step, "chunk": chunk}
    try:
        if "ready" in wanted:
            known["ready"] = prepare_step(step, chunk)
        test(**{name: known[name] for name in wanted})
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 -- whatever a wrong step raises
        return True
    return False


@pytest.mark.parametrize("step", [Doubled(-1.5), Centred(), Long()])
def test_a_right_step_passes(step: Step) -> None:
    assert red(step) == set()


@pytest.mark.parametrize(
    ("step", "tests"),
    [
        (Wrong(does=writes), "input_stays_as_it_was other_episodes_do_not_matter"),
        (Wrong(does=counts_calls), "same_input_same_result pickling_keeps_it"),
        (Wrong(does=knows_the_others), "other_episodes_do_not_matter"),
        (Wrong(does=other_type_for_one), "single_transitions_have_the_same_schema"),
        (Wrong(does=touches_seeds), "episodes_stay_themselves"),
        (Wrong(does=invents_final_observations), "episodes_stay_themselves"),
        (NotFrozen(), "is_a_value"),
        (BadExample(), "example_is_read"),
        (SaysWhoItIs(), "describes_itself_as_json pickling_keeps_it"),
        (TellsWhatItLearnt(), "describes_itself_as_json"),
        (LosesState(), "state_goes_through_json"),
        (MeasureWrites(), "what_is_measured"),
        (FitsByChance(), "what_is_measured"),
        (ChoosesByChance(), "what_is_chosen"),
        (LooksAtTheOthers(), "what_is_chosen"),
    ],
    ids=lambda one: one.does.__name__ if isinstance(one, Wrong) else type(one).__name__,
)
def test_a_wrong_step_fails(step: Step, tests: str) -> None:
    assert {*tests.split()} <= red(step)


def test_chunks_taken_apart_are_the_same_episodes() -> None:
    chunk = toy_chunk([2, 1, 3], first_episode=2, unknown_final=[3])
    assert_same_chunk(join_chunks(episodes_of(chunk)), chunk)
    assert_same_chunk(as_stored(chunk), chunk)
    apart = transitions_of(chunk)
    places = [(e, t) for e, n in zip((2, 3, 4), (2, 1, 3), strict=True) for t in range(n)]
    for row, (alone, (e, t)) in enumerate(zip(episodes_of(apart), places, strict=True)):
        repeated = e == 3
        velocity = alone.batch.observations[VELOCITY].tolist()
        assert velocity == [1000 * e + t + 1.5, 1000 * e + t + 2.5 - repeated]
        assert alone.batch.steps[ACTION][0, 0] == 1000 * e + t + 1
        assert alone.batch.episodes[("seed",)].tolist() == [e + 100]
        assert alone.batch.final_observation.tolist() == [not repeated]
        assert (alone.episodes[0], alone.rows[0], alone.steps[0]) == (e, 4 + row, t)


def test_a_chunk_that_differs_is_not_the_same() -> None:
    chunk = toy_chunk([2, 1])
    for other in (
        replace(chunk, rows=chunk.rows + 1),
        replace(chunk, steps=chunk.steps + 1),
        replace(chunk, episodes=chunk.episodes + 1),
        replace(chunk, words={("mission",): ["go", "stop", "wait"]}),
        action_to(chunk, chunk.batch.steps[ACTION] + 1),
    ):
        with pytest.raises(AssertionError):
            assert_same_chunk(other, chunk)
