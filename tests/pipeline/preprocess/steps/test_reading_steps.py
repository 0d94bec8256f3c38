"""How steps, their arguments and the leaves they mean are read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints
from typing import Annotated, Any, ClassVar, Literal, Optional

import numpy as np
import pytest

from offline_data.base.errors import MissingDependencyError, UsageError
from offline_data.pipeline.preprocess.steps import registry
from offline_data.pipeline.preprocess.steps.base import Step, episode_columns
from offline_data.pipeline.preprocess.steps.columns import Clip
from offline_data.pipeline.preprocess.steps.leaves import matching, numbers
from offline_data.pipeline.preprocess.steps.parse import at_least
from offline_data.pipeline.preprocess.steps.registry import (
    describe_step,
    parse_step,
    register_step,
    step_class,
    step_names,
)
from offline_data.testing.chunks import toy_chunk, transitions_of, with_leaves

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)
ACTION, REWARD = ("action",), ("next", "reward")


@dataclass(frozen=True)
class Every(Step):
    """A step with a field of every kind."""

    name: ClassVar[str] = "every"
    example: ClassVar[str] = "every:3,a,b,low=0.5"

    count: int
    keys: tuple[str, ...] = field(metadata={"many": True})
    low: float | None = None
    flag: bool = False
    mode: str = "plain"
    other: Any = None
    learnt: float = field(default=0.0, metadata={"state": True})


@dataclass(frozen=True)
class Two(Step):
    name: ClassVar[str] = "two"

    a: int = 1
    b: str | None = "x"


@dataclass(frozen=True)
class Theirs(Step):
    """Annotations in any form, also of names for type checkers alone, and rules of its own."""

    name: ClassVar[str] = "theirs"

    unknown: OnlyForTypeCheckers | None  # type: ignore[name-defined]  # noqa: F821
    several: Optional[int] = None  # noqa: UP045
    choice: Literal["a", "b"] | bool = "a"
    pairs: tuple[tuple[str, str], ...] = (("a", "b"),)
    table: dict[str, int] = field(default_factory=dict)
    size: Annotated[int, "in pixels", at_least(1)] = 1

    def __post_init__(self) -> None:
        if self.unknown == "wrong":
            raise UsageError("this is their own rule")


@dataclass(frozen=True)
class Nothing(Step):
    name: ClassVar[str] = "nothing"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (" 3 , a.b , c/d ,, ", Every(3, ("a.b", "c/d"))),
        ("low=0.5,a,flag = true ,b,count=3", Every(3, ("a", "b"), 0.5, True)),
        ("3,keys=a,b", Every(3, ("a", "b"))),
        ("keys=a,keys=b,count=3", Every(3, ("a", "b"))),
        ("3,true,1e3,007", Every(3, ("true", "1e3", "007"))),
        ("3,a,mode=1,low=null,other=[1]", Every(3, ("a",), mode="1", other="[1]")),
        ("3,a,mode=true,low=2,other=2.5", Every(3, ("a",), 2, mode="true", other=2.5)),
        ("b=y,5", Two(5, "y")),
        ("1,null", Two(1, None)),
        ("", Two()),
        ("word,several=3,choice=c,size=0,table=1", Theirs("word", 3, "c", table=1, size=0)),  # type: ignore[arg-type]
        ("2.5,null,x=y,true,z = 1", Theirs(2.5, None, True, (("x", "y"), ("z", "1")))),
    ],
)
def test_values_are_those_of_the_fields(text: str, step: Step) -> None:
    found = type(step).parse(text)
    assert found == step
    assert repr(found) == repr(step)  # 2 is not 2.0


def test_pairs() -> None:
    assert vars(parse_step("rename:a.b=c, d = e/f,"))["names"] == (("a.b", "c"), ("d", "e/f"))


@dataclass(frozen=True)
class Mine(Step):
    name: ClassVar[str] = "mine"

    times: int = 2


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_names_are_sorted_and_import_nothing() -> None:
    assert step_names() == sorted(step_names())
    code = (
        "import sys; from offline_data.pipeline.preprocess.steps.registry import step_names; step_names();"
        "print([m for m in sys.modules if m in ('torch', 'numpy') or 'steps.base' in m])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"


def test_types_are_words_and_choices() -> None:
    described = [
        argument for name in registry.step_names() for argument in describe_step(name)["arguments"]
    ]
    assert {found["type"] for found in described if found["name"] == "format"} == {
        "hwc or chw or hw",
        "png or jpeg or h264",
    }
    assert [found for found in described if not found["type"].islower()] == []


def test_types_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {"theirs": Theirs})
    assert {found["name"]: found["type"] for found in describe_step("theirs")["arguments"]} == {
        "unknown": "OnlyForTypeCheckers",
        "several": "whole number",
        "choice": "a or b or true or false",
        "pairs": "pairs a=b",
        "table": "dict[str, int]",
        "size": "whole number",
    }


def test_a_step_of_ones_own() -> None:
    assert register_step(Mine) is register_step(Mine) is Mine
    assert parse_step(" mine : 3 ") == Mine(3)
    assert parse_step("mine") == Mine()
    assert "mine" in step_names()


def test_names_that_are_taken() -> None:
    register_step(Mine)
    anew = type("Mine", (Step,), {"name": "mine", "__module__": __name__})  # as in a notebook
    assert register_step(anew) is step_class("mine") is anew

    class Other(Mine):
        pass

    class Clipper(Step):
        name: ClassVar[str] = "clip"

    for step in (Other, Clipper):
        with pytest.raises(UsageError, match=f"There is a step called {step.name!r} already"):
            register_step(step)
    assert (step_class("mine"), step_class("clip")) == (anew, Clip)


def test_steps_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "theirs": "offline_data.pipeline.preprocess.steps.columns:Clip",
        "broken": "no_such_package.steps:Step",
        "renamed": "offline_data.pipeline.preprocess.steps.columns:Clop",
    }
    points = EntryPoints(EntryPoint(k, v, "offline_data.steps") for k, v in values.items())
    monkeypatch.setattr(registry, "entry_points", points.select)
    assert {"theirs", "broken", "renamed", "clip"} <= set(step_names())
    assert step_class("theirs") is Clip
    for name, missing in (("broken", "no_such_package"), ("renamed", "Clop")):
        with pytest.raises(MissingDependencyError, match=f"'{name}' cannot be imported.*{missing}"):
            step_class(name)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ("obs", [POSITION, VELOCITY]),
        (["obs.velocity"], [VELOCITY]),
        (["observation/position"], [POSITION]),
        (["next.observation"], [POSITION, VELOCITY]),
        (["next/obs/position"], [POSITION]),
        (["next.info.code"], [CODE]),
        (["reward"], [REWARD]),
        (["terminated", "truncated"], [("next", "terminated"), ("next", "truncated")]),
        (["next"], [REWARD, ("next", "terminated"), ("next", "truncated")]),
        (["action", "info", "observation.position", "action"], [POSITION, CODE, ACTION]),
        ([], []),
    ],
)
def test_names_mean_columns(names: Any, keys: list[tuple[str, ...]]) -> None:
    assert matching(toy_chunk([2, 1]), names) == keys


def test_short_names_give_way_to_leaves_called_so() -> None:
    values = np.arange(1.0, 3.0)
    chunk = with_leaves(
        toy_chunk([2]),
        steps={"obs": values, "terminated.early": values, "action_old": values},
        observations={"reward.past": np.arange(3.0)},
    )
    assert matching(chunk, ["obs"]) == [("obs",)]
    assert matching(chunk, ["reward"]) == [("reward", "past")]
    assert matching(chunk, ["terminated"]) == [("terminated", "early")]
    assert matching(chunk, ["next.reward"]) == [REWARD]
    assert matching(chunk, ["action"]) == [ACTION]


def test_numbers_leave_out_what_is_none_below_a_beginning() -> None:
    chunk = with_leaves(
        toy_chunk([2]),
        steps={"extra.text": np.array([1, 0], np.int32), "extra.count": np.array([4, 5], np.int32)},
        observations={"observation.alive": np.array([True, False, True])},
        words={"extra.text": ["a", "b"]},
    )
    assert numbers(chunk, ["obs", "extra"]) == [POSITION, VELOCITY, ("extra", "count")]
    assert numbers(chunk, ["obs"], "b") == [("observation", "alive")]


def test_places_of_rows() -> None:
    chunk = toy_chunk([2, 3], first_episode=4)
    assert chunk.place(2) == "row 10 (episode 5, step 0)"
    assert [chunk.place(row, observed=True) for row in range(7)] == [
        f"the observation {row}"
        for row in (
            "before row 8 (episode 4, step 0)",
            "before row 9 (episode 4, step 1)",
            "after row 9 (episode 4, step 1)",
            "before row 10 (episode 5, step 0)",
            "before row 11 (episode 5, step 1)",
            "before row 12 (episode 5, step 2)",
            "after row 12 (episode 5, step 2)",
        )
    ]
    apart = transitions_of(chunk)
    assert apart.place(5, observed=True) == "the observation after row 10 (episode 5, step 0)"


def test_columns_of_episodes() -> None:
    chunk = toy_chunk([2, 1, 3], first_episode=4, unknown_final=[5])
    found = episode_columns(chunk)
    rewards = [[4001, 4002], [5001], [6001, 6002, 6003]]
    assert {key[0]: column.tolist() for key, column in found.items()} == {
        "seed": [104, 105, 106],
        "number": [4, 5, 6],
        "length": [2, 1, 3],
        "return": [sum(one) / 8 for one in rewards],
        "terminated": [True, False, True],
        "truncated": [False, True, False],
        "final_observation": [True, False, True],
    }
