from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Selection, Step
from offline_data.preprocess.steps.episodes import Subsample
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.steps import StepContract


class TestContract(StepContract):
    @pytest.fixture(
        params=["subsample:0.5", "subsample:every=3", "subsample:episodes=2,seed=5"],
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def chosen(text: str, count: int) -> Any:
    step = parse_step(f"subsample:{text}")
    assert isinstance(step, Selection)
    found = step.choose({("length",): np.ones(count, np.int64)}, {})
    assert (found.dtype, found.shape) == (np.dtype(bool), (count,))
    return found.nonzero()[0].tolist()


@pytest.mark.parametrize("count", [1, 9, 10, 11])
def test_every_so_many(count: int) -> None:
    assert chosen("every=10", count) == [e for e in range(count) if e % 10 == 0]
    assert chosen("every=1", count) == list(range(count))


@pytest.mark.parametrize(
    ("fraction", "count", "kept"),
    [(0.1, 100, 10), (0.1, 104, 10), (0.1, 105, 11), (0.001, 5, 1), (1, 7, 7), (0.29, 100, 29)],
)
def test_a_fraction_is_rounded_and_never_nothing(fraction: float, count: int, kept: int) -> None:
    assert len(chosen(f"fraction={fraction}", count)) == kept


def test_a_number_of_episodes() -> None:
    assert len(chosen("episodes=13", 40)) == 13
    assert chosen("episodes=40", 40) == list(range(40))
    with pytest.raises(StepError, match="keep 41 episodes, and there are 40") as caught:
        chosen("episodes=41", 40)
    assert caught.value.hint == "subsample:fraction=1 keeps all"


def test_the_seed_counts_and_fewer_are_a_part_of_more() -> None:
    zero, one = chosen("episodes=20,seed=0", 100), chosen("episodes=20,seed=1", 100)
    assert zero == chosen("episodes=20", 100) == chosen("0.2", 100)
    assert zero != one
    assert zero != list(range(20))
    assert set(chosen("episodes=5", 100)) < set(zero)


def test_every_episode_can_be_chosen() -> None:
    found = {one for seed in range(60) for one in chosen(f"episodes=1,seed={seed}", 5)}
    assert found == set(range(5))


def test_a_fraction_is_the_first_share_of_a_split() -> None:
    split = parse_step("split:a,a=0.3,b=0.7,seed=4")
    assert isinstance(split, Selection)
    want = split.choose({("length",): np.ones(33, np.int64)}, {}).nonzero()[0].tolist()
    assert chosen("fraction=0.3,seed=4", 33) == want


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"fraction": math.inf}, "finite"),
        ({"fraction": True}, "fraction=True; expected a finite number"),
        ({"every": 2.5}, "expected a whole number"),
        ({"episodes": True}, "expected a whole number"),
        ({"every": 2, "seed": 0.5}, "expected a whole number"),
    ],
)
def test_parameters_that_cannot_be_meant(given: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Subsample(**given)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "needs one of fraction, every, episodes; found none"),
        ("seed=3", "needs one of"),
        ("fraction=0.5,every=3", r"found fraction=0\.5, every=3"),
        ("0.5,3", "needs one of"),
        ("fraction=0", "has fraction=0; expected a number above 0"),
        ("fraction=1.5", "at most 1"),
        ("fraction=NaN", "expected a number"),
        ("fraction=some", "expected a number"),
        ("fraction=true", "expected a number"),
        ("every=0", "has every=0; expected a whole number, 1 or more"),
        ("every=2.5", "expected a whole number"),
        ("every=true", "expected a whole number"),
        ("episodes=-4", "expected a whole number"),
        ("episodes=all", "expected a whole number"),
        ("every=2,seed=-1", "has seed=-1; expected a whole number, 0 or more"),
        ("every=2,seed=1.5", "expected a whole number"),
        ("evry=2", "no 'evry'; did you mean 'every'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        parse_step(f"subsample:{text}")
    assert f"for example --step {Subsample.example}" == caught.value.hint
