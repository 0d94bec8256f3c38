"""How steps, their arguments and the leaves they mean are read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import numpy as np
import pytest

from offline_data.errors import MissingDependencyError, NotFoundError, StepError, UsageError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import registry
from offline_data.preprocess.steps.base import Step, episode_columns
from offline_data.preprocess.steps.columns import Clip
from offline_data.preprocess.steps.leaves import (
    REQUIRED,
    check_names,
    check_required,
    matching,
    meant,
    numbers,
    place,
)
from offline_data.preprocess.steps.parse import read_arguments, read_pairs, scalar
from offline_data.preprocess.steps.registry import (
    parse_step,
    register_step,
    step_class,
    step_names,
)
from offline_data.testing.pieces import toy_piece, transitions_of, with_leaves


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
class Nothing(Step):
    name: ClassVar[str] = "nothing"


def test_values_in_order_then_all_that_are_left() -> None:
    assert read_arguments(Every, "3,a,b") == {"count": 3, "keys": ("a", "b")}
    assert read_arguments(Every, " 3 , a.b , c/d ,, ") == {"count": 3, "keys": ("a.b", "c/d")}
    assert read_arguments(Two, "5,y") == {"a": 5, "b": "y"}
    assert read_arguments(Two, "") == {}


def test_values_by_name_stand_anywhere() -> None:
    wanted = {"count": 3, "keys": ("a", "b"), "low": 0.5, "flag": True}
    for text in ("3,a,b,low=0.5,flag=true", "low=0.5,a,flag = true ,b,count=3"):
        assert read_arguments(Every, text) == wanted
    assert read_arguments(Two, "b=y,5") == {"a": 5, "b": "y"}
    assert read_arguments(Every, "3,keys=a,b") == {"count": 3, "keys": ("a", "b")}
    assert read_arguments(Every, "keys=a,keys=b,count=3") == {"count": 3, "keys": ("a", "b")}


def test_values_are_what_the_field_is() -> None:
    assert read_arguments(Every, "3,true,1e3,007")["keys"] == ("true", "1e3", "007")
    assert read_arguments(Every, "3,a,mode=1")["mode"] == "1"
    assert read_arguments(Every, "3,a,mode=true")["mode"] == "true"
    assert read_arguments(Every, "3,a,low=null")["low"] is None
    assert read_arguments(Every, "3,a,low=2")["low"] == 2
    assert read_arguments(Every, "3,a,other=2.5")["other"] == 2.5
    assert read_arguments(Two, "1,null")["b"] is None
    assert read_arguments(Two, "1,1")["b"] == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Step 'every' needs count"),
        ("3", "Step 'every' needs keys"),
        ("a", "Step 'every' has count=a; expected a whole number"),
        ("3.5,a", "Step 'every' has count=3.5; expected a whole number"),
        ("true,a", "Step 'every' has count=true; expected a whole number"),
        ("3,a,low=much", "Step 'every' has low=much; expected a number or null"),
        ("3,a,low=true", "Step 'every' has low=true; expected a number or null"),
        ("3,a,low=NaN", "Step 'every' has low=NaN; expected a number or null"),
        ("3,a,low=1e999", "Step 'every' has low=1e999; expected a number or null"),
        ("3,a,flag=1", "Step 'every' has flag=1; expected true or false"),
        ("3,a,flag=yes", "Step 'every' has flag=yes; expected true or false"),
        ("3,a,low=", "Step 'every' has low=; expected a number or null"),
        ("3,a,low=1,low=2", "Step 'every' is given low twice"),
        ("3,a,loww=1", "Step 'every' has no 'loww'; did you mean 'low'?"),
        ("3,a,learnt=1", "Step 'every' has no 'learnt'; there are count, low, flag, mode, other"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_arguments(Every, text)
    assert caught.value.message.startswith(message)
    assert caught.value.hint == "for example --step every:3,a,b,low=0.5"


def test_too_many_values() -> None:
    with pytest.raises(UsageError, match="Step 'two' has no use for 'z', 'w'") as caught:
        read_arguments(Two, "5,y,z,w")
    assert caught.value.hint is None
    with pytest.raises(UsageError, match="Step 'two' has no use for 'y'"):
        read_arguments(Two, "a=5,b=x,y")
    with pytest.raises(UsageError, match="has no use for 'x'"):
        read_arguments(Nothing, "x")
    with pytest.raises(UsageError, match=r"Step 'nothing' has no 'x'\Z"):
        read_arguments(Nothing, "x=1")


def test_pairs() -> None:
    assert read_pairs(Every, "a.b=c, d = e/f,") == (("a.b", "c"), ("d", "e/f"))


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b=c", "a=b,c"])
def test_what_is_no_pair(text: str) -> None:
    with pytest.raises(UsageError, match=r"takes pairs like a=b, and '.*' is none") as caught:
        read_pairs(Every, text)
    assert repr(text.rpartition(",")[2]) in caught.value.message
    assert "every:3,a,b" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-1.5e3", -1500.0), ("false", False), ("null", None), ("[1]", "[1]"), ("", "")],
)
def test_scalars(text: str, value: Any) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


@dataclass(frozen=True)
class Mine(Step):
    name: ClassVar[str] = "mine"

    times: int = 2

    def apply(self, piece: Piece) -> Piece:
        return piece


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def entry_points_are(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = EntryPoints(
        EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in values.items()
    )

    def select(group: str, name: str | None = None) -> EntryPoints:
        return points.select(group=group) if name is None else points.select(group=group, name=name)

    monkeypatch.setattr(registry, "entry_points", select)


def test_names_are_sorted_and_import_nothing() -> None:
    names = step_names()
    assert names == sorted(registry._BUILT_IN)
    code = (
        "import sys; from offline_data.preprocess.steps.registry import step_names; step_names();"
        "print([m for m in sys.modules if 'torch' in m or m.startswith('offline_data.preprocess.steps.') and not m.endswith('registry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"


def test_a_step_of_ones_own() -> None:
    with pytest.raises(NotFoundError):
        parse_step("mine:3")
    assert register_step(Mine) is Mine
    assert parse_step(" mine : 3 ") == Mine(3)
    assert parse_step("mine") == Mine()
    assert "mine" in step_names()
    assert register_step(Mine) is Mine


def test_a_class_defined_anew_replaces_the_old_one() -> None:
    def define() -> type[Step]:
        class Again(Step):
            name: ClassVar[str] = "again"

        return Again

    first, second = register_step(define()), register_step(define())
    assert first is not second
    assert step_class("again") is second


def test_names_that_are_taken() -> None:
    register_step(Mine)

    class Other(Mine):
        pass

    class Clipper(Step):
        name: ClassVar[str] = "clip"

    for step in (Other, Clipper):
        with pytest.raises(UsageError, match=f"There is a step called {step.name!r} already"):
            register_step(step)
    assert step_class("mine") is Mine
    assert step_class("clip") is Clip


@pytest.mark.parametrize("called", ["a b", "a:b", "a,b", "", "2x", None, 3])
def test_names_that_cannot_be(called: Any) -> None:
    class Odd(Step):
        name = called

    with pytest.raises(UsageError, match="its name must be a word") as caught:
        register_step(Odd)
    assert "class Odd" in str(caught.value.hint)


def test_a_step_without_a_name() -> None:
    class Nameless(Step):
        pass

    with pytest.raises(UsageError, match="called None"):
        register_step(Nameless)


def test_steps_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points_are(
        monkeypatch,
        theirs="offline_data.preprocess.steps.columns:Clip",
        broken="no_such_package.steps:Step",
        renamed="offline_data.preprocess.steps.columns:Clop",
    )
    assert {"theirs", "broken", "renamed", "clip"} <= set(step_names())
    assert step_class("theirs") is Clip
    with pytest.raises(MissingDependencyError, match=r"'broken' cannot be imported.*no_such_pack"):
        step_class("broken")
    with pytest.raises(MissingDependencyError, match=r"'renamed' cannot be imported.*Clop"):
        step_class("renamed")


def test_no_such_step() -> None:
    with pytest.raises(NotFoundError, match="No step is called 'klip'; there are cast, clip,") as c:
        parse_step("klip:action")
    assert c.value.hint == "did you mean 'clip'?"
    with pytest.raises(NotFoundError, match="No step is called ''") as c:
        parse_step("")
    assert c.value.hint == "a step is written NAME or NAME:ARGUMENTS"


POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)


ACTION, REWARD = ("action",), ("next", "reward")


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["action"], [ACTION]),
        (["observation"], [POSITION, VELOCITY]),
        (["obs"], [POSITION, VELOCITY]),
        (["obs.velocity"], [VELOCITY]),
        (["observation/position"], [POSITION]),
        (["next.observation"], [POSITION, VELOCITY]),
        (["next/obs/position"], [POSITION]),
        (["next.info.code"], [CODE]),
        (["reward"], [REWARD]),
        (["next.reward"], [REWARD]),
        (["terminated", "truncated"], [("next", "terminated"), ("next", "truncated")]),
        (["action", "info", "observation.position"], [POSITION, CODE, ACTION]),
        (["action", "action"], [ACTION]),
        ([], []),
    ],
)
def test_names_mean_columns(names: list[str], keys: list[tuple[str, ...]]) -> None:
    assert matching(toy_piece([2, 1]), names) == keys


def test_next_alone_is_what_stands_there() -> None:
    found = matching(toy_piece([1]), ["next"])
    assert found == [REWARD, ("next", "terminated"), ("next", "truncated")]


def test_short_names_give_way_to_leaves_called_so() -> None:
    values = np.arange(1.0, 3.0)
    piece = with_leaves(
        toy_piece([2]),
        steps={"obs": values, "terminated.early": values},
        observations={"reward.past": np.arange(3.0)},
    )
    assert matching(piece, ["obs"]) == [("obs",)]
    assert matching(piece, ["reward"]) == [("reward", "past")]
    assert matching(piece, ["terminated"]) == [("terminated", "early")]
    assert matching(piece, ["next.reward"]) == [REWARD]


def test_a_beginning_is_whole_parts() -> None:
    piece = with_leaves(toy_piece([2]), steps={"action_old": np.array([1, 2])})
    assert matching(piece, ["action"]) == [ACTION]
    with pytest.raises(StepError):
        matching(piece, ["act"])


@pytest.mark.parametrize("name", ["next.action", "next.mission", "next.next.reward", "", "a..b"])
def test_no_such_leaf(name: str) -> None:
    with pytest.raises(StepError) as caught:
        matching(toy_piece([1]), [name])
    assert f"No leaf is called {name!r}; there are observation/position," in caught.value.message


def test_the_nearest_is_offered() -> None:
    with pytest.raises(StepError) as caught:
        matching(toy_piece([1]), ["action", "observation.positon"])
    assert caught.value.hint == "did you mean 'observation/position'?"
    with pytest.raises(StepError) as caught:
        meant(toy_piece([1]), "xyzzy")
    assert caught.value.hint is None


def test_numbers_leave_out_what_is_none_below_a_beginning() -> None:
    piece = with_leaves(
        toy_piece([2]),
        steps={"extra.text": np.array([1, 0], np.int32), "extra.count": np.array([4, 5], np.int32)},
        observations={"observation.alive": np.array([True, False, True])},
        words={"extra.text": ["a", "b"]},
    )
    assert numbers(piece, ["obs", "extra"]) == [POSITION, VELOCITY, ("extra", "count")]
    assert numbers(piece, ["obs"], "b") == [("observation", "alive")]
    for name, kind in (("mission", "text"), ("extra.text", "text"), ("terminated", "bool")):
        with pytest.raises(StepError, match=f"{name!r} means no leaf of numbers.* is {kind}"):
            numbers(piece, ["obs", name])


def test_places_of_rows() -> None:
    piece = toy_piece([2, 3], first_episode=4)
    assert [place(piece, ACTION, row) for row in range(5)] == [
        f"row {8 + row} (episode {4 + (row > 1)}, step {row - 2 * (row > 1)})" for row in range(5)
    ]
    assert [place(piece, POSITION, row) for row in range(7)] == [
        "row 8 (episode 4, step 0)",
        "row 9 (episode 4, step 1)",
        "the observation after row 9 (episode 4, step 1)",
        "row 10 (episode 5, step 0)",
        "row 11 (episode 5, step 1)",
        "row 12 (episode 5, step 2)",
        "the observation after row 12 (episode 5, step 2)",
    ]
    apart = transitions_of(piece)
    assert place(apart, POSITION, 5) == "the observation after row 10 (episode 5, step 0)"


STEPS = [("action",), *REQUIRED]


OBSERVATIONS = [("observation", "a"), ("info",)]


def test_what_every_dataset_has() -> None:
    check_required(STEPS, "toy")
    check_required([("action", "arm"), *REQUIRED, ("more",)], "toy")
    for gone in STEPS:
        kept = [key for key in STEPS if key != gone]
        with pytest.raises(StepError, match=f"Step 'toy' would leave no {'/'.join(gone)};"):
            check_required(kept, "toy")
    with pytest.raises(StepError, match="no action, no next/reward, no next/term"):
        check_required([("next", "truncated")], "toy")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("next",), "'next': the name is reserved"),
        (("next", "done"), "'next/done': the name is reserved"),
        (("done",), "a step leaf 'done': the name is reserved"),
        (("episode",), "reserved"),
        (("index", "x"), "reserved"),
        (("terminated",), "reserved"),
        (("action",), "two leaves the name 'action'"),
        (("next", "reward"), "two leaves the name 'next/reward'"),
        (("info",), "two leaves the name 'info'"),
        (("next", "info"), "two leaves the name 'next/info'"),
        (("action", "arm"), "make 'action' a leaf, and 'action/arm' is below it"),
        (("observation",), "make 'observation' a leaf, and 'observation/a' is below it"),
        (("next", "observation"), "'next/observation' a leaf, and 'next/observation/a' is"),
        (("next", "reward", "x"), "'next/reward' a leaf, and 'next/reward/x' is below it"),
        (("", "a"), "cannot call a leaf so: A leaf is named ''"),
        (("..",), "cannot be a file name"),
    ],
)
def test_names_of_step_leaves_that_are_not_free(key: tuple[str, ...], message: str) -> None:
    with pytest.raises(StepError) as caught:
        check_names([key], [*STEPS, key], OBSERVATIONS, "toy")
    assert message in caught.value.message
    assert caught.value.message.startswith("Step 'toy' ")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("next", "x"), "an observation leaf 'next/x': the name is reserved"),
        (("action",), "an observation leaf 'action': the name is reserved"),
        (("action", "x"), "reserved"),
        (("index",), "reserved"),
        (("info",), "two leaves the name 'info'"),
        (("info", "x"), "make 'info' a leaf, and 'info/x' is below it"),
        (("observation",), "make 'observation' a leaf"),
        (("reward",), "two leaves the name 'next/reward'"),
        (("reward", "x"), "make 'next/reward' a leaf, and 'next/reward/x' is below it"),
    ],
)
def test_names_of_observation_leaves_that_are_not_free(key: tuple[str, ...], message: str) -> None:
    with pytest.raises(StepError) as caught:
        check_names([key], STEPS, [*OBSERVATIONS, key], "toy")
    assert message in caught.value.message


def test_columns_of_episodes() -> None:
    found = episode_columns(toy_piece([2, 1, 3], first_episode=4, unknown_final=[5]))
    rewards = [[4001, 4002], [5001], [6001, 6002, 6003]]
    expected = {
        "seed": [104, 105, 106],
        "number": [4, 5, 6],
        "length": [2, 1, 3],
        "return": [sum(one) / 8 for one in rewards],
        "terminated": [True, False, True],
        "truncated": [False, True, False],
        "final_observation": [True, False, True],
    }
    assert {key[0]: column.tolist() for key, column in found.items()} == expected


def test_what_follows_from_the_steps_is_not_taken_from_the_parent() -> None:
    piece = toy_piece([2, 1])
    stale: Any = {("return",): piece.batch.lengths, ("length",): piece.batch.lengths + 5}
    piece = replace(piece, batch=replace(piece.batch, episodes=stale))
    found = episode_columns(piece)
    assert found[("length",)].tolist() == [2, 1]
    assert found[("return",)].tolist() == [0.375, 125.125]
